"""Messages that lie over the page, so that none of them moves what is under the pointer."""

from __future__ import annotations

import tkinter
from collections.abc import Callable
from typing import TYPE_CHECKING

import customtkinter as ctk

from modules.ui.theme import Pair, Theme
from modules.ui.widgets.fitting import wrap_to

if TYPE_CHECKING:
    from modules.ui.App import App, MessageKind

MAX_NOTICES = 3
INFO_MS = 8000
CHECK_SECONDS = 0.5
WIDTH, MARGIN = 820, 12  # unscaled pixels; narrower if the page is
TAKEN = 110  # unscaled pixels beside a text
COLOURS: dict[MessageKind, Pair] = {"info": Theme.text, "warning": Theme.warning, "error": Theme.error}


class Notices(ctk.CTkFrame):
    """The latest messages, the newest at the bottom. An "info" goes by itself, and any message once it no longer holds;
    the others stay until they are closed or three newer ones have come. One that is already there is not repeated.

    page: the frame to lie over, a sibling created earlier. The messages are at its lower edge, or at the upper one as
    long as they would cover the focused widget.
    """

    def __init__(self, parent: tkinter.Misc, app: App, page: tkinter.Misc):
        super().__init__(parent, fg_color=Theme.bar, border_width=1, border_color=Theme.border)
        self._app, self._page = app, page
        self._shown: list[tuple[str, MessageKind]] = []  # oldest first
        self._timers: dict[str, str] = {}  # by text
        self._holds: dict[str, Callable[[], bool]] = {}  # the same
        self.grid_columnconfigure(0, weight=1)
        self._rows: list[tuple[ctk.CTkLabel, ctk.CTkButton]] = []  # made for the first message
        page.bind("<Configure>", lambda event: self._place(), add="+")
        self._ends = [app.theme.on_change(self._place), app.every(CHECK_SECONDS, self._drop_outdated)]
        parent.winfo_toplevel().bind("<FocusIn>", lambda event: self._place(), add="+")

    @property
    def newest(self) -> ctk.CTkLabel:
        """The label of the latest message."""
        self._make_rows()
        return self._rows[-1][0]

    @property
    def texts(self) -> list[str]:
        """What is shown, oldest first."""
        return [text for text, _ in self._shown]

    def show(self, text: str, kind: MessageKind, holds: Callable[[], bool] | None = None) -> None:
        """holds: whether the message is still true."""
        self._forget(text)
        if holds is not None:
            self._holds[text] = holds
        self._shown = [*self._shown, (text, kind)][-MAX_NOTICES:]
        if kind == "info":
            self._timers[text] = self.after(INFO_MS, lambda: self.close(text))
        self._refresh()

    def close(self, text: str) -> None:
        self._forget(text)
        self._refresh()

    def destroy(self) -> None:
        for end in self._ends:
            end()
        super().destroy()

    def _drop_outdated(self) -> None:
        for text in [text for text, holds in self._holds.items() if not holds()]:
            self.close(text)

    def _forget(self, text: str) -> None:
        self._shown = [one for one in self._shown if one[0] != text]
        self._holds.pop(text, None)
        if (timer := self._timers.pop(text, None)) is not None:
            self.after_cancel(timer)

    def _refresh(self) -> None:
        self._make_rows()
        unused = MAX_NOTICES - len(self._shown)
        for number, row in enumerate(self._rows):
            if number < unused:
                for widget in row:
                    widget.grid_remove()
                continue
            text, kind = self._shown[number - unused]
            row[0].configure(text=text, text_color=COLOURS[kind])
            for widget in row:
                widget.grid()
        self._place()

    def _place(self) -> None:
        if not self._shown:
            self.place_forget()
            return
        scaled = self._app.theme.scaled
        width = min(self._page.winfo_width() - 2 * scaled(MARGIN), scaled(WIDTH))
        if width <= 0:  # the window is not laid out yet
            return
        at_top = self._covers_focus()
        tkinter.Place.place_configure(  # CustomTkinter's own takes no width
            self, in_=self._page, relx=0.5, rely=0.0 if at_top else 1.0, anchor="n" if at_top else "s",
            y=scaled(MARGIN) * (1 if at_top else -1), width=width,
        )  # fmt: skip

    def _covers_focus(self) -> bool:
        """Whether the focused widget is on the page and would be covered at its lower edge."""
        focused = self._app.root.focus_get()
        if focused is None or not str(focused).startswith(f"{self._page}."):
            return False
        bottom = self._page.winfo_rooty() + self._page.winfo_height()
        top = bottom - self.winfo_reqheight() - self._app.theme.scaled(MARGIN)
        return focused.winfo_rooty() < bottom and focused.winfo_rooty() + focused.winfo_height() > top

    def _make_rows(self) -> None:
        if not self._rows:
            self._rows = [self._make_row(number) for number in range(MAX_NOTICES)]

    def _make_row(self, number: int) -> tuple[ctk.CTkLabel, ctk.CTkButton]:
        font = self._app.theme.font()
        label = ctk.CTkLabel(self, text="", font=font, anchor="w", justify="left")
        label.grid(row=number, column=0, sticky="ew", padx=12, pady=6)
        wrap_to(self, label, self._app.theme, taken=TAKEN)
        close = ctk.CTkButton(
            self, text="Close", width=60, height=26, command=lambda: self.close(str(label.cget("text")))
        )
        close.grid(row=number, column=1, padx=8, pady=6)
        return label, close
