"""The dataset tab: the folders of images with their content and share of an epoch, and how images and captions are
prepared."""

from __future__ import annotations

import copy
import re
import threading
import tkinter as tk
from collections.abc import Generator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import customtkinter as ctk

from modules.config.clips import ClipRule, clip_rule
from modules.config.counted import counted
from modules.config.describe import part_paths, settings_by_path
from modules.config.labels import label_of
from modules.data.folder_walk import Outputs
from modules.ui.cards.ConceptCards import ConceptCard, ConceptCards
from modules.ui.models.concept_preview import ConceptPictures, find_pictures, samples_per_epoch
from modules.ui.models.path_picker import PathQuestion
from modules.ui.models.picture_count import scan_key
from modules.ui.models.run_names import name_after_images
from modules.ui.tabs.SlicedTab import SlicedTab
from modules.ui.widgets.dialogs import ask_path, open_window
from modules.ui.widgets.fitting import lay_in_rows, wrap_to
from modules.ui.widgets.form import CardSpec, SettingsForm, SettingsPage, usual_rows
from modules.ui.widgets.NameFilter import NameFilter
from modules.ui.widgets.ProblemNote import ProblemNote
from modules.ui.windows.ConceptWindow import TYPING_MS, ConceptWindow
from modules.ui.windows.dataset_tools import open_statistics
from modules.ui.windows.DatasetWindow import open_dataset
from modules.ui.windows.HealthWindow import HealthWindow

if TYPE_CHECKING:
    from modules.ui.App import App

CARDS = (
    CardSpec(
        "Size and shape",
        ("data.resolution", "data.resolutions", "data.frames", "data.clips", "data.fps", "data.image_to_video",
            "data.last_frame", "data.inpainting_shapes", "data.inpainting_whole", "data.inpainting_variants",
            "data.bucketing", "data.width", "data.height", "data.bucket_step", "data.max_aspect",
            "data.max_side", "data.no_upscale"),
    ),
    CardSpec("Captions", ("data.caption_dropout", "data.caption_variants")),
    CardSpec("Cached augmentations", ("data.augmentation_variants",)),
    CardSpec("Validation and skipped images", ("data.validation_share", "data.max_unreadable_share")),
    CardSpec("Loading", ("data.prefetch_steps",)),
)  # fmt: skip
OUTPUTS = ("workspace_dir", "cache_dir")  # the settings that Outputs depends on
CLIPS = {"family", "method", "data.frames", "data.fps", "data.clips"}  # the same for clip_rule
TYPED = re.compile(rf"concepts\.\d+\.path|{'|'.join(OUTPUTS)}")  # settings whose values are paths
MANY = 9  # concepts, from which on there is a filter
READ_MS = 150  # after which the tab is laid out; while threads read, each call of Tk may wait a millisecond


