"""What the window finds out by itself about the settings: whether this machine, the base model and the number of
pictures suit them."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING

from modules.config.files import config_from_values
from modules.config.TrainConfig import TrainConfig
from modules.config.validation import Problem
from modules.machine.Machine import read_machine
from modules.machine.ports import LOOPBACK, next_free_port
from modules.ui.models.base_model import base_bytes, look_at_base
from modules.ui.models.Listeners import Listeners
from modules.ui.models.picture_count import count_key, count_pictures

if TYPE_CHECKING:
    from modules.ui.models.DeviceModel import DeviceModel
    from modules.ui.models.RunModel import RunModel
    from modules.ui.models.Scheduler import Scheduler
    from modules.ui.models.SettingsModel import SettingsModel

SETTLE_MS = 80  # several changes at once are looked at once
COUNT_MS = 600  # pictures are counted when the typing has stopped, and what opens is laid out: threads take turns
LOOK_AGAIN_SECONDS = 2.0  # at what was wrong: a disk may be mounted, a model copied, a port left


class BackgroundChecks:
    """Reports the problems of devices, port and base model to the settings: after `start`, and after each change. The
    devices are told how many pictures there are, and how large the base model is.

    base_text: what there is at the base model's path or name, in a sentence; "" while that is not known, or wrong.
    """

    def __init__(self, scheduler: Scheduler, settings: SettingsModel, run: RunModel, devices: DeviceModel):
        self.base_text = ""
        self._scheduler, self._settings, self._run, self._devices = scheduler, settings, run, devices
        self._base: str | None = None  # that was looked at last
        self._is_wrong = False
        self._port: tuple | None = None  # port and machines that were looked at last
        self._is_busy = False
        self._is_due = False
        self._counted: tuple | None = None  # what the pictures were counted for last
        self._count_due: str | None = None  # after's id
        self._given_up = threading.Event()  # ends the count that goes on
        self._listeners: Listeners[[]] = Listeners()

    def start(self) -> None:
        self._settings.subscribe(self._on_settings)
        self._devices.subscribe(lambda what: self._soon() if what != "usage" else None)
        self._scheduler.in_background(read_machine, self._devices.take_machine)
        self._scheduler.every(LOOK_AGAIN_SECONDS, self._look_again)
        self._look_at_base()
        self._look_at_port()
        self._count_soon()

    def close(self) -> None:
        """End the count that goes on: Python would wait for its threads."""
        self._given_up.set()

    def subscribe(self, changed: Callable[[], None]) -> Callable[[], None]:
        """Call `changed` when base_text has. Returns a function that ends it."""
        return self._listeners.add(changed)

    def report_devices(self) -> None:
        """Whether the settings can run on this machine, as far as it is known."""
        self._is_due = False
        # Free memory changes every second: it is no reason to go over all fields.
        self._settings.report("devices", self._devices.problems(self._config(), with_memory=False))

    def _on_settings(self, paths: set[str]) -> None:
        self._soon()
        self._look_at_base()
        self._look_at_port()
        self._count_soon()

    def _config(self) -> TrainConfig:
        """The settings in force, also while some field holds what is refused."""
        return config_from_values(self._settings.values)

    def _soon(self) -> None:
        if not self._is_due:
            self._is_due = True
            self._scheduler.after(SETTLE_MS, self.report_devices)

    def _look_at_base(self) -> None:
        base = self._settings.get("model.base")
        if base != self._base:
            self._base, self._is_wrong = base, False
            self._say_of_base("")  # what was found before is of another one
            self._scheduler.in_background(
                lambda: (*look_at_base(base), base_bytes(base)), lambda found: self._take_base(base, *found)
            )

    def _look_again(self) -> None:
        if self._is_wrong:
            self._base = None
            self._look_at_base()
        if self._is_busy:
            self._port = None
        self._look_at_port()

    def _look_at_port(self) -> None:
        """Not while a run goes on, which may be what uses the port. Of a free one only after a change: a look holds it
        for a moment, in which a run might want it."""
        settings = self._settings
        if not settings.get("enable_multi_gpu") or self._run.is_running:
            self._port = None
            self._take_port(None, [])
            return
        wanted = tuple(map(settings.get, ("initial_port", "num_nodes", "node_rank")))
        if wanted != self._port:
            self._port = wanted
            self._scheduler.in_background(lambda: look_at_port(*wanted), lambda found: self._take_port(wanted, found))

    def _take_port(self, wanted: tuple | None, found: list[Problem]) -> None:
        if wanted == self._port:
            self._is_busy = bool(found)
            self._settings.report("port", found)

    def _count_soon(self) -> None:
        if self._count_due is not None:
            self._scheduler.after_cancel(self._count_due)
        self._count_due = self._scheduler.after(COUNT_MS, self._count)

    def _count(self) -> None:
        """Count the pictures again where something has changed on which their number depends."""
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
        self._say_of_base("" if is_wrong else text)

    def _say_of_base(self, text: str) -> None:
        if text != self.base_text:
            self.base_text = text
            self._listeners.tell()


def look_at_port(port: str, num_nodes: int, node_rank: int) -> list[Problem]:
    """Whether ranks can meet at a port of this machine; for a thread, as it may try a hundred.

    A run on this machine alone takes the next free one by itself; of several machines all have to know it, and only
    the first listens.
    """
    if node_rank > 0:
        return []
    free = next_free_port(int(port), LOOPBACK if num_nodes == 1 else "")
    if free == int(port):
        return []
    if free is None:
        return [Problem("initial_port", f"Port {port} and those after it are in use: set another one.")]
    return [Problem("initial_port", f"Port {port} is in use: next free {free}.", num_nodes > 1, str(free))]
