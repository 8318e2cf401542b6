"""Everything that would stop or spoil the next run, in one list. No Tk."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

from modules.config.counted import counted
from modules.config.labels import with_labels
from modules.config.problems import Problem, Remedy
from modules.config.TrainConfig import TrainConfig
from modules.machine.can_start import StartFacts, can_start
from modules.ui.models.Listeners import Listeners
from modules.ui.models.SettingsModel import SettingsModel


class ProblemList:
    """The problems of the settings, of what was gathered in the background, and of the last check before a start.

    Their messages name settings by their labels. Whoever shows problems takes them from here, so that each goes from
    everywhere at once when it is solved. Create it before anything else subscribes to the settings.
    """

    def __init__(self, settings: SettingsModel):
        self._settings = settings
        self._facts = StartFacts(machine=None)
        self._refused: list[Problem] = []  # by the last check
        self._refused_config: TrainConfig | None = None
        self._all: list[Problem] | None = None
        self._listeners: Listeners[[]] = Listeners()
        settings.subscribe(self._on_settings)

    def all(self) -> list[Problem]:
        """All problems, blocking ones first."""
        if self._all is None:
            refused_input = [Problem(path, text) for path, text in self._settings.refused_input().items()]
            found = [*refused_input, *can_start(self._settings.in_effect, self._facts), *self._refused]
            found = [dataclasses.replace(one, message=with_labels(one.message, one.path)) for one in found]
            self._all = sorted(dict.fromkeys(found), key=lambda problem: not problem.blocking)
        return self._all

    def blocking(self) -> list[Problem]:
        """The problems that prevent a start, without those of the last check, which a new check may find solved."""
        return [problem for problem in self.all() if problem.blocking and not self._is_refusal(problem)]

    def at(self, path: str) -> list[Problem]:
        """The problems of a setting, blocking ones first."""
        return [problem for problem in self.all() if problem.path == path]

    def error(self, path: str) -> str | None:
        """Why this setting prevents a run from starting, as a sentence; None if it does not."""
        return next((one.message for one in self.at(path) if one.blocking), None)

    def warning(self, path: str) -> str | None:
        """A warning about this setting as a sentence; None if there is none."""
        return next((one.message for one in self.at(path) if not one.blocking), None)

    def count_text(self) -> str:
        """Such as "2 problems, 1 warning"."""
        blocking = sum(problem.blocking for problem in self.all())
        warnings = len(self.all()) - blocking
        kinds = [(blocking, "problem"), (warnings, "warning")]
        return ", ".join(counted(number, kind) for number, kind in kinds if number) or "No problems"

    def apply(self, remedy: Remedy) -> None:
        """Set what the remedy sets, as one step of undo."""
        self._settings.set_many(remedy.values)

    def take_facts(self, facts: StartFacts) -> None:
        """Take what was gathered about the settings in effect."""
        if facts != self._facts:
            before = self.all()
            self._facts = facts
            self._changed(before)

    def take_refusal(self, problems: Sequence[Problem]) -> None:
        """Take what the check before a start has refused; it holds until a setting changes or the next check."""
        before = self.all()
        self._refused = list(problems)
        self._refused_config = self._settings.config()
        self._changed(before)

    def forget_refusal(self) -> None:
        """Call before a new check."""
        if self._refused:
            before, self._refused = self.all(), []
            self._changed(before)

    def subscribe(self, changed: Callable[[], None]) -> Callable[[], None]:
        """Call `changed` after every change of the list. Returns a function that unsubscribes."""
        return self._listeners.add(changed)

    def _is_refusal(self, problem: Problem) -> bool:
        return any(problem.message == with_labels(one.message, one.path) for one in self._refused)

    def _on_settings(self, paths: set[str]) -> None:
        if self._refused and self._settings.config() != self._refused_config:
            self._refused = []
        self._all = None
        self._listeners.tell()

    def _changed(self, before: list[Problem]) -> None:
        """Tell the views of the settings too, whose fields show the problems."""
        self._all = None
        paths = {problem.path for problem in set(before) ^ set(self.all())}
        if paths:
            self._settings.tell_again(paths)