class DatasetTab(SlicedTab):
    """The concepts as cards, with a filter if there are many; below them the settings of the selected one, and those of
    all images."""

    def __init__(self, parent: tk.Misc, app: App):
        super().__init__(parent, app)
        self._found: dict[tuple, ConceptPictures] = {}  # by scan_key
        self._keys: list[tuple] = []  # the scan_key of each concept shown
        self._missing: set[tuple] = set()  # those of them that are not read yet
        self._reading: tuple[tuple, threading.Event] | None = None  # current scan_key, and what cancels it
        self._form: SettingsForm | None = None
        self._form_number: int | None = None
        self._window: ConceptWindow | None = None
        self._read_job: str | None = None
        self.grid_columnconfigure(0, weight=1)
        self.grid_rowconfigure(4, weight=1)
        self.page = SettingsPage(self, app, CARDS)
        self.page.grid(row=4, column=0, sticky="nsew")
        self.filter = NameFilter(self, app, self._filter)
        self.filter.grid(row=2, column=0, sticky="w", padx=12, pady=(0, 8))
        self.filter.grid_remove()
        actions = (self._on_choose, self.edit, self.toggle, self.remove, self.move, self._on_unfilter)
        self.cards = ConceptCards(self, app, self.page, *actions)
        self.cards.grid(row=3, column=0, sticky="ew", padx=(12, 6), pady=(0, 6))
        self._side = self._make_side()
        paths = [path for path in settings_by_path() if path.startswith("concepts[].")]
        self.page.add_card(lambda: self._side, usual_rows(app, CardSpec("", paths)), is_first=True)
        self._on_chosen: list[ctk.CTkButton] = []
        self._is_built = False
        self._wrong = self._wrong_settings()
        self._view = app.views.add(self, self._on_settings)
        self._ends = [
            app.settings.subscribe(self._drop_form_of_no_concept),
            app.problems.subscribe(self._on_problems),
            app.checks.places.subscribe(self._on_places),
            app.checks.places.subscribe_edits(self._on_places),
            self._view.end,
        ]
        app.in_slices(self._steps)

    # --- actions -----------------------------------------------------------------------------------------------------

    def add_folder(self, path: str | None = None) -> None:
        """Add a concept for a folder; ask for one unless it is given."""
        path = path or ask_path(self.app, PathQuestion("folder", "A folder of images"))
        if path:
            settings = self.app.settings
            with settings.one_undo_step():
                number = settings.add("concepts", {"path": path})
                if number == 0:
                    name_after_images(settings, "")
            self.cards.choose(number)

    def edit(self, number: int) -> None:
        """Open the window of a concept, with its images."""
        if not self._is_there(number):
            return
        if self._window is None:
            self._window = ConceptWindow(self, self.app)
        self._window.show(number)

    @property
    def chosen_part(self) -> int | None:
        return self._form_number

    def show_setting(self, path: str) -> None:
        """Select the concept of the setting at `path`, such as "concepts.2.repeats", so that its field exists. For
        "concepts" itself, focus the button that adds one. The settings of all images always have a field."""
        self.page.finish()
        for _ in self._steps:  # finish building the tab
            pass
        if path == "concepts":
            self._add._canvas.focus_set()
        of_concept = re.match(r"concepts\.(\d+)", path)
        if of_concept and int(of_concept[1]) < len(self.cards.cards):
            self.cards.choose(int(of_concept[1]))

    def duplicate(self, number: int) -> None:
        if self._is_there(number):
            self.app.settings.duplicate("concepts", number)
            self.cards.choose(number + 1)

    def browse(self, number: int | None) -> None:
        """Open the dataset window for a concept; None: for all that are enabled."""
        if number is None or self._is_there(number):
            open_dataset(self.app, number)

    def remove(self, number: int) -> None:
        self.app.settings.remove("concepts", number)

    def toggle(self, number: int) -> None:
        if self._is_there(number):
            path = f"concepts.{number}.enabled"
            self.app.settings.set(path, not self.app.settings.get(path))

    def refresh(self) -> None:
        """Read the folders again."""
        self._found = {}
        self.cards.forget_pictures()
        self.show_concepts()

    def move(self, number: int, by: int) -> None:
        """Move a concept in the list; nothing happens at its ends."""
        target = number + by
        if self._is_there(number) and self._is_there(target):
            self.app.settings.move("concepts", number, target)
            self.cards.choose(target)

    def _chosen(self) -> int:
        assert self.cards.chosen is not None  # else the buttons are disabled
        return self.cards.chosen

    def check_data(self) -> None:
        open_window(self.app, HealthWindow).check()

    # --- display -----------------------------------------------------------------------------------------------------

    def show_concepts(self) -> None:
        """Update the cards from the settings, and read folders that are not known yet."""
        concepts, outputs, rule = self.app.settings.get("concepts"), self._outputs(), self._rule()
        self._keys = [scan_key(concept, outputs, rule) for concept in concepts]
        found = [self._found.get(key) for key in self._keys]
        self._missing = {key for key, one in zip(self._keys, found, strict=True) if one is None}
        counts: list[float] = []
        if not self._missing:
            counts = samples_per_epoch(concepts, [one.num_samples if one else 0 for one in found])
        total = sum(counts)
        samples: Sequence[float | None] = counts or [None] * len(concepts)
        self.cards.show(
            [
                ConceptCard(copy.copy(concept), pictures, number, number / total if number and total else 0.0)
                for concept, pictures, number in zip(concepts, found, samples, strict=True)
            ]
        )
        enabled = sum(concept.enabled for concept in concepts)
        text = f"{enabled} of {counted(len(concepts), 'concept')} enabled"
        text += "" if self._missing else f", {counted(round(total), 'sample')} an epoch"
        self._summary.configure(text=text)
        self._show_filter()
        self._show_choice()
        if self._read_job is None:
            self._read_in(READ_MS)

    def _show_found(self, key: tuple) -> None:
        """Show what was read in a folder: on its own card, and once all are read, in the shares of an epoch."""
        self._missing.discard(key)
        if not self._missing:
            self.show_concepts()
            return
        for number, one in enumerate(self._keys):
            if one == key:
                self.cards.show_card(number, replace(self.cards.cards[number], found=self._found[key]))

    def _show_choice(self) -> None:
        for button in self._on_chosen:
            button.configure(state="normal" if self.cards.chosen is not None else "disabled")
        self._show_form()

    def _filter(self, text: str) -> None:
        self.cards.set_filter(text)
        self._show_filter()
        self._show_choice()

    def _on_unfilter(self) -> None:
        self.filter.clear()
        self._show_filter()

    def _show_filter(self) -> None:
        """Show the filter if there are many concepts, and how many of them it leaves."""
        total = len(self.cards.cards)
        self.filter.show_count(self.cards.num_shown, total)
        if total >= MANY or self.cards.filter_text:
            self.filter.grid()
        else:
            self.filter.grid_remove()

    def _is_there(self, number: int) -> bool:
        """Whether this concept still exists: its card is drawn a little longer."""
        return 0 <= number < len(self.app.settings.get("concepts"))

    def _read_in(self, milliseconds: int | None) -> None:
        """Read the folders after a delay; None: not for now."""
        if self._read_job is not None:
            self.after_cancel(self._read_job)
        self._read_job = None if milliseconds is None else self.after(milliseconds, self._read_next)

    def _read_next(self) -> None:
        """Read one folder after the other; cancel one that no concept uses any more."""
        self._read_in(None)
        if self._reading is not None and self._reading[0] not in self._keys:
            self._give_up_reading()
        if self._reading is not None or not self._missing:
            return
        number = next(number for number, key in enumerate(self._keys) if key in self._missing)
        concept, outputs, rule = copy.deepcopy(self.cards.cards[number].concept), self._outputs(), self._rule()
        key, given_up = self._reading = self._keys[number], threading.Event()
        known = self._found  # replaced by a refresh, which makes the result obsolete

        def take(found: ConceptPictures) -> None:
            if given_up.is_set():
                return
            self._reading = None
            known[key] = found
            is_to_be_read = self._read_job is not None  # once typing has stopped
            if known is self._found:
                self._show_found(key)
            if not is_to_be_read:
                self._read_next()  # without delay: the tab is laid out by now

        def fail(error: Exception) -> None:
            name = label_of(f"concepts.{number}.path")
            take(ConceptPictures(error=f"{name} can't be read."))  # and continue with the next folder
            raise error

        self.app.in_background(
            lambda: find_pictures(concept, number, lambda: not given_up.is_set(), outputs, rule), take, fail
        )

    def _outputs(self) -> Outputs:
        return Outputs(*map(self.app.settings.get, OUTPUTS))

    def _rule(self) -> ClipRule | None:
        return clip_rule(self.app.settings.in_effect)

    def _give_up_reading(self) -> None:
        if self._reading is not None:
            self._reading[1].set()
            self._reading = None

    def _drop_form_of_no_concept(self, paths: set[str]) -> None:
        """Remove the form of a removed concept at once, even on a hidden tab: it may still be being built and would not
        find its settings."""
        if self._form_number is not None and self._form_number >= len(self.app.settings.get("concepts")):
            self._drop_form()

    def _on_settings(self, paths: set[str] | None) -> None:
        if not self._is_built:
            return
        if not paths or CLIPS & paths or any(path.partition(".")[0] in ("concepts", *OUTPUTS) for path in paths):
            self.show_concepts()
        if paths and "concepts" not in paths and any(TYPED.fullmatch(path) for path in paths):
            self._read_in(TYPING_MS)

    def _on_problems(self) -> None:
        """When a folder's problem is solved outside the window, read the folder again."""
        wrong = self._wrong_settings()
        solved, self._wrong = self._wrong - wrong, wrong
        if solved and any(found.error for found in self._found.values()):
            self._found = {key: found for key, found in self._found.items() if not found.error}
            self._view.invalidate(set())

    def _on_places(self, settings: set[str]) -> None:
        """Read the folders again that have gone or come back, or whose files were edited in the dataset window."""
        concepts, outputs, rule = self.app.settings.get("concepts"), self._outputs(), self._rule()
        numbers = {int(setting.split(".")[1]) for setting in settings if setting.startswith("concepts.")}
        keys = {scan_key(concepts[number], outputs, rule) for number in numbers if number < len(concepts)}
        if self._reading is not None and self._reading[0] in keys:
            self._give_up_reading()
        if keys:
            self._found = {key: found for key, found in self._found.items() if key not in keys}
            self._view.invalidate(set())

    def _wrong_settings(self) -> set[str]:
        return {problem.path for problem in self.app.problems.all() if problem.path.startswith("concepts.")}

    def _on_choose(self, number: int) -> None:
        self._show_choice()

    def _show_form(self) -> None:
        number = self.cards.chosen
        if number == self._form_number:
            return
        self._drop_form()
        if number is None:
            self._hint.grid()
            return
        self._hint.grid_remove()
        self._form, self._form_number = SettingsForm(self._side, self.app, part_paths("concepts", number)), number
        self._form.grid(row=2, column=0, sticky="ew", padx=(0, 2), pady=(0, 8))

    def _drop_form(self) -> None:
        if self._form is not None:
            self._form.destroy()
        self._form = self._form_number = None

    # --- widgets -----------------------------------------------------------------------------------------------------

    def _build(self) -> Generator[None, None, None]:
        """Build the tab in slices, so that opening it never stalls the window."""
        bar = ctk.CTkFrame(self, fg_color="transparent")
        bar.grid(row=0, column=0, sticky="ew", padx=8, pady=8)
        font = self.app.theme.font()
        actions = (
            ("Add folder…", self.add_folder, False),
            ("Edit…", lambda: self.edit(self._chosen()), True),
            ("Images…", lambda: self.browse(self._chosen()), True),
            ("Duplicate", lambda: self.duplicate(self._chosen()), True),
            ("Remove", lambda: self.remove(self._chosen()), True),
            ("Move up", lambda: self.move(self._chosen(), -1), True),
            ("Move down", lambda: self.move(self._chosen(), 1), True),
            ("Refresh", self.refresh, False),
            ("All images…", lambda: self.browse(None), False),
            ("Check data…", self.check_data, False),
            ("Statistics…", lambda: open_statistics(self.app, None), False),
        )
        made: list[ctk.CTkBaseClass] = []
        for text, command, needs_choice in actions:
            made.append(ctk.CTkButton(bar, text=text, width=70, font=font, command=command))
            if needs_choice:
                self._on_chosen.append(made[-1])
            yield
        self._add = made[0]
        self._summary = ctk.CTkLabel(bar, text="", font=font, text_color=self.app.theme.muted)
        lay_in_rows(bar, [*made, self._summary], self.app.theme)
        self.problem = ProblemNote(self, self.app, "concepts")
        self.problem.grid(row=1, column=0, sticky="ew", padx=12, pady=(0, 8))
        yield
        self._is_built = True
        self.show_concepts()
        if len(self.cards.cards) == 1:
            self.cards.choose(0)

    def _make_side(self) -> ctk.CTkFrame:
        """The card of the selected concept's settings."""
        theme = self.app.theme
        side = ctk.CTkFrame(self.page, fg_color=theme.card, corner_radius=8)
        side.grid_columnconfigure(0, weight=1)
        title = ctk.CTkLabel(side, text="Selected concept", font=theme.font(15, "bold"), anchor="w")
        title.grid(row=0, column=0, sticky="ew", padx=12, pady=(8, 2))
        hint = "Choose a concept to see its settings."
        self._hint = ctk.CTkLabel(side, text=hint, font=theme.font(), text_color=theme.muted, anchor="w")
        wrap_to(side, self._hint, theme)
        self._hint.grid(row=1, column=0, sticky="ew", padx=12, pady=(2, 14))
        return side

    def destroy(self) -> None:
        self._give_up_reading()
        self._read_in(None)
        super().destroy()
