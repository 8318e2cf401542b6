from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from modules.config.errors import ConfigError, UserError
from modules.config.families import load_families
from modules.config.methods import METHODS
from modules.config.other_programs import load_program
from modules.config.show_value import show_value
from modules.importers.foreign_values import shown
from modules.importers.read_file import find_beside, read_content
from modules.importers.Translation import Translation


class SimpleTunerTranslation(Translation):
    """The settings of a run of SimpleTuner, or of its datasets alone, whose file does not tell the model.

    folder: where relative paths start. Raises UserError if Chorus lacks the model.
    """

    def __init__(self, given: Mapping[str, Any], folder: Path):
        super().__init__(load_program("simpletuner"), given)
        self.folder = folder
        facts = self.program.facts
        self.is_data_alone = not self.is_given("model_family")
        default = next(iter(facts["flavours"]))
        self.model = self._model(default)
        self.flavour = (self["model_flavour"] or facts["flavours"].get(self.model) or "").strip()
        name, known = self._family(), load_families()
        if name not in known:
            which = shown("model_family", f"{self.model} {self.flavour}".strip())
            raise UserError(
                f"{which} of SimpleTuner: Chorus does not train this model; copy the folders of the datasets into "
                "concepts[].path."
            )
        self.family = known[name]
        self._force()
        adapters = bool(facts["model_types"].get(self["model_type"].lower()))
        self.method = next(
            one
            for one in METHODS.values()
            if one.uses_denoiser
            and one.trains_adapters == adapters
            and one.trains_weights != adapters
            and not one.trains_words
        )

    @property
    def is_flow(self) -> bool:
        """Whether the model is a flow model."""
        return self.family.objective == "flow"

    def structure(self, name: str, kind: type) -> Any:
        """A list or section that the file has itself, as text, or in a file that it names; None without one."""
        value = self[name]
        if isinstance(value, str) and value.strip()[:1] in ("[", "{"):
            try:
                value = json.loads(value)
            except (ValueError, RecursionError):
                value = None
        elif isinstance(value, str):
            value = self.file(value)
        return value if isinstance(value, kind) else None

    def file(self, name: str) -> Any:
        """What a file that the settings name holds; None if it isn't there or can't be read."""
        path = find_beside(name, self.folder)
        if path is None or not path.is_file():
            return None
        try:
            return read_content(path)
        except ConfigError:
            return None

    def _model(self, default: str) -> str:
        """The model's name as the table has it; SimpleTuner's own examples write some with "_" for "-"."""
        name: str = (self["model_family"] or default).strip().lower()
        known = {one.replace("-", "_"): one for one in self.program.facts["families"]}
        return known.get(name.replace("-", "_"), name)

    def _force(self) -> None:
        """Set what SimpleTuner sets itself for the model, with a line for what the file has instead."""
        forced = self.program.facts["forced"]
        for name, value in (forced.get(self.model, {}) | forced.get(f"{self.model}:{self.flavour}", {})).items():
            if self.is_given(name) and self[name] != value:
                self.leave(f"SimpleTuner sets it to {show_value(value)} for this model", name)
            self.given.pop(name, None)
            self._values[name] = value

    def _family(self) -> str | None:
        families = self.program.facts["families"]
        name: str | None = families.get(f"{self.model}:{self.flavour}", families.get(self.model))
        return name
