"""The keys of the dataset window: what they do, and the list of them that F1 and ? show."""

from __future__ import annotations

import itertools
import tkinter as tk
from functools import partial
from typing import TYPE_CHECKING

from modules.ui.keyboard import TYPED_INTO, bind_keys
from modules.ui.windows.copied_captions import copy_caption, paste_caption, take_caption_of
from modules.ui.windows.TextWindow import TextWindow

if TYPE_CHECKING:
    from modules.ui.App import App
    from modules.ui.windows.DatasetWindow import DatasetWindow

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
        "F1, or ? where nothing is typed": "these keys",
    },
    "Caption": {
        "Tab, Return": "take the suggested tag that is marked",
        "Up, Down": "mark another one",
        "Escape": "close the suggestions",
        "Ctrl+Z, Ctrl+Y": "undo, redo what was typed",
    },
    "Images": {
        "Arrows, Page Up, Page Down, Home, End": "move",
        "with Shift, with Ctrl": "extend the selection, only move",
        "Space, Ctrl+A": "select or deselect, select all",
        "+, -": "larger, smaller thumbnails",
        "Return": "edit the caption",
        "Delete": "leave the selected images out, or train them again",
        "C, M, O": "crop, paint the mask, show masks",
        "D": "compare the images that look alike, once they are found",
    },
    "Duplicates": {
        "Left, Right, Home, End": "choose the one to keep",
        "Return": "keep it, leave the others out, next group",
        "Page Down or N, Page Up or P": "next group, group before",
        "D or Escape": "end",
    },
    "Crop": {
        "Arrows, with Shift": "move by 1 pixel, by 10",
        "Ctrl and arrows, with Shift": "resize by 1 pixel, by 10",
        "BackSpace": "the whole image again",
        "C, Return or Escape": "save and end",
    },
    "Mask": {
        "B, E, G, P, R, L": "brush, eraser, fill, polygon, rectangle, model",
        "Return, BackSpace": "close the polygon, remove its last corner",
        "Return, BackSpace, Escape": "with the model: add, forget a click, discard",
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


def bind_window_keys(window: DatasetWindow) -> None:
    """Bind the keys that work anywhere in the window, and those of its images; editors have keys of their own."""
    side, cells, bar = window.side, window.cells, window.bar
    window.bind("<Escape>", lambda event: _on_escape(window))
    window.bind("<F5>", lambda event: window.refresh())
    window.bind("<question>", partial(_on_question, window))
    side.bind_toggles(cells.canvas)
    for key, canvas in itertools.product(("<o>", "<O>"), (cells.canvas, side.large.canvas)):
        canvas.bind(key, lambda event: bar.toggle_masks())
    for key, canvas in itertools.product(("<d>", "<D>"), (cells.canvas, side.large.canvas)):
        canvas.bind(key, lambda event: window.compare_duplicates())
    for key, canvas in itertools.product(("<Control-d>", "<Control-D>"), (cells.canvas, side.large.canvas)):
        canvas.bind(key, lambda event: None)  # of the window
    cells.canvas.bind("<Delete>", lambda event: window.caption.toggle_left_out())
    command = "Command" if window.tk.call("tk", "windowingsystem") == "aqua" else "Control"
    bind_keys(
        window,
        {
            f"<{command}-s>": side.save,
            f"<{command}-z>": partial(side.step, "undo"),
            f"<{command}-y>": partial(side.step, "redo"),
            f"<{command}-Shift-Z>": partial(side.step, "redo"),
            f"<{command}-e>": window.edit_captions,
            f"<{command}-Shift-C>": lambda: copy_caption(window.caption),
            f"<{command}-Shift-V>": lambda: paste_caption(window.caption),
            f"<{command}-d>": lambda: take_caption_of(window.caption, window.former()),
            "<F1>": lambda: show_keys(window.app),
        },
    )
    for key, by in (("<Alt-Up>", -1), ("<Alt-Down>", 1)):
        window.bind(key, partial(_go_by, window, by))
    for key in ("<Control-f>", "<Control-F>"):
        window.bind(key, lambda event: bar.focus_search())
    for key in ("<Return>", "<Down>"):
        bar.search.bind(key, lambda event: cells.canvas.focus_set())


def _go_by(window: DatasetWindow, step: int, event: object) -> str:
    window.cells.go_by(step)
    return "break"


def _on_question(window: DatasetWindow, event: tk.Event) -> None:
    if event.widget.winfo_class() not in TYPED_INTO:
        show_keys(window.app)


def _on_escape(window: DatasetWindow) -> None:
    """Lead back to the images, then select one alone, then close."""
    selection = window.cells.selection
    if window.focus_get() is not window.cells.canvas and window.view.shown:
        window.cells.canvas.focus_set()
    elif selection.current is not None and len(selection.numbers) > 1:
        window.cells.choose(selection.current)
    else:
        window.hide()
