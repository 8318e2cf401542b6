"""A window with a text that can be read and copied."""

from __future__ import annotations

from typing import TYPE_CHECKING

import customtkinter as ctk

from modules.config.visible_text import visible_text
from modules.ui.theme import Theme
from modules.ui.widgets.dialogs import set_size, show_over
from modules.ui.widgets.fitting import wrap_to
from modules.ui.widgets.Textbox import Textbox

if TYPE_CHECKING:
    from modules.ui.App import App


class TextWindow(ctk.CTkToplevel):
    """heading: one or two sentences above the text. bar: the frame for the buttons, filled by `add_button`."""

    def __init__(self, app: App, title: str, heading: str, text: str, size: str = "760x520"):
        super().__init__(app.root)
        self.app = app
        self.title(title)
        self.transient(app.root)
        set_size(self, size, (480, 320))
        self.grid_columnconfigure(0, weight=1)
        self.grid_rowconfigure(1, weight=1)
        self.heading = ctk.CTkLabel(self, text=heading, font=app.theme.font(14), anchor="w", justify="left")
        self.heading.grid(row=0, column=0, sticky="ew", padx=16, pady=(14, 6))
        wrap_to(self, self.heading, app.theme, taken=32)
        font = app.theme.font(12, mono=True)
        self.box = Textbox(self, wrap="word", font=font, fg_color=Theme.code)
        self.box.grid(row=1, column=0, sticky="nsew", padx=16, pady=4)
        self.bar = ctk.CTkFrame(self, fg_color="transparent")
        self.bar.grid(row=2, column=0, sticky="e", padx=16, pady=(8, 14))
        self.bind("<Escape>", lambda event: self.destroy())
        self.show_text(text)
        show_over(app, self)

    def show_text(self, text: str) -> None:
        self.box.configure(state="normal")
        self.box.delete("1.0", "end")
        self.box.insert("1.0", visible_text(text))
        self.box.configure(state="disabled")

    def copy(self) -> None:
        """Copy the whole text to the clipboard."""
        self.clipboard_clear()
        self.clipboard_append(self.box.get("1.0", "end-1c"))

    def add_button(self, text: str, command, is_main: bool = False) -> ctk.CTkButton:
        """is_main: the button has the focus and is triggered by Return."""
        colours = {"fg_color": Theme.selected, "hover_color": Theme.selected_hover, "text_color": Theme.on_accent}
        button = ctk.CTkButton(self.bar, text=text, width=100, font=self.app.theme.font(), command=command)
        button.configure(**(colours if is_main else {}))
        button.pack(side="left", padx=(8, 0))
        if is_main:
            self.bind("<Return>", self._press_main)
            self._main = command
            self.app.after(150, self._focus, button)  # once it has its size
        return button

    def _press_main(self, event) -> None:
        if event.widget in (self, self.box._textbox):  # on a button, Return triggers that button
            self._main()

    def _focus(self, button: ctk.CTkButton) -> None:
        if self.winfo_exists():
            button._canvas.focus_set()
