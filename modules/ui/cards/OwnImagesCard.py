"""Train one's own images with four choices: base model, folder, preset and GPUs."""

from __future__ import annotations

import copy
import threading
import tkinter
from collections.abc import Callable, Generator
from functools import partial
from typing import TYPE_CHECKING

import customtkinter as ctk

from modules.config.clips import clip_rule
from modules.config.counted import counted
from modules.data.folder_walk import Outputs
from modules.ui.cards.Card import Card
from modules.ui.models.fitting_presets import PresetChoice, fitting_presets
from modules.ui.models.path_picker import PathQuestion
from modules.ui.models.picture_count import scan_key
from modules.ui.models.QuickStart import QuickStart
from modules.ui.theme import Theme
from modules.ui.widgets.dialogs import ask_path
from modules.ui.widgets.Field import EDITOR_HEIGHT, LABEL_WIDTH
from modules.ui.widgets.fitting import FittedLabel, FittedMenu, lay_in_rows, wrap_to
from modules.ui.widgets.form import SettingsForm
from modules.ui.widgets.StartButton import StartButton

if TYPE_CHECKING:
    from modules.config.clips import ClipRule
    from modules.config.ConceptConfig import ConceptConfig
    from modules.ui.App import App
    from modules.ui.models.concept_preview import ConceptPictures

BASE_PATHS = ("family", "model.base")
READ_MS = 600  # as with counting: once the page is laid out
ONE_GPU = "One"
TINY_BYTES = 2**28  # of a base model that a CPU trains in minutes


