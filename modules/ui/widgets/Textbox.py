"""CustomTkinter's text box without the timer that outlives it."""

from __future__ import annotations

import customtkinter as ctk


class Textbox(ctk.CTkTextbox):
    """A CTkTextbox that can be destroyed.

    The original checks five times a second whether it needs scrollbars, even after it is destroyed: Tcl then finds no
    command of that name, or calls the handler of another widget that happens to have the same name.
    """

    _timer = ""

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
