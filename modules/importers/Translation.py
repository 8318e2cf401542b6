from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from modules.config.files import problem_with_value
from modules.config.installation import docs_page
from modules.config.other_programs import ForeignSetting, Program
from modules.config.show_value import show_value
from modules.importers.foreign_values import flat, is_empty, is_secret, read_as, shown
from modules.importers.ImportResult import ImportResult, Line
from modules.session.redaction import holds_secret

_ADDRESS = re.compile(r"(?i)https?://")
_OF_THE_HUB = re.compile(r"(?i)https://(?:www\.)?huggingface\.co/([^/]+/[^/]+)/(?:blob|resolve|raw)/main/([^?#]+)")
Conversion = Callable[["Translation", ForeignSetting], None]


class Translation:
    """Turns the values of another program's file into settings of Chorus, and notes what became of each.

    program: its table. given: the values in the file, in the program's sections. defaults: by name, where they are not
    those of the table. labels: by name, what a line shows instead of the setting, where another one stands for it.
    A conversion is called once for the first of the settings that share it, and reads the others itself.
    """

    def __init__(
        self,
        program: Program,
        given: Mapping[str, Any],
        defaults: Mapping[str, Any] | None = None,
        labels: Mapping[str, str] | None = None,
    ):
        self.program = program
        self.given = dict(flat(given, program.settings))
        self.result = ImportResult(program.label)
        self.folder = Path()  # of the file, where the paths in it may start
        self._values: dict[str, Any] = {}
        self._defaults = dict(defaults or {})
        self._labels = dict(labels or {})
        self._read()

    def __getitem__(self, name: str) -> Any:
        """The value of a setting: that of the file, or the program's default."""
        return self._values[name]

    def is_given(self, name: str) -> bool:
        """Whether the file has the setting, with a value."""
        return name in self.given and not is_empty(self.given[name])

    def theirs(self, *names: str) -> str:
        """The settings with their values, for a line; only those that the file has, if it has any.

        Raises KeyError for a name that the table lacks.
        """
        names = tuple(self.program.settings[name].name for name in names)
        given = [name for name in names if self.is_given(name)]
        return ", ".join(self._shown(name, self._values[name]) for name in given or names[:1])

    def take(self, path: str, value: Any, *names: str, why: str = "") -> None:
        """Set a setting of Chorus. names: the settings that it comes from. why: what differs, if anything does."""
        self.take_line(path, value, self.theirs(*names), why, any(map(self.is_given, names)))

    def take_line(self, path: str, value: Any, theirs: str, why: str = "", is_given: bool = True) -> None:
        """Set a setting of Chorus. theirs: the settings that it comes from, as a line shows them."""
        if isinstance(value, str) and holds_secret(value):
            self.result.left.append(Line(theirs, why="it holds what seems to be a password or a token; set it again"))
            return
        if isinstance(value, float) and not math.isfinite(value):
            self.result.left.append(Line(theirs, why=f"{path} takes no infinite value; Chorus' default stays"))
            return
        if isinstance(value, str) and path.startswith(("model.", "lora.")) and _ADDRESS.match(value):
            on_hub = _OF_THE_HUB.match(value)
            if on_hub is None:
                self.result.left.append(Line(theirs, why=f"download the file, and name it in {path}"))
                return
            value, why = f"{on_hub[1]}/{on_hub[2]}", why or "the name of the same file on the Hub"
        if problem := problem_with_value(path, value):
            self.result.left.append(Line(theirs, why=problem.rstrip("."), is_given=is_given))
            return
        self.result.replace(path, value)
        lines = self.result.changed if why else self.result.taken
        text = ", ".join(map(str, value)) if isinstance(value, list) and value else show_value(value)
        lines.append(Line(theirs, f"{path} {text}", why, path, is_given))

    def leave(self, why: str, *names: str) -> None:
        """Note that settings are not taken. why: the reason and what to do."""
        self.result.left.append(Line(self.theirs(*names), why=why, is_given=any(map(self.is_given, names))))

    def drop_ignored(self, takes: Callable[[str], bool], who: str, idle: Mapping[str, Any] | None = None) -> None:
        """Give the settings that the other program ignores the values of an empty file, with one line for all of them.

        takes: whether it uses a setting. who: what ignores it, for the line. idle: by name, values without an effect.
        """
        ignored = [name for name in self.program.settings if self.is_given(name) and not takes(name)]
        lost = [name for name in ignored if self._has_effect(name, idle or {})]
        if lost:
            why = f"{who} ignores this, so it is not set here either; set it in Chorus if you want its effect"
            self.leave(why, *lost)
        for name in ignored:
            del self.given[name]
            self._values[name] = self._defaults.get(name, self.program.settings[name].default)

    def _has_effect(self, name: str, idle: Mapping[str, Any]) -> bool:
        setting, value = self.program.settings[name], self._values[name]
        return bool(value) and not setting.unused and value not in (setting.default, idle.get(name))

    def run(self, conversions: Mapping[str, Conversion]) -> ImportResult:
        """Convert all settings, in the order of the table, and note those that the table does not know."""
        done = set()
        for setting in self.program.settings.values():
            if setting.by and setting.by not in done:
                conversions[setting.by](self, setting)
                done.add(setting.by)
            elif not setting.by:
                self._convert(setting)
        self._note_unused()
        for name, value in self.given.items():
            if name not in self.program.settings:
                self.note_unknown(name, value)
        return self.result

    def choice(self, name: str) -> Any:
        """What the chosen value is called here; None if there is nothing like it."""
        setting, value = self.program.settings[name], self._values[name]
        return setting.values.get(str(value).lower() if isinstance(value, bool) else value)

    def _shown(self, name: str, value: Any) -> str:
        return self._labels.get(name) or shown(name, value)

    def _read(self) -> None:
        for name, setting in self.program.settings.items():
            self._values[name] = self._defaults.get(name, setting.default)
            if setting.is_secret or not self.is_given(name):
                continue
            try:
                self._values[name] = read_as(setting.kind, self.given[name])
            except ValueError as error:
                used = f"; {self.program.whose} default, {show_value(setting.default)}, is used"
                self.result.left.append(Line(self._shown(name, self.given[name]), why=f"{error}{used}"))
                del self.given[name]

    def _convert(self, setting: ForeignSetting) -> None:
        name, value = setting.name, self._values[setting.name]
        if setting.is_secret:
            if self.is_given(name):
                why = "tokens and keys are never imported; log in with `hf auth login` or the service's own command"
                self.result.left.append(Line(name, why=why))
        elif setting.here and setting.values:
            here = self.choice(name)
            if here is None:
                default = setting.values.get(str(setting.default).lower(), setting.values.get(setting.default))
                self.leave(f"Chorus has nothing like it; {setting.here} is {show_value(default)}", name)
                self.result.values[setting.here] = default
            else:
                self.take(setting.here, here, name, why=setting.why)
        elif setting.here:
            self.take(setting.here, value, name, why=setting.why)
        elif setting.instead and value != setting.default:
            self.leave(setting.instead, name)

    def _note_unused(self) -> None:
        """One line for all settings that have no effect here, for each reason."""
        reasons: dict[str, list[str]] = {}
        for name, setting in self.program.settings.items():
            if setting.unused and self.is_given(name) and self._values[name] != setting.default:
                reasons.setdefault(setting.unused, []).append(name)
        for reason, names in reasons.items():
            self.leave(reason, *names)

    def note_unknown(self, name: str, value: Any) -> None:
        """Note a setting that the table lacks."""
        if name.rpartition(".")[2] == "__version":
            return
        if is_secret(name, value):
            self.result.left.append(Line(name, why="it seems to be a token or a password, which is never imported"))
        else:
            why = f"{self.program.whose} table has no such setting: look for its meaning in {docs_page('settings')}"
            self.result.left.append(Line(shown(name, value), why=why))
