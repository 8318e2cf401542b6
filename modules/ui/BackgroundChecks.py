"""What the window finds out by itself about the settings: whether this machine and the base model suit them."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from modules.config.files import config_from_values
from modules.config.validation import Problem
from modules.ui.base_model import look_at_base
from modules.ui.DeviceModel import read_machine

if TYPE_CHECKING:
    from modules.ui.App import App

SETTLE_MS = 80  # several changes at once are looked at once


class BackgroundChecks:
    """Reports the problems of devices and of the base model to the settings: after `start`, and after each change.

    base_text: what there is at the base model's path or name, in a sentence; "" while that is not known, or wrong.
    """

    def __init__(self, app: App):
        self.base_text = ""
        self._app = app
        self._base: str | None = None  # that was looked at last
        self._is_due = False
        self._subscribers: list[Callable[[], None]] = []

    def start(self) -> None:
        self._app.settings.subscribe(self._on_settings)
        self._app.devices.subscribe(lambda what: self._soon() if what != "usage" else None)
        self._app.in_background(read_machine, self._app.devices.take_machine)
        self._look_at_base()

    def subscribe(self, changed: Callable[[], None]) -> Callable[[], None]:
        """Call `changed` when base_text has. Returns a function that ends it."""
        self._subscribers.append(changed)
        return lambda: self._subscribers.remove(changed) if changed in self._subscribers else None

    def report_devices(self) -> None:
        """Whether the settings can run on this machine, as far as it is known."""
        self._is_due = False
        settings = self._app.settings
        config = settings.config() or config_from_values(settings.values)  # also while a field holds what is refused
        # Free memory changes every second: it is no reason to go over all fields.
        settings.report("devices", self._app.devices.problems(config, with_memory=False))

    def _on_settings(self, paths: set[str]) -> None:
        self._soon()
        self._look_at_base()

    def _soon(self) -> None:
        if not self._is_due:
            self._is_due = True
            self._app.after(SETTLE_MS, self.report_devices)

    def _look_at_base(self) -> None:
        base = self._app.settings.get("model.base")
        if base != self._base:
            self._base = base
            self._app.in_background(lambda: look_at_base(base), lambda found: self._take_base(base, *found))

    def _take_base(self, base: str, text: str, is_wrong: bool) -> None:
        if base != self._base:
            return
        self.base_text = "" if is_wrong else text
        self._app.settings.report("model", [Problem("model.base", text)] if is_wrong else [])
        for changed in list(self._subscribers):
            changed()
