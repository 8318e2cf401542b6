"""How the dataset window is divided between the grid and the current image."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from modules.ui.windows.DatasetWindow import DatasetWindow

NARROW, WIDE = 860, 1000  # unscaled pixels
LOW = 760  # unscaled pixels of the window's height, below which toolbars leave their place to the image

Division = tuple[tuple[int, int], bool]


def share_room(window: DatasetWindow, present: Division | None) -> Division:
    """Divide the window between the grid and the current image, which needs half of the width in a narrow window, and
    more in a low one, where all of the height is left to editing it. present, and what is returned: how it is divided.
    """
    scaled, is_editing = window.app.theme.scaled, window.side.is_editing
    is_low = 1 < window.winfo_height() < scaled(LOW)
    window.side.lay_low(is_low)
    others = (2, 3) if is_editing else (1, 1) if window.winfo_width() < scaled(NARROW) else (3, 2)
    has_room = window.winfo_width() >= scaled(WIDE) and not is_editing  # for two thumbnails side by side
    shares = ((1, 2) if has_room else (2, 5)) if is_low else others
    division = shares, is_low and is_editing
    if division != present:
        for column, share in enumerate(shares):
            window.grid_columnconfigure(column, weight=share)
        window.head.fold(is_low and is_editing)
        (window.bar.grid_remove if is_low and is_editing else window.bar.grid)()
    return division
