"""The keys of the dataset window, as a window shows them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from modules.ui.windows.TextWindow import TextWindow

if TYPE_CHECKING:
    from modules.ui.App import App

KEYS: dict[str, dict[str, str]] = {
    "Anywhere": {
        "Alt+Down, Alt+Up": "next image, image before",
        "Ctrl+F": "search",
        "F5": "read the folders again",
        "Tab, Shift+Tab": "next part of the window, part before",
        "Ctrl+Z, Ctrl+Y": "undo, redo",
        "Ctrl+S": "save the caption, the crop or the mask",
        "Ctrl+E": "edit the captions of the selected images",
        "Ctrl+Shift+C": "copy the caption",
        "Ctrl+Shift+V": "paste it as the caption of all selected images",
        "Ctrl+D": "take the caption of the image before",
        "Escape": "back to the images, select one, close",
        "F1": "these keys",
    },
    "Images": {
        "Arrows, Page Up, Page Down, Home, End": "move",
        "with Shift, with Ctrl": "extend the selection, only move",
        "Space, Ctrl+A": "select or deselect, select all",
        "+, -": "larger, smaller thumbnails",
        "Return": "edit the caption",
        "Delete": "leave the selected images out, or train them again",
        "C, M, O": "crop, paint the mask, show masks",
    },
    "Crop": {
        "Arrows, with Shift": "move by 1 pixel, by 10",
        "Ctrl and arrows, with Shift": "resize by 1 pixel, by 10",
        "BackSpace": "the whole image again",
        "C, Return or Escape": "save and end",
    },
    "Mask": {
        "B, E, G, P, R": "brush, eraser, fill, polygon, rectangle",
        "[, ]": "smaller, larger brush",
        "+, -, 0": "zoom, show the whole image",
        "I": "invert",
        "M or Escape": "save and end",
    },
    "Video": {"Left, Right, Page Up, Page Down, Home, End": "move in time, in the large view"},
}


def keys_text() -> str:
    """A part with its keys after the other."""
    parts = ("\n".join([part, *(f"  {key:<42}{what}" for key, what in keys.items())]) for part, keys in KEYS.items())
    return "\n\n".join(parts)


def show_keys(app: App) -> None:
    TextWindow(app, "Keys", "Keys of the dataset window", keys_text(), "760x700")
