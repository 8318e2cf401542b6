"""A window that makes a new folder of a concept's files by a script: which concept, where to, progress and cancel."""

from __future__ import annotations

import copy
import os
import tkinter as tk
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import customtkinter as ctk

from modules.config.errors import UserError
from modules.config.labels import with_labels
from modules.config.visible_text import visible_text
from modules.ui.keyboard import pressed_once
from modules.ui.models.DatasetView import concept_names
from modules.ui.models.FolderRun import FolderRun, NewFolder, Piece
from modules.ui.models.path_picker import PathQuestion
from modules.ui.models.typed_text import WRONG_SETTING
from modules.ui.theme import Theme
from modules.ui.widgets.dialogs import ask_path, bring_up, set_size, show_over
from modules.ui.widgets.fitting import wrap_to

if TYPE_CHECKING:
    from modules.config.ConceptConfig import ConceptConfig
    from modules.ui.App import App

POLL_SECONDS = 0.3
LABEL_WIDTH = 130
MAX_LETTERS = 600


class FolderWindow(ctk.CTkToplevel):
    """Base class. A subclass adds its choices to `card`, from row 1 on, and says what the script is to do.

    Closing only hides the window, because CustomTkinter never frees one completely; a run goes on.
    """

    script = ""  # in scripts/
    heading = ""  # of the window
    suffix = ""  # of the folder that is proposed
    size, min_size = "640x420", (460, 320)

    def __init__(self, app: App):
        super().__init__(app.root, fg_color=app.theme.page)
        self.app = app
        self.run: FolderRun | None = None
        self.made = NewFolder()  # by the last run
        self._concept_number = 0  # of the last run
        self._names: list[str] = []
        self._proposed = ""
        self.title(self.heading)
        set_size(self, self.size, self.min_size)
        self.grid_columnconfigure(0, weight=1)
        self.card = ctk.CTkFrame(self)
        self.card.grid(row=0, column=0, sticky="ew", padx=12, pady=(12, 8))
        self.card.grid_columnconfigure(1, weight=1)
        self._build_places()
        self.build_choices()
        self._build_end()
        self._end_following = app.every(POLL_SECONDS, self._follow)
        self.bind("<Escape>", lambda event: self.hide())
        self.protocol("WM_DELETE_WINDOW", self.hide)
        show_over(app, self)

    # --- for subclasses to override ----------------------------------------------------------------------------------

    def build_choices(self) -> None:
        """Add the choices to the card."""
        raise NotImplementedError

    def options(self) -> list[str]:
        """The options of the script for what is chosen. Raises UserError."""
        raise NotImplementedError

    def actions(self) -> Sequence[tuple[str, Any]]:
        """(text, command) of the buttons with which the new folder can be used."""
        raise NotImplementedError

    def take_pieces(self, pieces: Sequence[Piece]) -> None:
        """Show what a preview has found."""

    # --- public methods ----------------------------------------------------------------------------------------------

    def show(self, number: int | None) -> None:
        """Show the window for `concepts.<number>`; None: for the first one that is enabled."""
        concepts = self.app.settings.get("concepts")
        self._names = concept_names(concepts)
        enabled = [place for place, concept in enumerate(concepts) if concept.enabled]
        number = number if number is not None and number < len(concepts) else (enabled or [0])[0]
        self.concept_menu.configure(values=self._names)
        if self._names:
            self.concept_menu.set(self._names[number])
        if self.run is None:
            self._propose()
        bring_up(self)
        self.focus_set()

    def hide(self) -> None:
        self.withdraw()

    def start(self, *options: str) -> None:
        """Start the script, or cancel the one that runs. options: in place of a new folder."""
        if self.run is not None:
            self.run.cancel()
            self.buttons["start"].configure(state="disabled")
            self.tell("Ending…")
            return
        try:
            number, concept = self._chosen()
            given = options or ("--to", self._target())
            run = FolderRun(self.script, concept, [*self.options(), *given])
        except UserError as error:
            self.tell(str(error), is_wrong=True)
            return
        self.run, self._concept_number, self.made = run, number, NewFolder()
        self._show_running(True)
        self._follow()
        self.app.in_background(run.run, self._take_end, self._fail)

    # --- a run -------------------------------------------------------------------------------------------------------

    def _chosen(self) -> tuple[int, ConceptConfig]:
        """Raises UserError."""
        config = self.app.settings.config()
        if config is None:
            raise UserError(WRONG_SETTING)
        name = self.concept_menu.get()
        if name not in self._names or self._names.index(name) >= len(config.concepts):
            raise UserError("The concept is not there any more: choose another one.")
        number = self._names.index(name)
        concept = copy.deepcopy(config.concepts[number])
        concept.path = os.path.abspath(os.path.expanduser(concept.path))
        return number, concept

    def _target(self) -> str:
        """Raises UserError."""
        target = self.target.get().strip()
        if not target:
            raise UserError("New folder: is empty; say where to write.")
        return os.path.abspath(os.path.expanduser(target))

    def _follow(self) -> None:
        """Show what the script has done meanwhile."""
        run = self.run
        if run is None:
            return
        if pieces := run.take_pieces():
            self.take_pieces(pieces)
        progress = run.progress
        if not run.is_canceled:
            self.tell(f"{progress.text}…")
        if progress.share is not None:
            if self.bar.cget("mode") != "determinate":
                self.bar.stop()
                self.bar.configure(mode="determinate")
            self.bar.set(progress.share)

    def _take_end(self, made: NewFolder) -> None:
        run = self.run
        self._follow()
        self.run = None
        self.made = made
        self._show_running(False)
        left_out = [f"Left out: {path} ({reason})." for path, reason in made.left_out[:3]]
        more = [f"{len(made.left_out) - 3:,} more left out."] if len(made.left_out) > 3 else []
        canceled = "Canceled: nothing was written." if run is not None and run.is_canceled else ""
        self.tell("\n".join(filter(None, [canceled, made.text, *left_out, *more])))
        if made.path:
            self._propose()

    def _fail(self, error: Exception) -> None:
        self.run = None
        self._show_running(False)
        self.tell(str(error) if isinstance(error, UserError) else "It has failed.", is_wrong=True)
        if not isinstance(error, UserError):
            raise error

    def add_concept(self) -> None:
        """Add the new folder as a concept."""
        settings = {**self.made.settings, "path": self.made.path}
        self.app.settings.add("concepts", settings)
        self.tell(f"{self.made.path} was added to the dataset.")
        self._show_actions(False)

    def replace_concept(self) -> None:
        """Use the new folder in place of the one that it was made of."""
        number = self._concept_number
        self.app.settings.set_many(
            {
                f"concepts.{number}.{name}": value
                for name, value in {**self.made.settings, "path": self.made.path}.items()
            }
        )
        self.tell(f"The concept uses {self.made.path} now; Undo in the main window goes back.")
        self._show_actions(False)

    # --- display -----------------------------------------------------------------------------------------------------

    def tell(self, text: str, is_wrong: bool = False) -> None:
        text = visible_text(with_labels(text))[:MAX_LETTERS]
        self.state_label.configure(text=text, text_color=Theme.error if is_wrong else Theme.text)

    def _propose(self) -> None:
        """Propose a folder beside the concept's, unless another one was typed."""
        number = self._names.index(self.concept_menu.get()) if self.concept_menu.get() in self._names else None
        concepts = self.app.settings.get("concepts")
        if number is None or number >= len(concepts) or self.target.get() != self._proposed:
            return
        stem = os.path.normpath(os.path.expanduser(concepts[number].path)) + self.suffix
        names = [stem, *(f"{stem}-{place}" for place in range(2, 100))]
        self._proposed = next((name for name in names if not os.path.lexists(name)), stem)
        self.target.delete(0, "end")
        self.target.insert(0, self._proposed)

    def _show_running(self, is_running: bool) -> None:
        self.buttons["start"].configure(text="Cancel" if is_running else "Start", state="normal")
        for name, button in self.buttons.items():
            if name not in ("start", "close"):
                button.configure(state="disabled" if is_running else "normal")
        self._show_actions(not is_running and bool(self.made.path))
        if is_running:
            self.bar.configure(mode="indeterminate")
            self.bar.start()
            self.bar.grid()
        else:
            self.bar.stop()
            self.bar.grid_remove()

    def _show_actions(self, are_shown: bool) -> None:
        for button in self._actions:
            (button.grid if are_shown else button.grid_remove)()

    # --- widgets -----------------------------------------------------------------------------------------------------

    def lay(self, row: int, text: str, widget: tk.Misc, padx: tuple[int, int] = (0, 12)) -> None:
        """Put a widget with its label into a row of the card."""
        label = ctk.CTkLabel(self.card, text=text, font=self.app.theme.font(), anchor="w", width=LABEL_WIDTH)
        label.grid(row=row, column=0, sticky="w", padx=(12, 8), pady=(0, 8))
        widget.grid(row=row, column=1, sticky="ew", padx=padx, pady=(0, 8))  # type: ignore[attr-defined] # a widget

    def _build_places(self) -> None:
        font = self.app.theme.font()
        self.concept_menu = ctk.CTkOptionMenu(self.card, values=[""], font=font, command=lambda name: self._propose())
        label = ctk.CTkLabel(self.card, text="Concept", font=font, anchor="w", width=LABEL_WIDTH)
        label.grid(row=0, column=0, sticky="w", padx=(12, 8), pady=(12, 8))
        self.concept_menu.grid(row=0, column=1, sticky="w", padx=(0, 12), pady=(12, 8))
        self.target = ctk.CTkEntry(self.card, font=font, placeholder_text="must not exist")
        self.lay(90, "New folder", self.target, (0, 6))
        choose = ctk.CTkButton(self.card, text="Beside…", width=80, font=font, command=self._choose_folder)
        choose.grid(row=90, column=2, padx=(0, 12), pady=(0, 8))

    def _choose_folder(self) -> None:
        """Choose the folder in which the new one is to be."""
        question = PathQuestion("folder", "Where to make the new folder", os.path.dirname(self.target.get()))
        if folder := ask_path(self.app, question, self):
            name = os.path.basename(os.path.normpath(self.target.get())) or "new"
            self.target.delete(0, "end")
            self.target.insert(0, os.path.join(folder, name))

    def _build_end(self) -> None:
        font = self.app.theme.font()
        end = ctk.CTkFrame(self, fg_color="transparent")
        end.grid(row=9, column=0, sticky="ew", padx=12, pady=(0, 12))
        end.grid_columnconfigure(0, weight=1)
        self.state_label = ctk.CTkLabel(end, text="", font=font, anchor="w", justify="left")
        self.state_label.grid(row=0, column=0, sticky="ew")
        wrap_to(end, self.state_label, self.app.theme)
        self.bar = ctk.CTkProgressBar(end, height=9)
        self.bar.grid(row=1, column=0, sticky="ew", pady=(4, 0))
        self.bar.grid_remove()
        row = ctk.CTkFrame(end, fg_color="transparent")
        row.grid(row=2, column=0, sticky="e", pady=(8, 0))
        self._actions = [
            ctk.CTkButton(row, text=text, font=font, width=110, command=command) for text, command in self.actions()
        ]
        colours = {"fg_color": Theme.selected, "hover_color": Theme.selected_hover, "text_color": Theme.on_accent}
        self.buttons = {"close": ctk.CTkButton(row, text="Close", width=80, font=font, command=self.hide)}
        self.add_buttons(row)
        start = ctk.CTkButton(row, text="Start", width=90, font=font, command=pressed_once(self.start), **colours)
        self.buttons["start"] = start
        for column, button in enumerate((*self._actions, *self.buttons.values())):
            button.grid(row=0, column=column, padx=(8, 0))
        self._show_actions(False)

    def add_buttons(self, row: ctk.CTkFrame) -> None:
        """Add buttons to `buttons`, between those that close and start."""

    def destroy(self) -> None:
        if self.run is not None:
            self.run.cancel()
        self._end_following()
        super().destroy()
