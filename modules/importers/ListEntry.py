from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from modules.config.show_value import show_value
from modules.importers.foreign_values import is_empty, is_secret, read_as, shown
from modules.importers.ImportResult import Line
from modules.importers.Translation import Translation


class ListEntry:
    """One entry of a list in another program's file, whose settings the table has as LIST[].NAME.

    values: of the entry. prefix: of its settings in the table, such as "datasets[].". label: what lines call it.
    path: of the entry in Chorus, such as "concepts.0".
    """

    def __init__(self, translation: Translation, values: Mapping[str, Any], prefix: str, label: str, path: str = ""):
        self.translation = translation
        self.label = label
        self.path = path
        self._prefix = prefix
        self._given = {str(name): value for name, value in values.items()}
        self._values: dict[str, Any] = {}
        self._read()

    def __getitem__(self, name: str) -> Any:
        """The value of a setting: that of the entry, or the program's default. KeyError if the table lacks it."""
        if name in self._values:
            return self._values[name]
        return self.translation.program.settings[self._prefix + name].default

    def is_given(self, name: str) -> bool:
        """Whether the entry has the setting, with a value."""
        return name in self._values

    def theirs(self, *names: str) -> str:
        """The settings with their values, for a line; only those that the entry has, if it has any."""
        given = [name for name in names if self.is_given(name)]
        return f"{self.label}: " + ", ".join(shown(name, self[name]) for name in given or names[:1])

    def take(self, setting: str, value: Any, *names: str, why: str = "") -> None:
        """Set a setting of the entry in Chorus. names: the settings that it comes from."""
        self.take_common(f"{self.path}.{setting}", value, *names, why=why)

    def take_common(self, path: str, value: Any, *names: str, why: str = "") -> None:
        """Set a setting of Chorus that all entries share."""
        self.translation.take_line(path, value, self.theirs(*names), why, any(map(self.is_given, names)))

    def leave(self, why: str, *names: str) -> None:
        self.translation.result.left.append(Line(self.theirs(*names), why=why))

    def note_rest(self) -> None:
        """The lines of settings that have no counterpart, and of those that the table lacks."""
        unused: dict[str, list[str]] = {}
        for name, value in self._given.items():
            setting = self.translation.program.settings.get(self._prefix + name)
            if setting is None:
                self._note_unknown(name, value)
            elif setting.is_secret and not is_empty(value):
                self._note_secret(name)
            elif not self.is_given(name) or self[name] == setting.default:
                continue
            elif setting.instead and not setting.by:
                self.leave(setting.instead, name)
            elif setting.unused:
                unused.setdefault(setting.unused, []).append(name)
        for why, names in unused.items():
            self.leave(why, *names)

    def _read(self) -> None:
        for name, value in self._given.items():
            setting = self.translation.program.settings.get(self._prefix + name)
            if setting is None or setting.is_secret or is_empty(value):
                continue
            try:
                self._values[name] = read_as(setting.kind, value)
            except ValueError as error:
                whose = self.translation.program.whose
                why = f"{error}; {whose} default, {show_value(setting.default)}, is used"
                self.translation.result.left.append(Line(f"{self.label}: {shown(name, value)}", why=why))

    def _note_unknown(self, name: str, value: Any) -> None:
        if is_secret(name, value):
            self._note_secret(name)
        else:
            why = f"{self.translation.program.label} has no such setting"
            self.translation.result.left.append(Line(f"{self.label}: {shown(name, value)}", why=why))

    def _note_secret(self, name: str) -> None:
        why = "it seems to be a token or a password, which is never imported"
        self.translation.result.left.append(Line(f"{self.label}: {name}", why=why))


def entries(values: Any) -> list[Mapping[str, Any]]:
    """The entries of a list that are sections."""
    return [entry for entry in values if isinstance(entry, Mapping)] if isinstance(values, list) else []
