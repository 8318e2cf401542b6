"""What else can be done with all images of a concept: each tool has a window, which is imported when it is opened."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from modules.ui.widgets.DatasetHead import Tool
from modules.ui.widgets.dialogs import open_window

if TYPE_CHECKING:
    from modules.ui.App import App


def tools_of(app: App, number: Callable[[], int | None]) -> tuple[Tool, ...]:
    """The buttons of the dataset window. number: of the concept that it shows; None: all."""
    return (
        Tool("Statistics…", lambda: open_statistics(app, number()), "Shapes, buckets and captions as plots."),
        Tool("Split videos…", lambda: open_split_videos(app, number()), "By scene and length, or into images."),
        Tool("Cleaned copy…", lambda: open_cleaned_copy(app, number()), "Without what is left out; crops are cut."),
    )


def open_statistics(app: App, number: int | None) -> None:
    """Open the figures of `concepts.<number>`, whose bars lead to the dataset window; None: of all that are enabled."""
    from modules.ui.windows.StatisticsWindow import StatisticsWindow

    def pick(of_number: int | None, paths: Sequence[str], what: str) -> None:
        from modules.ui.windows.DatasetWindow import open_dataset  # which imports this file

        open_dataset(app, of_number).pick(paths, what)

    window = next((one for one in app.root.winfo_children() if type(one) is StatisticsWindow), None)
    (window or StatisticsWindow(app, pick)).show(number)


def open_split_videos(app: App, number: int | None) -> None:
    """number: of the concept; None: the first that is enabled."""
    from modules.ui.windows.SplitVideosWindow import SplitVideosWindow

    open_window(app, SplitVideosWindow).show(number)


def open_cleaned_copy(app: App, number: int | None) -> None:
    """number: as above."""
    from modules.ui.windows.CopyDatasetWindow import CopyDatasetWindow

    open_window(app, CopyDatasetWindow).show(number)
