"""CustomTkinter's text box without the timer that outlives it, and without stopping the wheel on its page."""

from __future__ import annotations

import tkinter

import customtkinter as ctk

from modules.ui.widgets.scrolling import page_around
from modules.ui.window_system import wheel_events


class Textbox(ctk.CTkTextbox):
    """A CTkTextbox that can be destroyed.

    The original checks five times a second whether it needs scrollbars, even after it is destroyed: Tcl then finds no
    command of that name, or calls the handler of another widget that happens to have the same name.

    Over a text that can't be scrolled any further, the wheel scrolls the page.
    """

    _timer = ""

    def __init__(self, *arguments, **options):
        super().__init__(*arguments, **options)
        for name in wheel_events(self):
            self._textbox.bind(name, self._pass_wheel_on, add="+")

    def after(self, ms, func=None, *args):
        timer = super().after(ms, func, *args)
        if func == self._check_if_scrollbars_needed:
            self._timer = timer
        return timer

    def destroy(self) -> None:
        if self._timer:
            self.after_cancel(self._timer)
        super().destroy()

    def _check_if_scrollbars_needed(self, event=None, continue_loop: bool = False) -> None:
        super()._check_if_scrollbars_needed(event)
        if continue_loop:
            self.after(self._scrollbar_update_time, self._check_if_scrollbars_needed, None, True)

    def _pass_wheel_on(self, event: tkinter.Event) -> None:
        page, (first, last) = page_around(self), self._textbox.yview()
        is_at_end = first <= 0 if event.num == 4 or event.delta > 0 else last >= 1
        if page is not None and is_at_end:
            event.widget = page._parent_canvas  # the page ignores events of text boxes
            page._mouse_wheel_all(event)
