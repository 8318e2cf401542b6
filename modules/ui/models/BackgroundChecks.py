"""Gathers in the background what the list of problems has to know of machine, model, images, folder and port."""

from __future__ import annotations

import dataclasses
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from modules.config.errors import UserError
from modules.config.files import config_from_values
from modules.config.problems import Problem
from modules.config.TrainConfig import TrainConfig
from modules.loggers.access import logger_problems
from modules.machine.can_start import StartFacts
from modules.machine.devices import GpuUsage
from modules.machine.Machine import read_machine
from modules.machine.memory_estimate import GIB
from modules.machine.ports import next_free_port
from modules.session.free_folders import free_folder_beside_run
from modules.session.RunFolder import RunFolder
from modules.ui.models.base_model import base_bytes, examine_base, is_on_hub
from modules.ui.models.HubScript import PARTS, ask_about, part_options
from modules.ui.models.Listeners import Listeners
from modules.ui.models.measured_speed import measured_step_seconds, speed_key
from modules.ui.models.picture_count import count_key, count_pictures
from modules.ui.models.PlaceWatch import PlaceWatch

if TYPE_CHECKING:
    from modules.ui.models.DeviceModel import DeviceModel
    from modules.ui.models.ProblemList import ProblemList
    from modules.ui.models.RunModel import RunModel
    from modules.ui.models.RunState import RunState
    from modules.ui.models.Scheduler import Scheduler
    from modules.ui.models.SettingsModel import SettingsModel

SETTLE_MS = 80  # several quick changes are checked once
COUNT_MS = 600  # images are counted once typing has stopped and layout is done, as a thread slows the window down
HUB_MS = 800  # the Hub is asked about a name once typing has stopped
HUB_AGAIN_SECONDS = 30.0  # and again, if it could not be reached or the model not be used
REFRESH_SECONDS = 2.0  # to notice what happens outside: a disk is mounted, a model copied, a folder moved


