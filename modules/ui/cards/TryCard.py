"""Generate images with the model that a run has trained, beside those of the base model."""

from __future__ import annotations

import queue
import tkinter
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import customtkinter as ctk

from modules.config.counted import counted
from modules.config.errors import UserError
from modules.config.files import load_config
from modules.config.methods import facts_of
from modules.session.RunFolder import RunFolder
from modules.session.working_folder import shown_path
from modules.ui.cards.Card import Card
from modules.ui.cards.SamplesCard import SampleStrip
from modules.ui.models.path_picker import PathQuestion
from modules.ui.models.trained_images import (
    FOLDER,
    ImageWish,
    can_compare,
    first_wish,
    image_script,
    newest_model,
    read_number,
    sample_options,
    takes,
)
from modules.ui.models.TriedImages import TriedImages
from modules.ui.theme import Theme
from modules.ui.widgets.dialogs import ask_path
from modules.ui.widgets.Textbox import Textbox
from modules.ui.widgets.Tooltip import Tooltip

if TYPE_CHECKING:
    from modules.config.TrainConfig import TrainConfig
    from modules.ui.App import App
    from modules.ui.models.RunState import RunState
    from modules.ui.models.ScriptRun import ScriptRun

PROMPT_HEIGHT = 58
MAX_STRENGTH, STRENGTH_STEP = 2.0, 0.05
ALL_STRENGTHS = (-2.0, -1.0, 1.0, 2.0)  # of what goes both ways, beside the base model in the middle
LISTEN_SECONDS = 0.1
# "layers" is shown for models that have them only.
FIELDS = {
    "seed": "Seed", "steps": "Steps", "guidance": "CFG", "layers": "Layers",
    "width": "Width", "height": "Height", "count": "Images",
}  # fmt: skip
COLUMNS = 4  # of fields


