from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from modules.config.errors import UserError
from modules.config.families import load_families
from modules.config.methods import METHODS
from modules.config.other_programs import Program, load_program
from modules.importers.SdScriptsTranslation import SdScriptsTranslation


class MusubiTranslation(SdScriptsTranslation):
    """The arguments of one of musubi-tuner's training scripts, many of which are those of sd-scripts.

    script: the file's name, which tells with some arguments what trains. folder: where relative paths start.
    Raises UserError if Chorus lacks the model.
    """

    def __init__(self, given: Mapping[str, Any], script: str, folder: Path):
        super().__init__(given, script, folder, program=musubi_tuner())

    def _choose(self) -> None:
        facts = self.program.facts
        method, family = facts["scripts"][self.script]
        self.method = METHODS[method]
        for name, choices in facts["choices"].get(self.script, {}).items():
            switch = next((one for one in facts["switches"] if self[one]), "")
            chosen = self[name] or facts["switches"].get(switch) or next(iter(choices))
            self.chosen_by = (name,) if self[name] or not switch else (switch,)
            if chosen not in choices:
                raise UserError(f"{self.program.label} has no {name} {chosen[:40]!r} for {self.script}: correct it.")
            family = choices[chosen]
        if family is None:
            which = f"{self.script} with {self.theirs(*self.chosen_by)}" if self.chosen_by else self.script
            raise UserError(f"{which} trains a model that Chorus lacks: its settings can't be imported.")
        self.family = load_families()[family]


@lru_cache
def musubi_tuner() -> Program:
    """Its table, with sd-scripts' lines for the arguments that both have; the others of sd-scripts have no effect."""
    own, base = load_program("musubi_tuner"), load_program("sd_scripts")
    same = {name for names in own.facts["same"] for name in names}
    settings = {}
    for name, setting in base.settings.items():
        silent = replace(setting, here="", by="", values={}, why="", unused="", instead="")
        settings[name] = own.settings.get(name) or (setting if name in same else silent)
    facts = {**base.facts, **own.facts, "optimizers": base.facts["optimizers"]}
    return Program(own.label, {**settings, **own.settings}, facts)


def argument_names() -> set[str]:
    """The names of all of its arguments."""
    own = load_program("musubi_tuner")
    return set(own.settings) | {name for names in own.facts["same"] for name in names}
