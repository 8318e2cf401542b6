"""The window in a process of its own, which tells what is to be seen on it, and where. It takes no orders: what is done
to it comes from the display, as keys and clicks.

    python tests/support/watched_window.py CHORUS [options of scripts/train_ui.py]

CHORUS is the folder whose code is run. Each line on stdin is a question; its answer is a line of JSON: see `look`.
"""

from __future__ import annotations

import json
import os
import queue
import sys
import threading
import tkinter
import traceback
from collections.abc import Iterator
from tkinter import ttk
from typing import Any

ANSWER_MS = 15


def main() -> int:
    chorus, *options = sys.argv[1:]
    sys.path[0] = chorus
    from modules.ui.toolkit import load_toolkit

    load_toolkit()
    from modules.ui.models.StandbyKeeper import StandbyKeeper
    from modules.ui.TrainUI import TrainUI
    from scripts import train_ui

    StandbyKeeper.start = lambda keeper, scheduler: None  # it would take processor time from what is watched

    mainloop = TrainUI.mainloop

    def watched_mainloop(window: TrainUI) -> None:
        answer(window)
        mainloop(window)

    TrainUI.mainloop = watched_mainloop
    return train_ui.main(options)


def answer(window: tkinter.Tk) -> None:
    """Answers each line of stdin from the thread of the window."""
    questions: queue.SimpleQueue[str] = queue.SimpleQueue()

    def read() -> None:
        for line in sys.stdin:
            questions.put(line)
        os._exit(0)  # who has asked is gone: nobody would close the window

    def take() -> None:
        window.after(ANSWER_MS, take)
        if questions.empty():
            return
        questions.get()
        try:
            print(json.dumps(look(window)), flush=True)
        except Exception:
            traceback.print_exc()
            os._exit(1)  # who has asked would wait for ever

    threading.Thread(target=read, daemon=True).start()
    take()


def look(window: Any) -> dict[str, Any]:
    """What is to be seen of the window.

    words: (text, x, y) of each text that nothing lies over, in pixels of the screen. buttons, rows: those of them on
    buttons and in tables. fields: path of a setting -> what its field shows, where it is, and whether it is lit.
    focus: where the keys go: the path of a setting, "search", "entry" for another one, or "". titles and windows: of
    the windows on the screen, the newest last, and X11's numbers of them. tab: the one in front. curve: how many points
    the line of the losses has. images: how many are in sight. run: of the run that is shown, what no eye could count.
    """
    import customtkinter as ctk

    tops = list(_tops(window))
    everything = [window, *_widgets(window)]
    seen = [widget for widget in everything if _on_top(widget, *_middle(widget))]
    fields = {path: field for path, field in _fields(window) if field.focus_widget() in seen}
    state, history = window.run.state, window.run.history
    return {
        "words": [*(word for widget in seen for word in _words(widget)), *_words_of_dialogs(window)],
        "buttons": [word for widget in seen if isinstance(widget.master, ctk.CTkButton) for word in _words(widget)],
        "rows": [word for widget in seen if isinstance(widget, ttk.Treeview) for word in _words(widget)],
        "fields": {path: _description(field) for path, field in fields.items()},
        "focus": _focus(window, fields),
        "titles": [title for title, _ in tops],
        "windows": [number for _, number in tops],
        "tab": window.tab_bar.selected,
        "curve": sum(_num_points(widget) for widget in seen),
        "pictures": sum(_num_pictures(widget) for widget in seen),
        "run": {
            "folder": str(state.folder or ""),
            "is_running": state.is_running,
            "step": state.step,
            "total": state.total,
            "steps_kept": [history.first_step, history.last_step, len(history)],
            "sample_steps": sorted({sample.step for sample in state.samples}),
            "ranks": {row.rank: row.state for row in state.ranks},
            "exit": state.exit,
        },
    }


def _tops(window: tkinter.Tk) -> Iterator[tuple[str, int]]:
    """Title and number of each window that is seen: those too that Tk has made by itself, such as that for a file."""
    tk = window.tk
    for path in (".", *tk.splitlist(tk.call("winfo", "children", "."))):
        is_top = str(tk.call("winfo", "toplevel", path)) == str(path)
        if is_top and tk.call("winfo", "viewable", path) and not tk.call("wm", "overrideredirect", path):
            yield str(tk.call("wm", "title", path)), int(str(tk.call("winfo", "id", path)), 16)


