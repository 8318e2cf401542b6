"""What the windows have in common in which a model works on images: choices, for which images, previews, runs."""

from __future__ import annotations

import tkinter as tk
from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import customtkinter as ctk

from modules.ui.models.annotator_choices import parts_of
from modules.ui.models.path_picker import PathQuestion
from modules.ui.theme import Theme
from modules.ui.widgets.AnnotatorPanel import AnnotatorPanel
from modules.ui.widgets.AnnotatorPreviews import AnnotatorPreviews
from modules.ui.widgets.dialogs import ask_path, bring_up, set_size, show_over
from modules.ui.widgets.fitting import wrap_to
from modules.ui.widgets.Page import Page
from modules.ui.widgets.scrolling import scroll_to

if TYPE_CHECKING:
    from modules.ui.App import App
    from modules.ui.models.AnnotatorRun import AnnotatorRun, Part, Result
    from modules.ui.models.DatasetView import DatasetItem
    from modules.ui.windows.DatasetAnnotator import DatasetAnnotator

LABEL_WIDTH = 150
COUNT_SECONDS = 0.5  # after which the numbers of images are shown again
SELECTED, SHOWN, ALL = "Selected", "Shown", "All"


class AnnotatorWindow(ctk.CTkToplevel):
    """A subclass builds its cards in `build`, and starts a run of what is chosen in `start_run`.

    Closing only hides the window: a run goes on, and what is typed stays.
    """

    def __init__(self, app: App, parent: tk.Misc, dataset: DatasetAnnotator, title: str, size: str):
        super().__init__(parent, fg_color=app.theme.page)
        self.app, self._dataset = app, dataset
        self._undone_by: tuple[str, list[int]] = ("", [])  # label and concepts of the last run
        self.begins_anew = False  # whether the next run does, as what a canceled one had done was taken back
        self.title(title)
        self.transient(parent)
        set_size(self, size, (520, 380))
        self.grid_columnconfigure(0, weight=1)
        self.grid_rowconfigure(0, weight=1)
        self._page = Page(self)
        self._page.grid(row=0, column=0, sticky="nsew", padx=(8, 2), pady=(8, 0))
        self._page.grid_columnconfigure(0, weight=1)
        self._num_cards = 0
        self._rows: dict[str, list[tk.Misc]] = {}  # widgets that are shown for a choice alone
        self._texts: dict[str, str] = {}  # of the choice of images -> what it says
        self.build()
        self.previews = AnnotatorPreviews(self._page, app)
        self.previews.grid(row=self._num_cards, column=0, sticky="ew", padx=6)
        self.panel = AnnotatorPanel(
            self,
            app,
            self._make_run,
            self._take_back,
            self.hide,
            self._show_preview,
            dataset.show_written,
            dataset.show_progress,
        )
        self.panel.grid(row=1, column=0, sticky="ew", padx=14, pady=(8, 14))
        self.show_rows()
        self._end = app.every(COUNT_SECONDS, self._count)
        self.bind("<Escape>", lambda event: self.hide())
        self.protocol("WM_DELETE_WINDOW", self.hide)
        show_over(app, self)

    # --- for subclasses to override ----------------------------------------------------------------------------------

    @abstractmethod
    def build(self) -> None:
        """Build the cards, the last of which calls `add_which`."""

    @abstractmethod
    def start_run(self, preview: bool) -> tuple[AnnotatorRun | None, str]:
        """A run of what is chosen, yet to be called, and the label of its step to undo; no run if the person has
        decided against it. Raises UserError."""

    def show_rows(self, choice: object = None) -> None:
        """Show the fields that belong to what is chosen."""

    # --- public methods ----------------------------------------------------------------------------------------------

    def hide(self) -> None:
        self.withdraw()

    def reopen(self) -> None:
        bring_up(self)
        self.focus_set()

    def parts(self, videos: bool, only_clips: str, preview: bool) -> list[Part]:
        """The chosen images by their concepts. Raises UserError if there are none. videos, only_clips: as of
        `parts_of`. preview: whether they are for one."""
        chosen, are_all = self._chosen(), self._which() == ALL
        whole = [item for item in chosen if not item.problem]
        if preview and 0 < len(whole) < len(chosen):  # it shows a few: those that are damaged would show nothing
            chosen, are_all = whole, False
        return parts_of(chosen, self._dataset.concept, not are_all, videos, only_clips)

    # --- a run -------------------------------------------------------------------------------------------------------

    def _make_run(self, preview: bool) -> AnnotatorRun | None:
        run, label = self.start_run(preview)
        if run is not None and not preview:
            self._undone_by = label, sorted({item.concept for item in self._chosen()})
            self.begins_anew = False
        return run

    def _take_back(self) -> None:
        self._dataset.take_back(*self._undone_by)
        self.begins_anew = True

    def _show_preview(self, results: Sequence[Result]) -> None:
        if not results:
            self.previews.clear()
        self.previews.add(results)
        if results:
            scroll_to(self.previews)

    # --- which images ------------------------------------------------------------------------------------------------

    def add_which(self, card: ctk.CTkFrame, row: int) -> None:
        """Add the choice of the images that a run is for."""
        self.which: ctk.CTkSegmentedButton = ctk.CTkSegmentedButton(card, values=[], font=self.app.theme.font())
        self.which.grid(row=row, column=0, columnspan=3, sticky="w", padx=12, pady=(0, 8))
        self._count()

    def _count(self) -> None:
        """Let the choice of images follow the selection and the filter."""
        counts = {SELECTED: self._dataset.selected(), SHOWN: self._dataset.shown(), ALL: self._dataset.items()}
        if len(counts[SHOWN]) == len(counts[ALL]):
            del counts[SHOWN]
        texts = {name: f"{name} ({len(items):,})" for name, items in counts.items()}
        if texts == self._texts:
            return
        chosen = self._which()
        if not chosen:
            chosen = SELECTED if len(counts[SELECTED]) > 1 else SHOWN
        elif chosen == ALL and SHOWN in texts and SHOWN not in self._texts:
            chosen = SHOWN  # a filter was set: nothing is done to what it hides unless that is asked for
        self._texts = texts
        self.which.configure(values=list(texts.values()))
        self.which.set(texts.get(chosen, texts[ALL]))

    def _which(self) -> str:
        return next((name for name, text in self._texts.items() if text == self.which.get()), "")

    def _chosen(self) -> Sequence[DatasetItem]:
        of_choice = {SELECTED: self._dataset.selected, SHOWN: self._dataset.shown}
        return of_choice.get(self._which(), self._dataset.items)()

    # --- widgets -----------------------------------------------------------------------------------------------------

    def make_card(self, title: str) -> ctk.CTkFrame:
        card = ctk.CTkFrame(self._page)
        card.grid(row=self._num_cards, column=0, sticky="ew", padx=6, pady=(0, 8))
        card.grid_columnconfigure(1, weight=1)
        label = ctk.CTkLabel(card, text=title, font=self.app.theme.font(13, "bold"), anchor="w")
        label.grid(row=0, column=0, columnspan=3, sticky="w", padx=12, pady=(8, 4))
        self._num_cards += 1
        return card

    def lay(self, card: ctk.CTkFrame, row: int, text: str, widget: ctk.CTkBaseClass, only: str = "") -> None:
        """Put a widget with its label into a row. only: for which choice it is shown; "": always."""
        label = ctk.CTkLabel(card, text=text, font=self.app.theme.font(), anchor="w", width=LABEL_WIDTH)
        label.grid(row=row, column=0, sticky="nw", padx=(12, 8), pady=(0, 8))
        widget.grid(row=row, column=1, sticky="ew", padx=(0, 12), pady=(0, 8))
        if only:
            self._rows.setdefault(only, []).extend((label, widget))

    def entry(self, card: ctk.CTkFrame, text: str, hint: str = "", **options: Any) -> ctk.CTkEntry:
        entry = ctk.CTkEntry(card, font=self.app.theme.font(), placeholder_text=hint, **options)
        if text:
            entry.insert(0, text)
        return entry

    def with_text(self, card: ctk.CTkFrame, entry: ctk.CTkEntry, text: str) -> ctk.CTkFrame:
        """An entry with a text after it, which is wrapped to the width that there is."""
        frame = ctk.CTkFrame(card, fg_color="transparent")
        frame.grid_columnconfigure(1, weight=1)
        entry.grid(in_=frame, row=0, column=0)
        entry.lift()  # above the frame, which was made later
        label = ctk.CTkLabel(
            frame, text=text, font=self.app.theme.font(12), text_color=Theme.muted, anchor="w", justify="left"
        )
        label.grid(row=0, column=1, padx=8, sticky="ew")
        wrap_to(frame, label, self.app.theme, taken=entry.cget("width") + 16)
        return frame

    def tick(
        self, card: ctk.CTkFrame, row: int, text: str, command: Callable[[], None] | None = None
    ) -> ctk.CTkCheckBox:
        box = ctk.CTkCheckBox(card, text=text, font=self.app.theme.font(), command=command)
        box.grid(row=row, column=0, columnspan=3, sticky="w", padx=12, pady=(0, 8))
        return box

    def file_button(
        self, card: ctk.CTkFrame, row: int, box: ctk.CTkComboBox | ctk.CTkEntry, question: PathQuestion
    ) -> ctk.CTkButton:
        """A button that chooses what stands in a box."""

        def choose() -> None:
            if path := ask_path(self.app, replace(question, start=box.get()), self):
                if isinstance(box, ctk.CTkEntry):
                    box.delete(0, "end")
                    box.insert(0, path)
                else:
                    box.set(path)
                self.show_rows()

        text = "Folder…" if question.kind == "folder" else "File…"
        button = ctk.CTkButton(card, text=text, width=80, font=self.app.theme.font(), command=choose)
        button.grid(row=row, column=2, padx=(0, 12), pady=(0, 8), sticky="n")
        return button

    def show_only(self, shown: dict[str, bool]) -> None:
        """Show the rows of these choices, or hide them."""
        for name, widgets in self._rows.items():
            for widget in widgets:
                (widget.grid if shown[name] else widget.grid_remove)()  # type: ignore[attr-defined] # all are in grids

    def destroy(self) -> None:
        self._end()
        super().destroy()
