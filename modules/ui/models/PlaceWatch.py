"""Notices when a file or folder that a setting names goes, comes back or changes its kind outside the window. No Tk."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Literal

from modules.config.describe import SettingInfo, settings_by_path
from modules.config.problems import Problem
from modules.machine.hub_parts import PARTS, named_part
from modules.ui.models.Listeners import Listeners

if TYPE_CHECKING:
    from collections.abc import Callable

    from modules.ui.models.Scheduler import Scheduler
    from modules.ui.models.SettingsModel import SettingsModel

State = Literal["missing", "file", "folder", "empty folder", "unreadable"]
FORMATS = ("file", "folder", "file_or_folder")
WRITTEN = ("workspace_dir", "cache_dir", "output.fallback_dir")  # created where they are missing
EXAMINED_ELSEWHERE = ("model.base", "concepts[].caption_table")  # which know more than whether there is a file


class PlaceWatch:
    """The state of everything on disk that the settings name, found by one look at each place, never at what is in it:
    this is cheap enough to be repeated every few seconds, whatever the number of images."""

    def __init__(self, scheduler: Scheduler, settings: SettingsModel):
        self._scheduler, self._settings = scheduler, settings
        self._named: dict[str, str] | None = None  # setting -> path, of the settings in effect; None: to be found
        self._states: dict[tuple[str, str], State] = {}  # (setting, path) -> what the last look found
        self._is_looking = False
        self._listeners: Listeners[[set[str]]] = Listeners()
        self._of_edits: Listeners[[set[str]]] = Listeners()
        settings.subscribe(self._on_settings)

    def subscribe(self, changed: Callable[[set[str]], None]) -> Callable[[], None]:
        """Call `changed` when `problems` change, with the settings whose file or folder is not what it was at the last
        look, or is missing at the first one. Returns a function that unsubscribes."""
        return self._listeners.add(changed)

    def subscribe_edits(self, changed: Callable[[set[str]], None]) -> Callable[[], None]:
        """Call `changed` when a person has edited files in folders of images, with the settings that name the folders.
        Returns a function that unsubscribes."""
        return self._of_edits.add(changed)

    def tell_edits(self, settings: set[str]) -> None:
        """Say that files in these folders were edited in the window: what is known of their content is outdated."""
        self._of_edits.tell(settings)

    def look(self) -> None:
        """Look at all places in a thread, unless an earlier look has not ended, as on a network disk that hangs."""
        if self._is_looking:
            return
        self._is_looking = True
        named = dict(self._places())
        self._scheduler.in_background(lambda: states_of(named), self._take, self._fail)

    def state(self, setting: str) -> State | None:
        """What the last look found at the place that a setting names now; None if there was none."""
        return self._states.get((setting, self._places().get(setting, "")))

    def problems(self) -> list[Problem]:
        """Of each setting that matters and names something missing."""
        found = ((declared_at(setting), path, self._error(setting)) for setting, path in self._places().items())
        return [Problem(setting, f"{setting} {path}: {error}") for setting, path, error in found if error]

    def _error(self, setting: str) -> str:
        state = self.state(setting)
        if state not in ("missing", "file"):
            return ""
        info = self._settings.info(declared_at(setting))
        is_wrong = state == "missing" or info.format == "folder"
        if not is_wrong or info.path in EXAMINED_ELSEWHERE or not self._matters(setting):
            return ""
        if state == "missing" and _may_be_on_hub(info, self._places()[setting]):
            return ""
        remedy = "choose a folder of images." if info.path == "concepts[].path" else "choose another, or empty it."
        return f"{'does not exist' if state == 'missing' else 'is not a folder'}; {remedy}"

    def _matters(self, setting: str) -> bool:
        part = setting.split(".")
        setting = declared_at(setting)
        is_off = part[0] == "concepts" and not self._settings.get(f"concepts.{part[1]}.enabled")
        return not is_off and self._settings.is_visible(setting)

    def _places(self) -> Mapping[str, str]:
        if self._named is None:
            self._named = dict(self._find_named())
        return self._named

    def _find_named(self) -> Iterator[tuple[str, str]]:
        for info in settings_by_path().values():
            if info.format in FORMATS and info.path not in WRITTEN:
                for setting in self._in_parts(info):
                    if (path := self._settings.get(setting)).strip():
                        yield setting, path

    def _in_parts(self, info: SettingInfo) -> list[str]:
        """The paths of a setting: of a list's, one for each part or file."""
        parts, of_list, name = info.path.partition("[]")
        if not of_list and info.type != "list[str]":
            return [info.path]
        return [f"{parts}.{number}{name}" for number in range(len(self._settings.get(parts)))]

    def _on_settings(self, paths: set[str]) -> None:
        self._named = None

    def _take(self, found: dict[tuple[str, str], State]) -> None:
        self._is_looking = False
        problems, before, self._states = self.problems(), self._states, found
        # what goes before the first look at it was there when the setting was read elsewhere, such as by a card
        changed = {
            declared_at(key[0])
            for key, state in found.items()
            if (state != before[key] if key in before else state == "missing")
        }
        if changed or self.problems() != problems:
            self._listeners.tell(changed)

    def _fail(self, error: Exception) -> None:
        self._is_looking = False
        raise error


def declared_at(setting: str) -> str:
    """The path of a setting itself, if it is that of an entry in a list of files: "model.text_encoders.0"."""
    whole, _, number = setting.rpartition(".")
    return whole if number.isdecimal() else setting


def _may_be_on_hub(info: SettingInfo, name: str) -> bool:
    section, _, field = info.path.partition(".")
    return section == "model" and field in PARTS and named_part(name, PARTS[field]) is not None


def states_of(named: Mapping[str, str]) -> dict[tuple[str, str], State]:
    """(setting, path) -> what is at the path that a setting names. Call it in a thread, as a disk may be slow."""
    looked = {path: _state(os.path.expanduser(path)) for path in set(named.values())}
    return {(setting, path): looked[path] for setting, path in named.items()}


def _state(path: str) -> State:
    try:
        with os.scandir(path) as entries:
            return "empty folder" if next(entries, None) is None else "folder"
    except NotADirectoryError:
        return "file" if os.path.exists(path) else "missing"  # below a file there is nothing
    except (FileNotFoundError, ValueError):  # a path with a zero character
        return "missing"
    except OSError:
        return "unreadable" if os.path.exists(path) else "missing"
