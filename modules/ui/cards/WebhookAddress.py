"""The address of the webhook below its settings: saved on this machine, never shown, and tried by a message."""

from __future__ import annotations

import tkinter
from typing import TYPE_CHECKING

import customtkinter as ctk

from modules.config.errors import UserError
from modules.config.WebhookConfig import SERVICES
from modules.loggers.webhook_address import (
    URL_VARIABLE,
    Address,
    forget_address,
    is_from_environment,
    read_address,
    save_address,
)
from modules.loggers.webhook_messages import checked_url
from modules.ui.theme import Theme
from modules.ui.widgets.fitting import lay_in_rows, wrap_to

if TYPE_CHECKING:
    from modules.ui.App import App

SHOWN_AS = "•"
SECRET = "A secret, as whoever has it can write there: it is kept on this machine, and in no settings file, run or log."


class WebhookAddress(ctk.CTkFrame):
    """Shown while a service is chosen. What was typed counts once it is saved; *Send a test* tries it before."""

    def __init__(self, parent: tkinter.Misc, app: App):
        super().__init__(parent, fg_color="transparent")
        parent.grid_columnconfigure(0, weight=1)
        self.grid(row=0, column=0, sticky="ew")
        self.app = app
        self.grid_columnconfigure(1, weight=1)
        font = app.theme.font()
        self.address, self.token = (ctk.CTkEntry(self, font=font, show=SHOWN_AS, height=28) for _ in range(2))
        for row, (text, entry) in enumerate((("Address", self.address), ("Token, if needed", self.token))):
            ctk.CTkLabel(self, text=text, font=font, anchor="w").grid(
                row=row, column=0, sticky="w", padx=(8, 8), pady=3
            )
            entry.grid(row=row, column=1, sticky="ew", pady=3)
            entry.bind("<Return>", lambda event: self.save())
            entry.bind("<KeyRelease>", lambda event: self._show_buttons(), add="+")
        bar = ctk.CTkFrame(self, fg_color="transparent")
        bar.grid(row=2, column=0, columnspan=2, sticky="ew", padx=(8, 0), pady=(4, 2))
        small = app.theme.font(12)
        self.save_button, self.test_button, self.forget_button = buttons = [
            ctk.CTkButton(bar, text=text, width=20, height=26, font=small, command=command)
            for text, command in (("Save", self.save), ("Send a test", self.send_test), ("Forget", self.forget))
        ]
        lay_in_rows(bar, buttons, app.theme, gap=8)
        self.note = ctk.CTkLabel(self, text="", font=small, anchor="w", justify="left")
        self.note.grid(row=3, column=0, columnspan=2, sticky="ew", padx=(8, 0))
        wrap_to(self, self.note, app.theme, taken=12)
        self._is_sending = self._has_saved = False
        self._view = app.views.add(self, self._on_settings)
        self._on_settings(None)
        self._tell_saved()

    def destroy(self) -> None:
        self._view.end()
        super().destroy()

    @property
    def service(self) -> str:
        return str(self.app.settings.get("webhook.service"))

    def save(self) -> None:
        """Keep what was typed, in place of what was saved."""
        if not self._typed():
            return
        try:
            checked_url(self.service, self._typed())
            save_address(self._address())
        except UserError as error:
            self._tell(str(error), Theme.error)
            return
        for entry in (self.address, self.token):
            entry.delete(0, "end")
        self._tell_saved()
        self.app.checks.tell()

    def forget(self) -> None:
        """Remove the saved address."""
        try:
            forget_address()
        except OSError as error:
            self._tell(f"The address can't be removed ({error.strerror}): remove its file yourself.", Theme.error)
            return
        self._tell_saved()
        self.app.checks.tell()

    def send_test(self) -> None:
        """Send a message to the address that was typed, else to the one that was saved, and say what became of it."""
        address = self._address() if self._typed() else read_address()
        if address is None:
            self._tell("There is no address yet: type it above.", Theme.error)
            return
        service, is_typed = self.service, bool(self._typed())
        self._is_sending = True
        self._tell(f"Sending a message to {SERVICES[service]}…")
        self.app.in_background(
            lambda: send_test(service, address), lambda failed: self._sent(service, is_typed, failed)
        )

    def _sent(self, service: str, is_typed: bool, failed: str) -> None:
        if not self.winfo_exists():
            return
        self._is_sending = False
        if failed:
            self._tell(f"The message was not sent: {failed}.", Theme.error)
        else:
            hint = " Save keeps this address for runs." if is_typed else ""
            self._tell(f"Sent to {SERVICES[service]}.{hint}", Theme.success)

    def _typed(self) -> str:
        return self.address.get().strip()

    def _address(self) -> Address:
        return Address(self._typed(), self.token.get().strip())

    def _on_settings(self, paths: set[str] | None) -> None:
        if paths is None or "webhook.service" in paths:
            if self.service == "off":
                self.grid_remove()
            else:
                self.grid()

    def _tell_saved(self) -> None:
        self._has_saved = read_address() is not None
        if is_from_environment():
            text = f"{URL_VARIABLE} is set, and counts before what is saved here."
        elif self._has_saved:
            text = "An address is saved; another one replaces it."
        else:
            text = "No address is saved yet."
        self._tell(f"{text} {SECRET}")

    def _tell(self, text: str, colour: tuple[str, str] = Theme.muted) -> None:
        self.note.configure(text=text, text_color=colour)
        self._show_buttons()

    def _show_buttons(self) -> None:
        for button, is_usable in (
            (self.save_button, self._typed()),
            (self.test_button, not self._is_sending and (self._typed() or self._has_saved)),
            (self.forget_button, self._has_saved and not is_from_environment()),
        ):
            button.configure(state="normal" if is_usable else "disabled")


def send_test(service: str, address: Address) -> str:
    """Why a message could not be sent; "" if it was. Call it in a thread."""
    from modules.loggers.webhook_sending import NotSentError, post_test  # with ssl, which takes a while to import

    try:
        post_test(service, address)
    except NotSentError as error:
        return str(error)
    return ""
