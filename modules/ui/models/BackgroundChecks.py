"""Checks in the background whether this machine and the base model suit the settings, and counts the images."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING

from modules.config.files import config_from_values
from modules.config.TrainConfig import TrainConfig
from modules.config.validation import Problem
from modules.machine.Machine import read_machine
from modules.machine.ports import LOOPBACK, next_free_port
from modules.ui.models.base_model import base_bytes, examine_base
from modules.ui.models.Listeners import Listeners
from modules.ui.models.picture_count import count_key, count_pictures

if TYPE_CHECKING:
    from modules.ui.models.DeviceModel import DeviceModel
    from modules.ui.models.RunModel import RunModel
    from modules.ui.models.Scheduler import Scheduler
    from modules.ui.models.SettingsModel import SettingsModel

SETTLE_MS = 80  # several quick changes are checked once
COUNT_MS = 600  # images are counted once typing has stopped and layout is done, as a thread slows the window down
REFRESH_SECONDS = 2.0  # for problems only: a disk may be mounted, a model copied, a port released


class BackgroundChecks:
    """Reports problems with devices, port and base model to the settings, from `start` on and after each change. Tells
    the device model the number of images and the size of the base model.

    base_text: a sentence on what is at the base model's path or name; "" while unknown or wrong.
    """

    def __init__(self, scheduler: Scheduler, settings: SettingsModel, run: RunModel, devices: DeviceModel):
        self.base_text = ""
        self._scheduler, self._settings, self._run, self._devices = scheduler, settings, run, devices
        self._base: str | None = None  # the one checked last
        self._is_wrong = False
        self._port: tuple | None = None  # port and machines checked last
        self._is_busy = False
        self._is_due = False
        self._counted: tuple | None = None  # the key of the last count
        self._count_due: str | None = None  # after's id
        self._given_up = threading.Event()  # cancels the current count
        self._listeners: Listeners[[]] = Listeners()

    def start(self) -> None:
        self._settings.subscribe(self._on_settings)
        self._devices.subscribe(lambda what: self._report_soon() if what != "usage" else None)
        self._scheduler.in_background(read_machine, self._devices.take_machine)
        self._scheduler.every(REFRESH_SECONDS, self._refresh)
        self._examine_base()
        self._check_port()
        self._count_soon()

    def close(self) -> None:
        """Cancel the current count, whose threads Python would wait for."""
        self._given_up.set()

    def subscribe(self, changed: Callable[[], None]) -> Callable[[], None]:
        """Call `changed` when base_text changes. Returns a function that unsubscribes."""
        return self._listeners.add(changed)

    def report_devices(self) -> None:
        """Report whether the settings can run on this machine, as far as it is known."""
        self._is_due = False
        # Free memory changes every second, which would refresh all fields each time.
        self._settings.report("devices", self._devices.problems(self._config(), with_memory=False))

    def _on_settings(self, paths: set[str]) -> None:
        self._report_soon()
        self._examine_base()
        self._check_port()
        self._count_soon()

    def _config(self) -> TrainConfig:
        """The settings in effect, even while some field contains an invalid value."""
        return config_from_values(self._settings.values)

    def _report_soon(self) -> None:
        if not self._is_due:
            self._is_due = True
            self._scheduler.after(SETTLE_MS, self.report_devices)

    def _examine_base(self) -> None:
        base = self._settings.get("model.base")
        if base != self._base:
            self._base, self._is_wrong = base, False
            self._set_base_text("")  # the old text describes another model
            self._scheduler.in_background(
                lambda: (*examine_base(base), base_bytes(base)), lambda found: self._take_base(base, *found)
            )

    def _refresh(self) -> None:
        if self._is_wrong:
            self._base = None
            self._examine_base()
        if self._is_busy:
            self._port = None
        self._check_port()

    def _check_port(self) -> None:
        """Check the port, but not during a run, which may be what uses it. A free port is checked again only after a
        change, because the check occupies it for a moment in which a run might want it."""
        settings = self._settings
        if not settings.get("enable_multi_gpu") or self._run.is_running:
            self._port = None
            self._take_port(None, [])
            return
        wanted = tuple(map(settings.get, ("initial_port", "num_nodes", "node_rank")))
        if wanted != self._port:
            self._port = wanted
            self._scheduler.in_background(lambda: check_port(*wanted), lambda found: self._take_port(wanted, found))

    def _take_port(self, wanted: tuple | None, found: list[Problem]) -> None:
        if wanted == self._port:
            self._is_busy = bool(found)
            self._settings.report("port", found)

    def _count_soon(self) -> None:
        if self._count_due is not None:
            self._scheduler.after_cancel(self._count_due)
        self._count_due = self._scheduler.after(COUNT_MS, self._count)

    def _count(self) -> None:
        """Count the images again if anything has changed that their number depends on."""
        self._count_due = None
        config = self._config()
        wanted = count_key(config)
        if wanted == self._counted:
            return
        self._counted = wanted
        self._given_up.set()
        given_up = self._given_up = threading.Event()

        def take(num_samples: int | None) -> None:
            if not given_up.is_set():
                self._devices.take_pictures(num_samples)

        self._scheduler.in_background(lambda: count_pictures(config, lambda: not given_up.is_set()), take)

    def _take_base(self, base: str, text: str, is_wrong: bool, num_bytes: int | None) -> None:
        if base != self._base:
            return
        self._devices.take_base(num_bytes)
        self._is_wrong = is_wrong
        self._settings.report("model", [Problem("model.base", text)] if is_wrong else [])
        self._set_base_text("" if is_wrong else text)

    def _set_base_text(self, text: str) -> None:
        if text != self.base_text:
            self.base_text = text
            self._listeners.tell()


def check_port(port: str, num_nodes: int, node_rank: int) -> list[Problem]:
    """Whether ranks can meet at a port of this machine. Call it in a thread, as it may try a hundred ports.

    A run on this machine alone takes the next free port by itself; with several machines all have to know it, and only
    the first one listens.
    """
    if node_rank > 0:
        return []
    free = next_free_port(int(port), LOOPBACK if num_nodes == 1 else "")
    if free == int(port):
        return []
    if free is None:
        return [Problem("initial_port", f"Port {port} and those after it are in use: set another one.")]
    return [Problem("initial_port", f"Port {port} is in use: next free {free}.", num_nodes > 1, str(free))]