class TryCard(Card):
    """Prompts and figures, and the images without and with what was trained, which stay until another run is shown."""

    def __init__(self, parent: tkinter.Misc, app: App):
        super().__init__(parent, app, "Try it")
        self._shown: tuple | None = None  # the run and its end
        self._folder: Path | None = None
        self._config: TrainConfig | None = None
        self._wish: ImageWish | None = None
        self._script: ScriptRun | None = None
        self._stop_listening: Callable[[], None] = lambda: None
        self._tried = TriedImages()
        self._build()

    def destroy(self) -> None:
        self._cancel()
        self._stop_listening()
        super().destroy()

    @property
    def is_generating(self) -> bool:
        return self._script is not None

    def show(self, state: RunState) -> None:
        """Offer the model of a run; called again for each state of the run."""
        shown = state.folder, str(state.exit), bool(state.samples)  # which may be read later than the end
        if shown == self._shown:
            return
        self._cancel()
        self._end("")
        self._shown = shown
        self._folder, self._config, self._wish = state.folder, None, None
        self._tried.clear()
        self.images.show([])
        assert state.folder is not None  # of the run that has ended
        try:
            self._config = load_config(RunFolder(state.folder).config_path)
        except UserError as error:
            self._note.configure(text=str(error))
            return
        self._wish = first_wish(self._config, state.samples)
        self.prompt.delete("1.0", "end")
        self.prompt.insert("1.0", self._wish.prompt)
        for name, entry in self.entries.items():
            entry.delete(0, "end")
            value = getattr(self._wish, name)
            entry.insert(0, f"{value:g}" if isinstance(value, float) else str(value))
        if self.negative.get() != self._wish.negative_prompt:  # even "" would take the place of the placeholder
            self.negative.delete(0, "end")
            self.negative.insert(0, self._wish.negative_prompt)
        self._show_field("layers", takes(self._config, "layers"))
        self.reference.delete(0, "end")
        self.reference.insert(0, self._wish.reference)
        self._reference_row.grid() if takes(self._config, "reference") else self._reference_row.grid_remove()
        self.last_frame.delete(0, "end")
        self.last_frame.insert(0, self._wish.last_frame)
        self._last_row.grid() if takes(self._config, "last_frame") else self._last_row.grid_remove()
        facts = facts_of(self._config)
        lowest = -MAX_STRENGTH if facts.goes_both_ways else 0.0
        self._strength.configure(from_=lowest, number_of_steps=round((MAX_STRENGTH - lowest) / STRENGTH_STEP))
        self._set_strength(1.0)
        self._strength_row.grid() if facts.trains_adapters else self._strength_row.grid_remove()
        self.all_strengths.grid() if facts.goes_both_ways else self.all_strengths.grid_remove()

    def generate(self, strengths: Sequence[float] = ()) -> None:
        """Generate the images in a process, or cancel that. strengths: in place of the chosen one."""
        if self.is_generating:
            self._cancel()
            self._end("")
            return
        model = newest_model(self.app.run.state.saved)
        if self._config is None or self._wish is None or not model:
            return
        wish = self._read_wish(self._wish)
        if wish is None:
            return
        self._button.configure(text="Cancel")
        self.all_strengths.configure(state="disabled")
        if self._tried.has_base(wish):
            self._run(wish, strengths or self._strength_now())
        elif can_compare(self._config, model):
            self._tried.expect(wish, "", True)
            self._run(wish, strengths or self._strength_now(), compares=True)
        else:
            self._run(wish, (), lambda: self._run(wish, strengths or self._strength_now()))

    def _strength_now(self) -> tuple[float]:
        return (round(float(self._strength.get()), 2),)

    def _run(
        self,
        wish: ImageWish,
        strengths: Sequence[float],
        then: Callable[[], None] | None = None,
        compares: bool = False,
    ) -> None:
        """Generate images in one process; each is shown as soon as it is there. strengths: none for the base model.
        then: called once all are there."""
        assert self._config is not None  # else nothing is generated
        assert self._folder is not None
        facts = facts_of(self._config)
        if not strengths:
            self._tried.expect(wish, "", True)
        for one in strengths:
            name = f"strength {one:.2f}" if facts.trains_adapters else "trained"
            self._tried.expect(wish, name, False, one if facts.goes_both_ways else 0.0)
        model, folder = newest_model(self.app.run.state.saved), RunFolder(self._folder).samples_dir / FOLDER
        strength, several = (strengths[0] if strengths else None), (strengths if len(strengths) > 1 else ())
        options = sample_options(self._config, model, wish, strength, folder, compares, several)
        lines: queue.SimpleQueue[str] = queue.SimpleQueue()
        script = self._script = image_script(options, self.app.standby.take, lines.put)
        self._tell_progress()

        def take_lines() -> None:
            paths = []
            while not lines.empty():
                paths.append(Path(lines.get()))
            if paths and script is self._script and self.winfo_exists():
                self._tried.take(paths)
                self.images.show(self._tried.shown())
                self._tell_progress()

        self._stop_listening = self.app.every(LISTEN_SECONDS, take_lines)

        def take(output: bytes | None) -> None:
            if script is not self._script or not self.winfo_exists():
                return
            take_lines()
            self._stop_listening()
            if then is not None:
                then()
            else:
                self._end(f"Saved in {shown_path(folder)}")

        def fail(error: Exception) -> None:
            is_wanted = script is self._script and self.winfo_exists()
            if is_wanted:
                self._end("")
            if not isinstance(error, UserError):
                raise error
            if is_wanted:
                self._note.configure(text=str(error), text_color=Theme.error)

        self.app.in_background(script.run, take, fail)

    def _tell_progress(self) -> None:
        left = self._tried.num_expected
        model = "the base model" if self._tried.waits_for_base else "the trained model"
        more = f" {counted(left, 'image')} left." if left > 1 else ""
        self._note.configure(text=f"Generating with {model}…{more}", text_color=Theme.muted)

    def _end(self, text: str) -> None:
        self._script = None
        self._stop_listening()
        self._tried.forget_expected()
        self._button.configure(text="Generate")
        self.all_strengths.configure(state="normal")
        self._note.configure(text=text, text_color=Theme.muted)

    def _cancel(self) -> None:
        if self._script is not None:
            self._script.cancel()
            self._script = None

    def _read_wish(self, first: ImageWish) -> ImageWish | None:
        """The fields' values, `first` for what has no field; None, with a message, if one is invalid."""
        prompts = self.prompt.get("1.0", "end-1c").strip(), self.negative.get().strip()
        values: dict[str, Any] = dict(zip(("prompt", "negative_prompt"), prompts, strict=True))
        for name, label in FIELDS.items():
            text = self.entries[name].get().strip()
            try:
                values[name] = read_number(name, text)
            except ValueError as error:
                self._note.configure(text=f"{label} {text!r} must be {error}.", text_color=Theme.error)
                return None
        reference = self.reference.get().strip()
        mask = first.mask if reference == first.reference else ""  # that of another image would not fit
        return replace(first, **values, reference=reference, mask=mask, last_frame=self.last_frame.get().strip())

    def _build(self) -> None:
        theme = self.app.theme
        self.prompt = Textbox(self, height=PROMPT_HEIGHT, wrap="word", font=theme.font())
        self.prompt.grid(row=1, column=0, sticky="ew", padx=12, pady=(2, 4))
        self.negative = ctk.CTkEntry(self, height=28, font=theme.font(), placeholder_text="Negative prompt")
        self.negative.grid(row=2, column=0, sticky="ew", padx=12, pady=(0, 4))
        self._build_fields()
        self._build_references()
        self._build_start()
        self._note = self.add_note(7)
        self.grid_rowconfigure(8, weight=1, minsize=theme.scaled(150))
        self.images = SampleStrip(self, self.app)
        self.images.nothing = "The images appear here side by side."
        self.images.grid(row=8, column=0, sticky="nsew", padx=8)

    def _build_fields(self) -> None:
        theme = self.app.theme
        box = ctk.CTkFrame(self, fg_color="transparent")
        box.grid(row=3, column=0, sticky="ew", padx=12)
        self.entries: dict[str, ctk.CTkEntry] = {}
        self._labels: dict[str, ctk.CTkLabel] = {}
        for number, (name, label) in enumerate(FIELDS.items()):
            row, column = divmod(number, COLUMNS)
            self._labels[name] = ctk.CTkLabel(box, text=label, font=theme.font(12), text_color=Theme.muted, anchor="w")
            self._labels[name].grid(row=row, column=2 * column, padx=(0 if column == 0 else 8, 4), sticky="w")
            self.entries[name] = ctk.CTkEntry(box, width=56, height=28, font=theme.font())
            self.entries[name].grid(row=row, column=2 * column + 1, sticky="ew", pady=2)
            box.grid_columnconfigure(2 * column + 1, weight=1)

    def _show_field(self, name: str, is_shown: bool) -> None:
        label, entry = self._labels[name], self.entries[name]
        for widget in (label, entry):
            widget.grid() if is_shown else widget.grid_remove()
        # an empty column would keep its share of the width
        entry.master.grid_columnconfigure(2 * (list(FIELDS).index(name) % COLUMNS) + 1, weight=int(is_shown))

    def _build_references(self) -> None:
        self._reference_row, self.reference = self._path_row(4, "Reference", "A reference image")
        self._last_row, self.last_frame = self._path_row(5, "Last frame", "The image that the video ends with")

    def _path_row(self, number: int, label: str, title: str) -> tuple[ctk.CTkFrame, ctk.CTkEntry]:
        """A row with an entry for an image. title: of the window in which it is chosen."""
        theme = self.app.theme
        row = ctk.CTkFrame(self, fg_color="transparent")
        row.grid(row=number, column=0, sticky="ew", padx=12, pady=(4, 0))
        row.grid_columnconfigure(1, weight=1)
        text = ctk.CTkLabel(row, text=label, font=theme.font(12), text_color=Theme.muted)
        text.grid(row=0, column=0, padx=(0, 6))
        entry = ctk.CTkEntry(row, height=28, font=theme.font())
        entry.grid(row=0, column=1, sticky="ew")
        button = ctk.CTkButton(row, text="…", width=28, height=28, command=lambda: self._choose(entry, title))
        button.grid(row=0, column=2, padx=(4, 0))
        return row, entry

    def _choose(self, entry: ctk.CTkEntry, title: str) -> None:
        if path := ask_path(self.app, PathQuestion("file", title, entry.get().strip())):
            entry.delete(0, "end")
            entry.insert(0, path)

    def _build_start(self) -> None:
        theme = self.app.theme
        bar = ctk.CTkFrame(self, fg_color="transparent")
        bar.grid(row=6, column=0, sticky="ew", padx=12, pady=(6, 2))
        bar.grid_columnconfigure(1, weight=1)
        self._button = ctk.CTkButton(
            bar, text="Generate", width=100, height=30, font=theme.font(13, "bold"), fg_color=Theme.start,
            hover_color=Theme.start_hover, text_color=Theme.on_accent, command=self.generate,
        )  # fmt: skip
        self._button.grid(row=0, column=0)
        self._strength_row = ctk.CTkFrame(bar, fg_color="transparent")
        self._strength_row.grid(row=0, column=1, sticky="ew", padx=(12, 0))
        self._strength_row.grid_columnconfigure(1, weight=1)
        label = ctk.CTkLabel(self._strength_row, text="Strength", font=theme.font(12), text_color=Theme.muted)
        label.grid(row=0, column=0, padx=(0, 6))
        self._strength = ctk.CTkSlider(
            self._strength_row, width=60, from_=0, to=MAX_STRENGTH, command=self._set_strength
        )
        self._strength.grid(row=0, column=1, sticky="ew")
        self._strength_text = ctk.CTkLabel(self._strength_row, text="", width=40, font=theme.font(12))
        self._strength_text.grid(row=0, column=2)
        self.all_strengths = ctk.CTkButton(self._strength_row, text="All strengths", width=20, height=26)
        self.all_strengths.configure(font=theme.font(12), command=lambda: self.generate(ALL_STRENGTHS))
        self.all_strengths.grid(row=0, column=3, padx=(4, 0))
        some = ", ".join(f"{strength:g}" for strength in ALL_STRENGTHS)
        Tooltip(self.all_strengths, theme, lambda: f"Generate at {some}, beside the base model.")
        self._set_strength(1.0)

    def _set_strength(self, strength: float) -> None:
        self._strength.set(strength)
        self._strength_text.configure(text=f"{strength:.2f}")
