from __future__ import annotations

from collections.abc import Mapping
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from modules.config.families import load_families
from modules.config.methods import METHODS
from modules.config.other_programs import ForeignSetting, Program, load_program
from modules.importers.Translation import Translation


class SdScriptsTranslation(Translation):
    """The arguments of one of sd-scripts' training scripts.

    script: the file's name, which tells what trains; its defaults hold. folder: where relative paths start.
    defaults: of a window that starts the scripts, which come before theirs. labels: by argument, what a line shows.
    """

    def __init__(
        self,
        given: Mapping[str, Any],
        script: str,
        folder: Path,
        defaults: Mapping[str, Any] | None = None,
        labels: Mapping[str, str] | None = None,
        program: Program | None = None,
    ):
        program = program or load_program("sd_scripts")
        of_script = program.facts["script_defaults"].get(script.partition("_")[0], {})
        super().__init__(program, given, {**of_script, **(defaults or {})}, labels)
        self.defaults = dict(defaults or {})
        self.script = script
        self.folder = folder
        self.chosen_by: tuple[str, ...] = ()  # the argument that tells which model, if one does
        self.finds_rate = False  # whether the optimizer finds the rate itself, and no rate or schedule has an effect
        self._choose()
        idle = self.program.facts["idle"]
        self.drop_ignored(lambda name: script_takes(self.program, script, name), script, idle)

    def _choose(self) -> None:
        """Find out method and family."""
        method, family = self.program.facts["scripts"][self.script]
        chosen = self.program.facts["model_types"].get(self["model_type"])
        if chosen and script_takes(self.program, self.script, "model_type"):
            family, self.chosen_by = chosen, ("model_type",)
        self.method = METHODS[method]
        self.family = load_families()[family]

    @property
    def is_flow(self) -> bool:
        """Whether the model is a flow model."""
        return self.family.objective == "flow"

    def take_text(self, setting: ForeignSetting) -> None:
        """A text that is left as it is if it is given."""
        if self.is_given(setting.name):
            self.take(setting.here, self[setting.name], setting.name)


def script_takes(program: Program, script: str, argument: str) -> bool:
    """Whether a script has an argument, and uses it."""
    rows = [row["scripts"] for row in program.facts["only"] if argument in row["arguments"]]
    return not rows or any(fnmatch(script, pattern) for pattern in rows[0])


def pairs(entries: Any) -> dict[str, str]:
    """The "name=value" entries of a list of arguments, or of one text."""
    words = entries.split() if isinstance(entries, str) else entries if isinstance(entries, list) else []
    found = (str(word).partition("=") for word in words)
    return {name.strip(): value.strip() for name, equals, value in found if equals}