class OwnImagesCard(Card):
    """Shows and changes the settings of the next run; what it shows follows changes made elsewhere.

    find_model: opens the window for choosing a base model.
    """

    def __init__(self, parent: tkinter.Misc, app: App, find_model: Callable[[], object]):
        super().__init__(parent, app, "Train my images")
        self._find_model = find_model
        self.quick = QuickStart(app.settings, app.devices)
        self._found: tuple[tuple, ConceptPictures] | None = None  # the content of the folder, by scan_key
        self._reading: tuple[tuple, threading.Event] | None = None  # scan_key, and what cancels it
        self._read_job: str | None = None
        self._preset_job: str | None = None
        self._listed_presets: tuple[PresetChoice, ...] | None = None  # those in the menu
        self._are_presets_read = False
        self._steps = self._build()
        app.in_slices(self._steps)

    def destroy(self) -> None:
        self._steps.close()
        self._give_up_reading()
        if self._preset_job is not None:
            self.app.after_cancel(self._preset_job)
        super().destroy()

    # --- actions ------------------------------------------------------------------------------------------------------

    def choose_folder(self) -> None:
        """Ask for the folder of images."""
        path = ask_path(self.app, PathQuestion("folder", "A folder of images"))
        if path:
            self.quick.use_folder(path)

    def use_preset(self, label: str) -> None:
        """Apply the preset with this label in the menu."""
        choice = next((choice for choice in self.quick.choices if choice.label == label), None)
        if choice is not None:
            self.quick.use_preset(choice)
        self._show_preset()

    def start_run(self) -> None:
        """Start with the settings as they are shown."""
        if self.quick.has_demo_images:
            self.app.show_message("Choose the folder of your images first; the settings are still the demo's.", "info")
            self.choose._canvas.focus_set()
        else:
            self.app.start_run()

    def _open_folders(self) -> None:
        if len(self.app.settings.get("concepts")) > 1 and not self.quick.has_demo_images:
            self.app.open_tab("dataset")
        else:
            self.choose_folder()

    def _use_gpus(self, label: str) -> None:
        self.quick.use_gpus(label != ONE_GPU)

    # --- display ------------------------------------------------------------------------------------------------------

    def _on_settings(self, paths: set[str] | None) -> None:
        self._show_folder()
        self._show_preset()
        self._show_gpus()

    def _on_devices(self, what: str) -> None:
        self._show_folder()
        self._show_preset()
        self._show_gpus()

    def _show_base(self) -> None:
        _set(self.base_note, text=self.app.checks.base_text)

    def _show_folder(self) -> None:
        settings = self.app.settings
        concepts = [] if self.quick.has_demo_images else settings.get("concepts")
        path = concepts[0].path if len(concepts) == 1 else ""
        rule = clip_rule(settings.in_effect)
        key = scan_key(concepts[0], self._outputs(), rule) if path else None
        if self._reading is not None and self._reading[0] != key:
            self._give_up_reading()
        text, colour = path, Theme.text
        if len(concepts) > 1:
            text, samples = f"{len(concepts):,} folders on the Dataset tab", self.app.devices.num_samples
            note = "" if samples is None else f"{counted(samples, 'image')} an epoch.", Theme.muted
        elif not path:
            text, colour = "No folder chosen yet", Theme.muted
            note = "The folder of your images, with or without captions.", Theme.muted
        elif problem := self.app.problems.error("concepts.0.path"):
            note = problem, Theme.error
        elif self._found is not None and self._found[0] == key:
            note = describe_images(self._found[1])
        else:
            note = "Reading the folder…", Theme.muted
            if self._reading is None and key is not None:
                self._read(key, copy.deepcopy(concepts[0]))
        _set(self.folder, text=text, text_color=colour)
        _set(self.choose, text="Edit…" if len(concepts) > 1 else "Choose…")
        _set(self.folder_note, text=note[0], text_color=note[1])

    def _show_preset(self) -> None:
        settings = self.app.settings
        if not self._are_presets_read:
            return
        choices, chosen, suggested = self.quick.choices, self.quick.chosen_preset, self.quick.suggested
        if choices != self._listed_presets:
            self._listed_presets = choices
            self.preset.configure(values=[choice.label for choice in choices])
        if self.preset.get() != (text := chosen.label if chosen else settings.preset_name):
            self.preset.set(text)
        _set(self.preset, state="normal" if choices else "disabled")
        _set(self.preset_note, text=self._preset_text(chosen, suggested))

    def _preset_text(self, chosen: PresetChoice | None, suggested: PresetChoice | None) -> str:
        settings = self.app.settings
        if suggested is None:
            names = (settings.info(path).choice_labels[settings.get(path)] for path in ("method", "family"))
            return "No preset for {} on {}: set it up under All settings.".format(*names)
        config = settings.config()
        needed = self.app.devices.memory_text(config) if chosen and config else ""
        parts = [f"Memory: {needed}." if needed else ""]
        if chosen != suggested:
            parts.append(f"Suggested for this machine: {suggested.label}.")
        elif not self.app.devices.gpus and (self.app.devices.base_bytes or TINY_BYTES) >= TINY_BYTES:
            parts.append("No GPU found: training a model of this size on the CPU takes very long.")
        return " ".join(filter(None, parts))

    def _show_gpus(self) -> None:
        count = len(self.app.devices.gpus)
        if count < 2:
            self._gpu_row.grid_remove()
            self._gpu_label.grid_remove()
            return
        everything = f"All {count}"
        if self.gpus.cget("values") != [everything, ONE_GPU]:
            self.gpus.configure(values=[everything, ONE_GPU])
        uses_all = self.quick.uses_all_gpus
        self.gpus.set(everything if uses_all else ONE_GPU if uses_all is False else "")
        self._gpu_row.grid()
        self._gpu_label.grid()

    def _read(self, key: tuple, concept: ConceptConfig) -> None:
        """Read the folder in a thread, once nothing has changed for a while."""
        given_up = threading.Event()
        self._reading = key, given_up
        outputs, rule = self._outputs(), clip_rule(self.app.settings.in_effect)

        def take(found: ConceptPictures) -> None:
            if not given_up.is_set() and self.winfo_exists():
                self._reading, self._found = None, (key, found)
                self._show_folder()

        def start() -> None:
            self._read_job = None
            self.app.in_background(lambda: read_folder(concept, given_up, outputs, rule), take)

        self._read_job = self.app.after(READ_MS, start)

    def _on_edits(self, settings: set[str]) -> None:
        """Read the folder again, in which files were edited."""
        self._give_up_reading()
        self._found = None
        self._show_folder()

    def _give_up_reading(self) -> None:
        if self._reading is not None:
            self._reading[1].set()
            self._reading = None
        if self._read_job is not None:
            self.app.after_cancel(self._read_job)
            self._read_job = None

    def _outputs(self) -> Outputs:
        return Outputs(self.app.settings.get("workspace_dir"), self.app.settings.get("cache_dir"))

    # --- widgets ------------------------------------------------------------------------------------------------------

    def _build(self) -> Generator[None, None, None]:
        """Build the card in slices, so that the window is first drawn without waiting for it."""
        self.form = SettingsForm(self, self.app, BASE_PATHS, all_importances=True)
        self.form.grid(row=1, column=0, sticky="ew", padx=(0, 2))
        yield
        self._rows = ctk.CTkFrame(self, fg_color="transparent")
        self._rows.grid(row=2, column=0, sticky="ew", padx=(0, 2))
        self._rows.grid_columnconfigure(2, weight=1)
        self._rescale()
        self.ends.append(self.app.theme.on_change(self._rescale))
        self.base_note = self._add_note(0)
        find = ctk.CTkButton(self._rows, text="Find a model…", width=20, height=26, font=self.app.theme.font(12))
        find.configure(command=self._find_model)
        find.grid(row=1, column=2, sticky="w", pady=(0, 6))
        yield
        self._build_folder()
        yield
        self._build_preset()
        yield
        self._build_gpus()
        self._build_buttons()
        self.ends += [
            self.app.views.add(self, self._on_settings).end,
            self.app.checks.subscribe(self._show_base),
            self.app.checks.places.subscribe_edits(self._on_edits),
            self.app.problems.subscribe(self._show_folder),
            self.app.devices.subscribe(self._on_devices),
        ]
        self._show_base()
        self._on_settings(None)
        # only once the page is there, as Tk waits for the threads between any two of its commands
        self._preset_job = self.app.after(READ_MS, self._read_presets)

    def _read_presets(self) -> None:
        self._preset_job = None
        self.app.in_background(partial(fitting_presets, "", ""), self._take_presets)

    def _take_presets(self, _: object) -> None:
        if self.winfo_exists():
            self._are_presets_read = True
            self._show_preset()

    def _build_folder(self) -> None:
        theme = self.app.theme
        self._add_label("Images", 2)
        row = ctk.CTkFrame(self._rows, fg_color="transparent")
        row.grid(row=2, column=2, sticky="ew", padx=(0, 10), pady=3)
        row.grid_columnconfigure(0, weight=1)
        self.folder = FittedLabel(
            row, text="", font=theme.font(), anchor="w", height=EDITOR_HEIGHT, fg_color=Theme.code, corner_radius=6
        )
        self.folder.grid(row=0, column=0, sticky="ew")
        self.choose = ctk.CTkButton(
            row, text="Choose…", width=84, height=EDITOR_HEIGHT, font=theme.font(), command=self._open_folders
        )
        self.choose.grid(row=0, column=1, padx=(6, 0))
        self.folder_note = self._add_note(3)

    def _build_preset(self) -> None:
        font = self.app.theme.font()
        self._add_label("Preset", 4)
        self.preset = FittedMenu(
            self._rows, values=[], width=150, height=EDITOR_HEIGHT, font=font, dropdown_font=font,
            command=self.use_preset,
        )  # fmt: skip
        self.preset.set(self.app.settings.preset_name)
        self.preset.grid(row=4, column=2, sticky="ew", padx=(0, 10), pady=3)
        self.preset_note = self._add_note(5)

    def _build_gpus(self) -> None:
        font = self.app.theme.font()
        self._gpu_label = self._add_label("GPUs", 6)
        self._gpu_row = ctk.CTkFrame(self._rows, fg_color="transparent")
        self._gpu_row.grid(row=6, column=2, sticky="ew", padx=(0, 10), pady=3)
        self.gpus = ctk.CTkSegmentedButton(self._gpu_row, values=[ONE_GPU], font=font, command=self._use_gpus)
        more = ctk.CTkButton(self._gpu_row, text="Choose…", width=84, height=EDITOR_HEIGHT, font=font)
        more.configure(command=lambda: self.app.open_tab("multi-GPU"))
        self.gpus.grid(row=0, column=0)
        more.grid(row=0, column=1, padx=(8, 0))

    def _build_buttons(self) -> None:
        theme = self.app.theme
        bar = ctk.CTkFrame(self, fg_color="transparent")
        bar.grid(row=3, column=0, sticky="ew", padx=12, pady=(14, 6))
        self.start = StartButton(bar, self.app, "Start training", self.start_run)
        more = ctk.CTkButton(bar, text="All settings", width=110, height=38, font=theme.font())
        more.configure(command=lambda: self.app.open_tab("model"))
        lay_in_rows(bar, [self.start, more], theme, 10)

    def _add_label(self, text: str, row: int) -> ctk.CTkLabel:
        label = ctk.CTkLabel(self._rows, text=text, font=self.app.theme.font(), anchor="w")
        label.grid(row=row, column=1, sticky="w", padx=(0, 8))
        return label

    def _add_note(self, row: int) -> ctk.CTkLabel:
        note = ctk.CTkLabel(
            self._rows, text="", font=self.app.theme.font(12), text_color=Theme.muted, anchor="w", justify="left"
        )
        note.grid(row=row, column=2, sticky="ew", padx=(0, 10), pady=(0, 6))
        wrap_to(self._rows, note, self.app.theme, taken=LABEL_WIDTH + 8 + 20 + 10)
        return note

    def _rescale(self) -> None:
        """Keep the columns in line with those of the form."""
        self._rows.grid_columnconfigure(0, minsize=self.app.theme.scaled(20))
        self._rows.grid_columnconfigure(1, minsize=self.app.theme.scaled(LABEL_WIDTH + 8))


def read_folder(
    concept: ConceptConfig, given_up: threading.Event, outputs: Outputs, rule: ClipRule | None
) -> ConceptPictures:
    """The content of a folder. Call it in a thread: it also imports NumPy, which takes a while."""
    from modules.ui.models.concept_preview import find_pictures

    return find_pictures(concept, 0, lambda: not given_up.is_set(), outputs, rule)


def describe_images(found: ConceptPictures) -> tuple[str, tuple[str, str]]:
    """The content of a folder in words, and their colour."""
    if found.error:
        return found.error, Theme.error
    if not found.paths:
        return "No image in this folder: choose another.", Theme.error
    parts = [f"{found.content}, {found.smallest_side:,} px and larger"]
    if found.num_without_caption:
        parts.append(f"{found.num_without_caption:,} without a caption")
    if found.num_unreadable:
        parts.append(f"{found.num_unreadable:,} can't be read")
    return "; ".join(parts) + ".", Theme.success if len(parts) == 1 else Theme.warning


def _set(widget: ctk.CTkBaseClass, **options: object) -> None:
    """Configure what has changed only, as each change is drawn."""
    changed = {name: value for name, value in options.items() if widget.cget(name) != value}
    if changed:
        widget.configure(**changed)
