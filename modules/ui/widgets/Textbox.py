"""CustomTkinter's text box without the timer that outlives it, and without stopping the wheel on its page."""

from __future__ import annotations

import tkinter

import customtkinter as ctk

from modules.ui.theme import Theme
from modules.ui.widgets.scrolling import page_around
from modules.ui.window_system import wheel_events


class Textbox(ctk.CTkTextbox):
    """A CTkTextbox that can be destroyed.

    The original checks five times a second whether it needs scrollbars, even after it is destroyed: Tcl then finds no
    command of that name, or calls the handler of another widget that happens to have the same name.

    Over a text that can't be scrolled any further, the wheel scrolls the page. While it is empty, it can show a hint.
    """

    _timer = ""
    _hint: ctk.CTkLabel | None = None

    def __init__(self, *arguments, **options):
        super().__init__(*arguments, **options)
        for name in wheel_events(self):
            self._textbox.bind(name, self._pass_wheel_on, add="+")

    def set_hint(self, text: str) -> None:
        """Show what an empty text means, in its place."""
        if self._hint is None:
            self._hint = ctk.CTkLabel(
                self._textbox, text="", font=self._font, text_color=Theme.muted, bg_color=self._fg_color,
                fg_color=self._fg_color, anchor="nw", justify="left", height=0,
            )  # fmt: skip
            self._hint.bind("<Button-1>", lambda event: self._textbox.focus_set())
            self._textbox.bind("<Configure>", self._place_hint, add="+")
            self._textbox.bind("<<Modified>>", self._place_hint, add="+")
        self._hint.configure(text=text)
        self._place_hint()

    def _place_hint(self, event: tkinter.Event | None = None) -> None:
        hint, text = self._hint, self._textbox
        assert hint is not None  # else nothing calls this
        if text.edit_modified():
            text.edit_modified(False)  # or the next change would not be told
        width = text.winfo_width() - 12
        if text.get("1.0", "end-1c") or not hint.cget("text") or width < 20:
            hint.place_forget()
            return
        unscaled = round(width / self._apply_widget_scaling(1.0))
        if hint.cget("wraplength") != unscaled:
            hint.configure(wraplength=unscaled)
        hint.place(x=1, y=1)

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
