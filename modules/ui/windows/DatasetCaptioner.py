"""What the window in which a model writes captions needs of the images that the dataset window shows."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from typing import TYPE_CHECKING, Literal

from modules.config.errors import UserError

if TYPE_CHECKING:
    from modules.config.ConceptConfig import ConceptConfig
    from modules.ui.models.DatasetView import DatasetItem
    from modules.ui.windows.CaptionerWindow import CaptionerWindow
    from modules.ui.windows.CaptionPane import CaptionPane

OPEN = "Caption with a model…"
OPEN_HINT = "A model on this machine, or a server, writes captions for the images that have none."


class DatasetCaptioner:
    """The images may change while the window is open, which is made when it is first opened.

    selected, items: the selected images, and all. renew: shows items whose files have changed. step: undoes or redoes
    the last change to the files of a concept, by its number.
    """

    def __init__(
        self,
        pane: CaptionPane,
        selected: Callable[[], Sequence[DatasetItem]],
        items: Callable[[], Sequence[DatasetItem]],
        renew: Callable[[Sequence[DatasetItem]], None],
        step: Callable[[int, Literal["undo", "redo"]], None],
    ):
        self._pane, self._renew, self._step = pane, renew, step
        self.selected, self.items = selected, items
        self.window: CaptionerWindow | None = None

    def open_window(self) -> None:
        """Open the window, or bring it to the front."""
        self._pane.save()
        if self.window is not None and self.window.winfo_exists():
            self.window.reopen()
            return
        # its models of servers and options take a while to import, which an opening dataset window would wait for
        from modules.ui.windows.CaptionerWindow import CaptionerWindow

        self.window = CaptionerWindow(self._pane.app, self._pane.winfo_toplevel(), self)

    def concept(self, number: int) -> ConceptConfig:
        """Raises UserError if the dataset window was closed meanwhile."""
        if self._pane.work is None:
            raise UserError("The dataset window is closed: open it again.")
        return self._pane.work.concept(number)

    def show_written(self, paths: Collection[str]) -> None:
        """Show the captions of these images as they are in their files now."""
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
        self._pane.buttons["captioner"].configure(text=text or OPEN)
        self._pane.show_selection()
