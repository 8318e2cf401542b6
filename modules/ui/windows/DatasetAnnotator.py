"""What a window in which a model works on images needs of those that the dataset window shows."""

from __future__ import annotations

import tkinter as tk
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import TYPE_CHECKING, Literal

from modules.config.errors import UserError

if TYPE_CHECKING:
    from modules.config.ConceptConfig import ConceptConfig
    from modules.ui.App import App
    from modules.ui.models.DatasetView import DatasetItem
    from modules.ui.windows.AnnotatorWindow import AnnotatorWindow
    from modules.ui.windows.CaptionPane import CaptionPane


class DatasetAnnotator:
    """The images may change while the window is open, which is made when it is first opened.

    button: opens it, and shows how far a run is. make: makes the window. renew: shows items whose files have changed.
    step: undoes or redoes the last change to the files of a concept, by its number.
    """

    def __init__(
        self,
        pane: CaptionPane,
        button: str,
        make: Callable[[App, tk.Misc, DatasetAnnotator], AnnotatorWindow],
        renew: Callable[[Sequence[DatasetItem]], None],
        step: Callable[[int, Literal["undo", "redo"]], None],
    ):
        self._pane, self._button, self._make = pane, button, make
        self._renew, self._step = renew, step
        self._text = ""  # of the button while no run works
        self.window: AnnotatorWindow | None = None

    def open_window(self) -> None:
        """Open the window, or bring it to the front."""
        self._pane.save()
        if self.window is not None and self.window.winfo_exists():
            self.window.reopen()
        else:
            self.window = self._make(self._pane.app, self._pane.winfo_toplevel(), self)

    def items(self) -> Sequence[DatasetItem]:
        """All images of the dataset window."""
        return self._pane.items()

    def shown(self) -> Sequence[DatasetItem]:
        """Those that pass its filter and its search."""
        return self._pane.shown()

    def selected(self) -> Sequence[DatasetItem]:
        return self._pane.selected()

    def concept(self, number: int) -> ConceptConfig:
        """Raises UserError if the dataset window was closed meanwhile."""
        if self._pane.work is None:
            raise UserError("The dataset window is closed: open it again.")
        return self._pane.work.concept(number)

    def show_written(self, paths: Collection[str]) -> None:
        """Show these images as their files are now."""
        self._renew([item for item in self.items() if item.path in paths])

    def take_back(self, label: str, numbers: Iterable[int]) -> None:
        """Undo the last change in these concepts. label: of that change. Raises UserError if it is another one."""
        work = self._pane.work
        journals = {number: work.journal(number) if work is not None else None for number in numbers}
        last = [number for number, one in journals.items() if one is not None and one.next_undo_label == label]
        if not last:
            raise UserError(f"{label}: is not the last change any more; undo what came after it first, with Ctrl+Z.")
        self._pane.save()
        for number in last:
            self._step(number, "undo")

    def show_progress(self, text: str) -> None:
        """Show how far a run is, as its window may be hidden. text: "" if none works."""
        button = self._pane.buttons[self._button]
        self._text = self._text or button.cget("text")
        button.configure(text=text or self._text)
        self._pane.show_selection()


# their models of servers and options take a while to import, which an opening dataset window would wait for


def make_captioner(app: App, parent: tk.Misc, dataset: DatasetAnnotator) -> AnnotatorWindow:
    from modules.ui.windows.CaptionerWindow import CaptionerWindow

    return CaptionerWindow(app, parent, dataset)


def make_masker(app: App, parent: tk.Misc, dataset: DatasetAnnotator) -> AnnotatorWindow:
    from modules.ui.windows.MasksWindow import MasksWindow

    return MasksWindow(app, parent, dataset)