class BackgroundChecks:
    """Tells the list of problems what it finds, from `start` on and after each change. Tells the device model the
    number of images and the size of the base model.

    base_text: a sentence on what is at the base model's path or name; "" while unknown or wrong.
    places: notices when a file or folder that a setting names goes or comes back.
    """

    def __init__(
        self, scheduler: Scheduler, settings: SettingsModel, problems: ProblemList, run: RunModel, devices: DeviceModel
    ):
        self.base_text = ""
        self.places = PlaceWatch(scheduler, settings)
        self._scheduler, self._settings, self._problems = scheduler, settings, problems
        self._run, self._devices = run, devices
        self._base: str | None = None  # the one checked last; None: to be checked anew
        self._error_of = ""  # the base that `_base_error` is of
        self._base_error = ""
        self._is_hub = False
        self._hub_asked = 0.0  # when, by the monotonic clock
        self._port: tuple | None = None  # port and machines checked last
        self._free_port: int | None = None
        self._workspace: str | None = None  # the one checked last
        self._free_workspace = ""
        self._is_due = False
        self._counted: tuple | None = None  # the key of the last count
        self._is_counting = False
        self._data_problems: tuple[Problem, ...] = ()
        self._measured: tuple | None = None  # what a measured speed was last looked for with
        self._was_running = False
        self._count_due: str | None = None  # after's id
        self._given_up = threading.Event()  # cancels the current count
        self._listeners: Listeners[[]] = Listeners()

    def start(self) -> None:
        self._settings.subscribe(self._on_settings)
        self._devices.subscribe(self._on_devices)
        self._run.subscribe(self._on_run)
        self.places.subscribe(self._on_places)
        self.places.subscribe_edits(self._on_edits)
        self._scheduler.in_background(read_machine, self._devices.take_machine)
        self._scheduler.every(REFRESH_SECONDS, self._refresh)
        self._check_places()
        self._count_soon()

    def close(self) -> None:
        """Cancel the current count, whose threads Python would wait for."""
        self._given_up.set()

    def subscribe(self, changed: Callable[[], None]) -> Callable[[], None]:
        """Call `changed` when base_text changes. Returns a function that unsubscribes."""
        return self._listeners.add(changed)

    def tell(self) -> None:
        """Tell the list of problems what is known now."""
        self._is_due = False
        devices = self._devices
        facts = StartFacts(
            machine=devices.machine,
            # of the next run, which starts when the current one has freed its memory
            usage=() if self._run.is_running else tuple(map(_roughly, devices.usage)),
            num_samples=devices.num_samples,
            base_bytes=devices.base_bytes,
            base_error=self._base_error,
            found=(*self.places.problems(), *logger_problems(self._config()), *self._data_problems),
            free_port=self._free_port,
            free_workspace="" if self._follows_workspace() else self._free_workspace,
        )
        self._problems.take_facts(facts)

    def _on_settings(self, paths: set[str]) -> None:
        self._tell_soon()
        if self._is_hub and any(path.startswith(tuple(PARTS)) for path in paths):
            self._base = None  # the Hub is asked anew what is left to download
        self._check_places()
        self._count_soon()

    def _on_devices(self, what: str) -> None:
        self._tell_soon()
        if what == "machine":
            self._count_soon()  # the speed on these devices

    def _on_places(self, settings: set[str]) -> None:
        """Look closer at what has gone, come or changed its kind outside the window."""
        if "model.base" in settings:
            self._base = None
        if any(setting.startswith("concepts.") for setting in settings):
            self._counted = None
            self._count_soon()
        self._check_places()
        self.tell()

    def _on_edits(self, settings: set[str]) -> None:
        """Count the images again whose captions or settings were edited."""
        self._counted = None
        self._count_soon()

    def _config(self) -> TrainConfig:
        """A copy of the settings in effect, even while some field contains an invalid value."""
        return config_from_values(self._settings.values)

    def _tell_soon(self) -> None:
        if not self._is_due:
            self._is_due = True
            self._scheduler.after(SETTLE_MS, self.tell)

    def _check_places(self) -> None:
        self._examine_base()
        self._check_port()
        self._check_workspace()

    def _refresh(self) -> None:
        """Look again at what may have changed outside the window, closer at what is wrong."""
        self.places.look()
        if self._base_error and (not self._is_hub or time.monotonic() - self._hub_asked > HUB_AGAIN_SECONDS):
            self._base = None
        if self._free_port != self._wanted_port():
            self._port = None
        if self._free_workspace:
            self._workspace = None
        if self._data_problems and self._count_due is None and not self._is_counting:
            self._counted = None
            self._count_soon()
        self._check_places()
        if self._problems.at("device_indexes") and self._devices.gpus and not self._run.is_running:
            self._scheduler.in_background(self._devices.read_usage(), self._devices.take_usage)

    def _examine_base(self) -> None:
        base = self._settings.get("model.base")
        if base == self._base:
            return
        is_same = base == self._error_of and self._base_error  # looked at again: it may still be wrong
        self._base = self._error_of = base
        if not is_same:
            self._base_error = ""
            self._set_base_text("")  # the old text describes another model
            self.tell()
        self._scheduler.in_background(
            lambda: (*examine_base(base), base_bytes(base), is_on_hub(base)),
            lambda found: self._take_base(base, *found),
        )

    def _take_base(self, base: str, text: str, is_wrong: bool, num_bytes: int | None, is_hub: bool) -> None:
        if base != self._base:
            return
        self._devices.take_base(num_bytes)
        self._is_hub = is_hub
        if is_hub:
            self._scheduler.after(HUB_MS, lambda: self._ask_hub(base))
            if self._base_error:  # until the Hub has answered again
                return
        self._base_error = text if is_wrong else ""
        self._set_base_text("" if is_wrong else text)
        self.tell()

    def _ask_hub(self, base: str) -> None:
        """Ask the Hub about a name once it is no longer being typed."""
        if base != self._base:
            return
        self._hub_asked = time.monotonic()

        parts = part_options(self._settings.get)

        def take(answer: tuple[str, str]) -> None:
            if base == self._base and parts == part_options(self._settings.get):
                text, self._base_error = answer
                self._set_base_text(text)
                self.tell()

        self._scheduler.in_background(lambda: ask_about(base, parts), take)

    def _set_base_text(self, text: str) -> None:
        if text != self.base_text:
            self.base_text = text
            self._listeners.tell()

    def _wanted_port(self) -> int | None:
        """The port that has to be free; None if it need not be, as any other will do, or as a run uses it."""
        settings = self._settings
        if not settings.get("enable_multi_gpu") or self._run.is_running:
            return None
        if settings.get("num_nodes") == 1 or settings.get("node_rank") > 0:
            return None
        return int(settings.get("initial_port"))

    def _check_port(self) -> None:
        """A free port is checked again only after a change, because the check occupies it for a moment in which a run
        might want it."""
        wanted = self._wanted_port()
        if self._port == (wanted,):
            return
        self._port = (wanted,)
        if wanted is None:
            self._take_port(wanted, None)
        else:
            self._scheduler.in_background(lambda: first_free_port(wanted), lambda found: self._take_port(wanted, found))

    def _take_port(self, wanted: int | None, free: int | None) -> None:
        if self._port == (wanted,) and free != self._free_port:
            self._free_port = free
            self.tell()

    def _check_workspace(self) -> None:
        workspace = self._settings.get("workspace_dir")
        if workspace == self._workspace:
            return
        is_same = self._workspace is None and self._free_workspace
        self._workspace = workspace
        if not is_same and self._free_workspace:
            self._free_workspace = ""
            self.tell()

        def take(free: str) -> None:
            if workspace == self._workspace and free != self._free_workspace:
                self._free_workspace = free
                self.tell()

        self._scheduler.in_background(lambda: free_folder_beside_run(workspace), take)

    def _follows_workspace(self) -> bool:
        """Whether the run in workspace_dir is the one that the window follows, which needs no warning of."""
        try:
            return RunFolder(self._settings.get("workspace_dir")).path == self._run.state.folder
        except UserError:  # reported when the folder is used
            return False

    def _count_soon(self) -> None:
        if self._counted is not None and self._data_problems and count_key(self._settings.in_effect) != self._counted:
            self._data_problems = ()  # of other folders
            self._tell_soon()
        if self._count_due is not None:
            self._scheduler.after_cancel(self._count_due)
        self._count_due = self._scheduler.after(COUNT_MS, self._count)

    def _count(self) -> None:
        """Count the images again if anything has changed that their number depends on."""
        self._count_due = None
        config = self._config()
        self._measure(config)
        wanted = count_key(config)
        if wanted == self._counted:
            return
        self._counted = wanted
        self._given_up.set()
        given_up = self._given_up = threading.Event()
        self._is_counting = True

        def take(found: tuple[int | None, tuple[Problem, ...]]) -> None:
            if not given_up.is_set():
                self._is_counting = False
                num_samples, self._data_problems = found
                self._devices.take_pictures(num_samples)
                self.tell()

        self._scheduler.in_background(lambda: count_pictures(config, lambda: not given_up.is_set()), take)

    def _measure(self, config: TrainConfig) -> None:
        """Look for the speed of an earlier run again if anything has changed that it depends on."""
        shape = self._devices.shape(config)
        if shape is None:  # until the machine is known
            return
        key = speed_key(config)
        wanted = key, config.workspace_dir, shape.num_ranks, bool(shape.gpus)
        if wanted == self._measured:
            return
        self._measured = wanted

        def take(step_seconds: float | None) -> None:
            if wanted == self._measured:
                self._devices.take_speed(key, step_seconds)

        self._scheduler.in_background(lambda: measured_step_seconds(config, shape.num_ranks, bool(shape.gpus)), take)

    def _on_run(self, state: RunState) -> None:
        """After a run, its speed is the last measured one."""
        if self._was_running and not state.is_running:
            self._measured = None
            self._count_soon()
        if self._was_running != state.is_running:
            self._tell_soon()
        self._was_running = state.is_running


def first_free_port(port: int) -> int:
    """The first free port of this machine from `port` on; 0 if none is. Call it in a thread, as it may try a hundred
    ports."""
    return next_free_port(port) or 0


def _roughly(usage: GpuUsage) -> GpuUsage:
    """The usage with memory in whole GiB, rounded down: what changes each second would refresh all fields each time."""
    used = usage.memory_used_bytes
    rough = None if used is None else used // GIB * GIB
    return dataclasses.replace(usage, memory_used_bytes=rough, utilisation=None, temperature_celsius=None)
