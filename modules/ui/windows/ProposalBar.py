"""The painter's tool that asks a model for a part of the mask: by clicks, by words, or for the subject."""

from __future__ import annotations

import tkinter as tk
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import customtkinter as ctk
import numpy as np

from modules.config.errors import UserError
from modules.ui.models.MaskerChoices import WAYS, MaskerChoices, Way
from modules.ui.models.MaskProposals import MaskProposals
from modules.ui.models.path_picker import PathQuestion
from modules.ui.widgets.dialogs import ask_path
from modules.ui.widgets.FoldingRow import FoldingRow
from modules.ui.widgets.MaskCanvas import MaskCanvas
from modules.ui.widgets.Tooltip import Tooltip

if TYPE_CHECKING:
    from modules.ui.App import App
    from modules.ui.models.open_mask import OpenMask

POLL_SECONDS = 0.3
OFFERED: tuple[Way, ...] = ("clicks", "words", "subject")
CLICK_HINT = "Click on what is to be masked; the right button, or Shift, on what is not."
FIND_HINT = "Find asks the model; Add makes what it proposes a part of the mask."
PROPOSED = "Proposed in blue: Add (Return) makes it a part of the mask."


class ProposalBar(ctk.CTkFrame):
    """Its process is kept until `end`, or until it is idle.

    opened: the mask that is painted. apply: makes another mask of it, as one step. on_state: called when `text` has
    changed.
    """

    def __init__(
        self,
        parent: tk.Misc,
        app: App,
        canvas: MaskCanvas,
        opened: Callable[[], OpenMask | None],
        apply: Callable[[Callable[[np.ndarray], np.ndarray]], None],
        on_state: Callable[[], None],
    ):
        super().__init__(parent, fg_color="transparent")
        self.app, self._canvas = app, canvas
        self._opened, self._apply = opened, apply
        self._on_state: Callable[[], None] = lambda: None  # until it is built
        self.proposals = MaskProposals()
        self.text, self.is_wrong = CLICK_HINT, False
        self._clicks: list[tuple[float, float, bool]] = []
        self._mask: np.ndarray | None = None
        self._is_asking = self._asks_again = False
        self._version = 0  # of what is asked for, so that no answer comes to another image
        self._kept = MaskerChoices.of_values(app.preferences.masker)
        self._build()
        self._on_state = on_state
        self._end = app.every(POLL_SECONDS, self._follow)

    # --- public methods ----------------------------------------------------------------------------------------------

    @property
    def choices(self) -> MaskerChoices:
        """What is chosen and typed now, with the other choices for masks as they are kept."""
        way = next(way for way in OFFERED if WAYS[way].label == self.way.get())
        model = {f"{way}_model": self.model.get().strip()}
        return replace(self._kept, way=way, words=self.words.get(), **model)

    @property
    def mask(self) -> np.ndarray | None:
        """What is proposed; None while nothing is."""
        return self._mask

    def add_click(self, x: float, y: float, is_inside: bool) -> None:
        """Ask for what is at a place of the image, or for less than that."""
        if self.choices.way != "clicks":
            self._tell(FIND_HINT)
            return
        self._clicks.append((x, y, is_inside))
        self._click()

    def drop_click(self) -> None:
        """Forget the last click."""
        if self._clicks:
            self._clicks.pop()
            self._click()

    def find(self) -> None:
        """Ask the model, or cancel what it was asked."""
        if self._is_asking:
            self.end()
            self._tell("Canceled.")
        else:
            self._ask()

    def accept(self, how: str = "add") -> None:
        """Make what is proposed a part of the mask ("add"), take it away ("less"), or let it be the mask ("only")."""
        mask = self._mask
        if mask is None or self._canvas.is_busy:
            return
        changes: dict[str, Callable[[np.ndarray], np.ndarray]] = {
            "add": lambda values: np.maximum(values, mask),
            "less": lambda values: np.minimum(values, 255 - mask),
            "only": lambda values: mask,
        }
        self.drop()
        self._apply(changes[how])

    def drop(self) -> bool:
        """Forget clicks and proposal; whether there were any."""
        had_any = bool(self._clicks) or self._mask is not None
        self._version += 1
        self._clicks, self._asks_again = [], False
        self._show(None)
        self._tell(self._hint)
        return had_any

    def end(self) -> None:
        """End the process; what it was asked is not answered any more."""
        self.drop()
        self.proposals.end()

    # --- asking ------------------------------------------------------------------------------------------------------

    @property
    def _hint(self) -> str:
        return CLICK_HINT if self.choices.way == "clicks" else FIND_HINT

    def _click(self) -> None:
        if any(is_inside for _, _, is_inside in self._clicks):
            self._show(self._mask)
            self._ask()
        else:
            self._version += 1
            self._show(None)
            self._tell(CLICK_HINT)

    def _ask(self) -> None:
        opened, choices, clicks = self._opened(), self.choices, tuple(self._clicks)
        if opened is None:
            return
        try:
            choices.check_model()
        except UserError as error:
            self._tell(str(error), is_wrong=True)
            return
        if self._is_asking:
            self._asks_again = True
            return
        self._kept = choices
        many = MaskerChoices.of_values(self.app.preferences.masker).way  # of the window for many images
        self.app.preferences.masker = replace(choices, way=many, painter_way=choices.way).to_values()
        version, proposals = self._version, self.proposals
        self._is_asking = True
        self.find_button.configure(text="Cancel")
        self._follow()
        self.app.in_background(
            lambda: proposals.ask(opened, choices, clicks),
            lambda mask: self._take(version, mask),
            lambda error: self._fail(version, error),
        )

    def _take(self, version: int, mask: np.ndarray | None) -> None:
        if not self._finish():
            return
        if version == self._version and mask is not None:
            self._show(mask)
            self._tell(PROPOSED if mask.any() else "The model has found nothing; try another place or other words.")
        if self._asks_again:
            self._asks_again = False
            self._ask()

    def _fail(self, version: int, error: Exception) -> None:
        is_there = self._finish()
        if not isinstance(error, UserError):
            raise error
        if is_there and version == self._version:
            self._asks_again = False
            self._clicks = []
            self._show(None)
            self._tell(str(error), is_wrong=True)
        elif is_there and self._asks_again:
            self._asks_again = False
            self._ask()

    def _finish(self) -> bool:
        """Whether there is still a window that shows an answer."""
        self._is_asking = False
        if not self.winfo_exists():
            return False
        self.find_button.configure(text="Find")
        return True

    def _follow(self) -> None:
        if self._is_asking:
            self._tell(f"{self.proposals.state or 'Starting'}…")
        else:
            self.proposals.end_if_idle()

    def _show(self, mask: np.ndarray | None) -> None:
        self._mask = mask
        self._canvas.show_proposal(mask, self._clicks)
        for button in self.buttons.values():
            button.configure(state="disabled" if mask is None else "normal")

    def _tell(self, text: str, is_wrong: bool = False) -> None:
        if (text, is_wrong) != (self.text, self.is_wrong):
            self.text, self.is_wrong = text, is_wrong
            self._on_state()

    # --- widgets -----------------------------------------------------------------------------------------------------

    def _choose_way(self, label: str = "") -> None:
        """Show the model and the fields of the way that is chosen."""
        way = self.choices.way
        facts = next(facts for one, facts in WAYS.items() if one == way)
        self.model.configure(values=list(facts.examples))
        self.model.set(replace(self._kept, way=way).model)
        self._file.configure(text="File…" if facts.file_type else "Folder…")
        (self.words.grid if way == "words" else self.words.grid_remove)()
        self.drop()

    def _choose_file(self) -> None:
        file_type = next(facts.file_type for facts in WAYS.values() if facts.label == self.way.get())
        question = PathQuestion("folder", "Folder of a model for masks", self.model.get())
        if file_type:
            question = PathQuestion("file", "Model for masks", self.model.get(), types=[("ONNX file", file_type)])
        if path := ask_path(self.app, question, self):
            self.model.set(path)

    def _build(self) -> None:
        font, theme = self.app.theme.font(12), self.app.theme
        self.grid_columnconfigure(1, weight=1)
        labels = [WAYS[way].label for way in OFFERED]
        self.way = ctk.CTkOptionMenu(self, values=labels, width=130, height=26, font=font, command=self._choose_way)
        self.way.set(next((WAYS[way].label for way in OFFERED if way == self._kept.painter_way), labels[0]))
        self.way.grid(row=0, column=0, padx=(4, 6), pady=(0, 4))
        self.model = ctk.CTkComboBox(self, values=[], height=26, width=80, font=font)
        self.model.grid(row=0, column=1, sticky="ew", pady=(0, 4))
        self._file = ctk.CTkButton(self, text="Folder…", width=60, height=26, font=font, command=self._choose_file)
        self._file.grid(row=0, column=2, padx=(6, 4), pady=(0, 4))
        line = ctk.CTkFrame(self, fg_color="transparent")
        line.grid(row=1, column=0, columnspan=3, sticky="ew")
        line.grid_columnconfigure(1, weight=1)
        self.words = ctk.CTkEntry(line, height=26, font=font, width=190, placeholder_text="words, such as face, hair")
        if self._kept.words:
            self.words.insert(0, self._kept.words)
        self.words.grid(row=0, column=0, sticky="ew", padx=(4, 6))
        self.words.bind("<Return>", lambda event: self.find())
        bar = ctk.CTkFrame(line, fg_color="transparent")
        bar.grid(row=0, column=1, sticky="ew")
        self.find_button = ctk.CTkButton(bar, text="Find", width=56, height=26, font=font, command=self.find)
        Tooltip(self.find_button, theme, lambda: "Ask the model, or cancel what it was asked.")
        self.buttons: dict[str, ctk.CTkButton] = {}
        for name, text, command, hint in (
            ("add", "Add", lambda: self.accept("add"), "Make what is proposed a part of the mask (Return)."),
            ("less", "Take away", lambda: self.accept("less"), "Take what is proposed away from the mask."),
            ("only", "Replace", lambda: self.accept("only"), "Let what is proposed be the mask."),
            ("drop", "Discard", self.drop, "Forget what is proposed (Escape)."),
        ):
            self.buttons[name] = ctk.CTkButton(bar, text=text, width=44, height=26, font=font, command=command)
            Tooltip(self.buttons[name], theme, partial(str, hint))
        kept = [self.find_button, self.buttons["add"]]
        self.row = FoldingRow(bar, [self.find_button, *self.buttons.values()], self.app, lambda: kept)
        self._choose_way()

    def destroy(self) -> None:
        self._end()
        self.proposals.end()
        super().destroy()
