"""The help text that appears when the pointer rests on a widget."""

from __future__ import annotations

import tkinter
from collections.abc import Callable

from modules.ui.theme import Theme
from modules.ui.window_system import on_screens

DELAY_MS = 450
WIDTH = 420


class Tooltip:
    """Shows the result of `text()` beside `widget`. All tooltips share one plain Tk window, because a CTkToplevel would
    add handlers to all widgets."""

    _window: tkinter.Toplevel | None = None
    _label: tkinter.Label  # in it

    def __init__(self, widget: tkinter.Misc, theme: Theme, text: Callable[[], str]):
        self._widget, self._theme, self._text = widget, theme, text
        self._waiting: str | None = None
        widget.bind("<Enter>", self._enter, add="+")
        for sequence in ("<Leave>", "<Button>", "<Unmap>", "<Destroy>"):  # no keys: else Tab would stop here
            widget.bind(sequence, self._leave, add="+")

    def show(self) -> None:
        """Show the tooltip now."""
        self._waiting = None
        text = self._text()
        if not text or not self._widget.winfo_exists():
            return
        window, label = self._open()
        theme = self._theme
        window.configure(bg=theme.now(theme.border))
        label.configure(
            text=text,
            bg=theme.now(theme.control),
            fg=theme.now(theme.text),
            font=theme.plain_font(12),
            wraplength=theme.scaled(WIDTH),
            padx=theme.scaled(10),
            pady=theme.scaled(7),
        )
        window.update_idletasks()
        x, y = self._place(window)
        window.geometry(f"+{x}+{y}")
        window.deiconify()
        window.lift()

    def _open(self) -> tuple[tkinter.Toplevel, tkinter.Label]:
        window = Tooltip._window
        if window is None:
            window = tkinter.Toplevel(self._widget.winfo_toplevel())
            window.withdraw()
            window.overrideredirect(True)
            Tooltip._label = tkinter.Label(window, justify="left")
            Tooltip._label.pack(padx=1, pady=1)
            window.bind("<Destroy>", lambda event: setattr(Tooltip, "_window", None))
            Tooltip._window = window
        return window, Tooltip._label

    def _place(self, window: tkinter.Toplevel) -> tuple[int, int]:
        """Its position: below the widget, or above it at the bottom of the screen."""
        widget, gap = self._widget, self._theme.scaled(6)
        size = window.winfo_reqwidth(), window.winfo_reqheight()
        x, y = widget.winfo_rootx(), widget.winfo_rooty() + widget.winfo_height() + gap
        if on_screens(widget, x, y, size)[1] != y:
            y = widget.winfo_rooty() - size[1] - gap
        return on_screens(widget, x, y, size)

    def _enter(self, event: tkinter.Event) -> None:
        self._leave(event)
        self._waiting = self._widget.after(DELAY_MS, self.show)

    def _leave(self, event: tkinter.Event) -> None:
        if self._waiting is not None:
            self._widget.after_cancel(self._waiting)
            self._waiting = None
        if Tooltip._window is not None:
            Tooltip._window.withdraw()
