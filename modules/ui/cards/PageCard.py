"""The card that serves the web page of the runs, and shows its address."""

from __future__ import annotations

import tkinter
from typing import TYPE_CHECKING

import customtkinter as ctk

from modules.config.errors import UserError
from modules.config.installation import docs_page
from modules.page.access import is_loopback
from modules.session.working_folder import shown_path
from modules.ui.cards.Card import Card
from modules.ui.models.Preferences import THIS_MACHINE
from modules.ui.theme import Theme
from modules.ui.widgets.Textbox import Textbox

if TYPE_CHECKING:
    from modules.ui.App import App

ALL_ADDRESSES = "0.0.0.0"
LINK_HEIGHT = 52  # of two lines: it is too long for one
PLACES = {THIS_MACHINE: "This machine only", ALL_ADDRESSES: "All its networks"}
OTHER = "One address…"
TELLS = "Runs, curves and samples in a browser, read only, as long as this window is open."
LOCAL = f"Other machines reach it through SSH: {docs_page('watching')}."
PLAIN = (
    "This is plain HTTP: whoever can listen on the network can read the page and its address. Use it only in a network "
    "that you trust, or in a VPN."
)
WAITS = "It starts with the first run: there is no folder with runs yet."


class PageCard(Card):
    """The switch and the choice are kept in the preferences; the page itself is `app.page`.

    No button opens a browser: other users of the machine would see the address in the browser's command.
    """

    def __init__(self, parent: tkinter.Misc, app: App):
        super().__init__(parent, app, "Web page of the runs")
        font = app.theme.font()
        self.add_note(1).configure(text=TELLS)
        rows = ctk.CTkFrame(self, fg_color="transparent")
        rows.grid(row=2, column=0, sticky="ew", padx=(26, 12))
        rows.grid_columnconfigure(1, weight=1)
        self.switch = ctk.CTkSwitch(rows, text="", command=self._switched)
        self.place = ctk.CTkOptionMenu(rows, values=[*PLACES.values(), OTHER], font=font, command=self._choose_place)
        self.other = ctk.CTkEntry(rows, font=font, placeholder_text="such as 192.168.1.5")
        self.link = Textbox(rows, height=LINK_HEIGHT, font=app.theme.font(12, mono=True), wrap="char", state="disabled")
        self.labels = []
        shown = (("On", self.switch), ("Reachable from", self.place), ("Address", self.other), ("Open", self.link))
        for row, (text, widget) in enumerate(shown):
            label = ctk.CTkLabel(rows, text=text, font=font, anchor="w")
            label.grid(row=row, column=0, sticky="w", padx=(0, 8))
            widget.grid(row=row, column=1, sticky="w" if widget is self.switch else "ew", pady=4)
            self.labels.append(label)
        for event in ("<Return>", "<FocusOut>"):
            self.other.bind(event, lambda event: self._commit_address(), add="+")
        self.copy, self.renew, self.again = self.add_buttons(
            3, ("Copy address", self._copy), ("New token", self._renew), ("Start again", self._start)
        )
        self.note = self.add_note(4)
        if app.preferences.serves_page:
            self.switch.select()
        address = app.preferences.page_address
        self.place.set(PLACES.get(address, OTHER))
        if address not in PLACES:
            self.other.insert(0, address)
        self.ends.append(app.page.subscribe(self._show))
        self._show()

    def _switched(self) -> None:
        self.app.preferences.serves_page = bool(self.switch.get())
        if self.app.preferences.serves_page:
            self._start()
        else:
            self.app.page.stop()

    def _choose_place(self, text: str) -> None:
        if text == OTHER:
            self._show()
            self.other.focus_set()
            self._commit_address()
        else:
            self._set_address(next(address for address, label in PLACES.items() if label == text))

    def _commit_address(self) -> None:
        if self.place.get() == OTHER and (address := self.other.get().strip()):
            self._set_address(address)

    def _set_address(self, address: str) -> None:
        preferences = self.app.preferences
        if address != preferences.page_address:
            preferences.page_address = address
            if preferences.serves_page:
                self._start()
        self._show()

    def _start(self) -> None:
        self.app.page.start(self.app.preferences.page_address)

    def _renew(self) -> None:
        try:
            self.app.page.renew_token()
        except UserError as error:
            self.app.show_message(str(error), "error")
        else:
            self.app.show_message("The page has a new token: addresses from before no longer open it.", "info")

    def _copy(self) -> None:
        self.app.root.clipboard_clear()
        self.app.root.clipboard_append(self.app.page.link)
        self.app.show_message("Copied the address: open it in a browser. Whoever has it can see the runs.", "info")

    def _show(self) -> None:
        page = self.app.page
        _, _, other, link = self.labels
        for is_shown, *widgets in ((self.place.get() == OTHER, other, self.other), (page.link, link, self.link)):
            for widget in widgets:
                widget.grid() if is_shown else widget.grid_remove()
        if self.link.get("1.0", "end-1c") != page.link:
            self.link.configure(state="normal")
            self.link.delete("1.0", "end")
            self.link.insert("1.0", page.link)
            self.link.configure(state="disabled")
        for button, is_usable in (
            (self.copy, page.link),
            (self.renew, page.is_on and not page.error),
            (self.again, page.error),
        ):
            button.configure(state="normal" if is_usable else "disabled")
        text, colour = self._state_text()
        self.note.configure(text=text, text_color=colour)

    def _state_text(self) -> tuple[str, tuple[str, str]]:
        page, is_local = self.app.page, is_loopback(self.app.preferences.page_address)
        if page.error:
            return f"The page has ended: {page.error}", Theme.error
        if page.is_on and not page.folders:
            return WAITS, Theme.muted
        if page.is_on and not page.link:
            return "Starting…", Theme.muted
        shows = f"Shows the runs in {', '.join(shown_path(folder) for folder in page.folders)}. " if page.is_on else ""
        return shows + (LOCAL if is_local else PLAIN), Theme.muted if is_local else Theme.warning