def _words_of_dialogs(window: tkinter.Tk) -> Iterator[tuple[str, int, int]]:
    """Of the dialogs that Tk has made by itself, and whose widgets Python does not know."""
    tk = window.tk
    paths = [path for path in tk.splitlist(tk.call("winfo", "children", ".")) if path[1:] not in window.children]
    for path in paths:  # which grows
        paths.extend(tk.splitlist(tk.call("winfo", "children", path)))
        kind = tk.call("winfo", "class", path)
        if kind in ("TEntry", "TLabel") and tk.call("winfo", "viewable", path):
            text = tk.call(path, "get") if kind == "TEntry" else tk.call(path, "cget", "-text")
            x, y, width, height = (int(tk.call("winfo", of, path)) for of in ("rootx", "rooty", "width", "height"))
            yield str(text), x + width // 2, y + height // 2


def _widgets(widget: tkinter.Misc) -> Iterator[tkinter.Misc]:
    for child in widget.children.values():
        yield child
        yield from _widgets(child)


def _middle(widget: tkinter.Misc) -> tuple[int, int]:
    return widget.winfo_rootx() + widget.winfo_width() // 2, widget.winfo_rooty() + widget.winfo_height() // 2


def _on_top(widget: tkinter.Misc, x: int, y: int) -> bool:
    return bool(widget.winfo_viewable()) and str(widget.tk.call("winfo", "containing", x, y)) == str(widget)


def _words(widget: tkinter.Misc) -> Iterator[tuple[str, int, int]]:
    x, y = _middle(widget)
    if isinstance(widget, ttk.Treeview):
        for item in widget.get_children():
            if box := widget.bbox(item):
                text = "  ".join(str(value) for value in widget.item(item, "values"))
                yield text, widget.winfo_rootx() + box[0] + box[2] // 2, widget.winfo_rooty() + box[1] + box[3] // 2
    elif isinstance(widget, tkinter.Listbox):
        yield "\n".join(widget.get(0, "end")), x, y
    elif isinstance(widget, tkinter.Label):
        yield widget.cget("text"), x, y
    elif isinstance(widget, tkinter.Entry):
        yield widget.get(), x, y
    elif isinstance(widget, tkinter.Text):
        yield widget.get("1.0", "end-1c"), x, y
    elif _is_drawn_on(widget):
        for item in widget.find_all():
            if widget.type(item) == "text":
                yield widget.itemcget(item, "text"), x, y


def _is_drawn_on(widget: tkinter.Misc) -> bool:
    """Whether it is a plain canvas: those of CustomTkinter write their round corners as letters."""
    from modules.ui.widgets.BatchCanvas import BatchCanvas

    return type(widget) in (tkinter.Canvas, BatchCanvas)


def _fields(window: Any) -> Iterator[tuple[str, Any]]:
    from modules.ui.widgets.form import SettingsForm

    for widget in _widgets(window):
        if isinstance(widget, SettingsForm):
            yield from widget.fields.items()


def _description(field: Any) -> dict[str, Any]:
    from modules.ui.theme import Theme

    editor = getattr(field, "entry", field.editor)
    return {
        "shows": editor.get("1.0", "end-1c") if isinstance(field.focus_widget(), tkinter.Text) else editor.get(),
        "place": _middle(field.focus_widget()),
        "is_lit": field.label.cget("fg_color") == Theme.selected,
    }


def _focus(window: Any, fields: dict[str, Any]) -> str:
    focus = str(window.tk.call("focus"))
    if focus == str(window.top_bar.search._entry):
        return "search"
    is_entry = focus and window.tk.call("winfo", "class", focus) in ("Entry", "TEntry")
    others = "entry" if is_entry else ""
    return next((path for path, field in fields.items() if str(field.focus_widget()) == focus), others)


def _num_points(widget: tkinter.Misc) -> int:
    from modules.ui.widgets.LossChart import LossChart

    chart = widget.master
    if not isinstance(chart, LossChart) or chart.canvas is not widget:
        return 0
    return len(widget.coords(chart._smooth)) // 2 if widget.itemcget(chart._smooth, "state") == "normal" else 0


def _num_pictures(widget: tkinter.Misc) -> int:
    if not _is_drawn_on(widget):
        return 0
    return sum(widget.type(item) == "image" for item in widget.find_all())


if __name__ == "__main__":
    sys.exit(main())
