"""The search over all settings: an entry with a list of results."""

from __future__ import annotations

import tkinter
from typing import TYPE_CHECKING

import customtkinter as ctk

from modules.config.describe import settings_by_path
from modules.ui.models.explanations import Row
from modules.ui.models.find_settings import prepare_search, search
from modules.ui.theme import Theme

if TYPE_CHECKING:
    from modules.ui.App import App

GROUPS = {"multi_gpu": "Multi-GPU", "method": "Training"}  # of settings without a section
MIN_WIDTH = 46  # characters of the list
PADDING = 16  # unscaled pixels around the text, with the cursor


class SettingsSearch(ctk.CTkEntry):
    """Lists matching settings while the user types; Return or a click opens a setting's tab and flashes its field.

    What people look for that is no setting has a row that explains it, which leads to the nearest setting; a tool is
    opened.
    """

    def __init__(self, parent: tkinter.Misc, app: App):
        super().__init__(
            parent, width=190, height=30, font=app.theme.font(), placeholder_text="Search settings (Ctrl+F)"
        )
        self.app = app
        self._rows: list[Row] = []
        self._searched = ""  # the text that the rows belong to
        self._list: tkinter.Listbox | None = None
        self._frame: ctk.CTkFrame | None = None
        self.bind("<FocusIn>", lambda event: app.in_background(prepare_search, lambda nothing: None))
        self.bind("<KeyRelease>", self._typed)
        self.bind("<Return>", lambda event: self._on_return())
        self.bind("<Escape>", lambda event: self.close())
        self.bind("<Down>", lambda event: self._move(1))
        self.bind("<Up>", lambda event: self._move(-1))
        self.bind("<FocusOut>", lambda event: app.after(200, self._close_unless_used))

    @property
    def min_width(self) -> int:
        """The width in screen pixels in which the placeholder is not cut."""
        font, text = self._entry.cget("font"), self.cget("placeholder_text")
        return int(self.tk.call("font", "measure", font, text)) + self.app.theme.scaled(PADDING)

    @property
    def found(self) -> list[str]:
        """The settings that the rows lead to, "" for a row without one."""
        return [row.path for row in self._rows]

    def close(self) -> None:
        """Close the list and clear the entry."""
        self.delete(0, "end")
        self._searched, self._rows = "", []
        self._hide()

    def _typed(self, event: tkinter.Event) -> None:
        if event.keysym in ("Return", "Escape", "Down", "Up", "Tab"):
            return
        self._search()

    def _on_return(self) -> None:
        if self.get() != self._searched:  # pressed before the last letter was released
            self._search()
        self._choose()

    def _search(self) -> None:
        """Show what is found for the typed text, the first of it selected."""
        self._searched = self.get()
        self._rows = search(self._searched)
        if not self.get().strip():
            self._hide()
            return
        lines = [_line(row) for row in self._rows] or ["No setting has this in its name or help."]
        shown = self._open(width=max(MIN_WIDTH, *(len(line) + 4 for line in lines)))
        shown.delete(0, "end")
        shown.insert("end", *(f"  {line}" for line in lines))
        shown.configure(height=len(lines))
        shown.selection_clear(0, "end")
        shown.selection_set(0)
        self._place()

    def _open(self, width: int) -> tkinter.Listbox:
        theme = self.app.theme
        if self._list is None or self._frame is None:
            self._frame = ctk.CTkFrame(self.app.root, border_width=1, border_color=Theme.border, corner_radius=4)
            self._list = tkinter.Listbox(
                self._frame, borderwidth=0, highlightthickness=0, activestyle="none", exportselection=False
            )
            self._list.pack(padx=2, pady=2)
            self._list.bind("<ButtonRelease-1>", lambda event: self._choose())
        self._list.configure(
            width=width,
            bg=theme.now(Theme.card),
            fg=theme.now(Theme.text),
            selectbackground=theme.now(Theme.selected),
            selectforeground=theme.now(Theme.on_accent),
            font=theme.plain_font(),
        )
        return self._list

    def _place(self) -> None:
        """Put the list below the entry, and so far to the left that it isn't cut."""
        if self._frame is None:
            return
        self._frame.update_idletasks()
        x = self.winfo_rootx() - self.app.root.winfo_rootx()
        room = self.app.root.winfo_width() - self._frame.winfo_reqwidth() - self.app.theme.scaled(PADDING)
        y = self.winfo_rooty() - self.app.root.winfo_rooty() + self.winfo_height() + 2
        # CustomTkinter's place would scale the pixels again.
        tkinter.Frame.place(self._frame, x=max(0, min(x, room)), y=y)
        tkinter.Misc.lift(self._frame)

    def _hide(self) -> None:
        if self._frame is not None:
            self._frame.place_forget()

    def _close_unless_used(self) -> None:
        if self._list is not None and self._list.winfo_exists() and self.app.root.focus_get() is not self._list:
            self._hide()

    def _move(self, step: int) -> None:
        if self._list is None or not self._rows:
            return
        chosen = self._list.curselection()
        number = (chosen[0] + step if chosen else 0) % len(self._rows)
        self._list.selection_clear(0, "end")
        self._list.selection_set(number)
        self._list.see(number)

    def _choose(self) -> None:
        chosen = self._list.curselection() if self._list is not None else ()
        if chosen and chosen[0] < len(self._rows):
            row = self._rows[chosen[0]]
            self.close()
            if row.tab:
                tab = self.app.open_tab(row.tab)
                if row.action:
                    getattr(tab, row.action)()
            elif row.path:
                self.app.flash(row.path)
            else:
                self.app.show_message(row.text)


def _line(row: Row) -> str:
    if row.text:
        return row.text
    info = settings_by_path()[row.path]
    return f"{info.label}   ({info.section or GROUPS.get(info.group, info.group.capitalize())})"
