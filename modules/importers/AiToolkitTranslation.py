from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from modules.config.errors import UserError
from modules.config.families import load_families
from modules.config.methods import METHODS, MethodFacts
from modules.config.other_programs import load_program
from modules.config.TrainConfig import TrainConfig
from modules.importers.foreign_values import read_as, shown
from modules.importers.intervals import optimizer_steps
from modules.importers.Translation import Translation


class AiToolkitTranslation(Translation):
    """The settings of one process of ai-toolkit.

    Raises UserError if Chorus lacks its model, or what it trains.
    """

    def __init__(self, given: Mapping[str, Any]):
        super().__init__(load_program("ai_toolkit"), given)
        self.has_network = isinstance(given.get("network"), Mapping)
        self.has_embedding = isinstance(given.get("embedding"), Mapping)
        self.kind = str(given.get("type", ""))
        self.arch = self._arch()
        families, known = self.program.facts["families"], load_families()
        name = families.get(self.arch, families.get(self.arch.partition(":")[0]))
        if (self.arch in families and families[self.arch] is None) or name not in known:
            raise UserError(
                f"{shown('arch', self.arch)} of ai-toolkit: Chorus does not train this model; copy the folders of the "
                "datasets into concepts[].path."
            )
        self.family = known[name]
        self.method = self._method(given)

    @property
    def is_flow(self) -> bool:
        """Whether the model is a flow model."""
        return self.family.objective == "flow"

    @property
    def is_slider(self) -> bool:
        """Whether the process trains a slider from prompts."""
        return self.kind in self.program.facts["sliders"]

    @property
    def draws_images(self) -> bool:
        """Whether it does so without images, which the base model draws."""
        return self.kind in self.program.facts["drawing"]

    @property
    def batches(self) -> int:
        """How many of its steps, which are batches, make an optimizer step."""
        return max(1, self["train.gradient_accumulation_steps"])

    def steps(self, name: str) -> tuple[int, str]:
        """A number of steps as optimizer steps, and why it differs."""
        number = self[name]
        if number <= 0 or self.batches == 1:
            return number, ""
        return optimizer_steps(number, self.batches), "batches there, optimizer steps here"

    def section(self, name: str) -> dict[str, Any]:
        """The values of a section that the table has as one setting; empty without it."""
        return dict(self[name] or {})

    def number(self, section: str, name: str, default: float) -> float:
        """A number in such a section; the default if it is none."""
        value = self.section(section).get(name)
        if value is None:
            return default
        try:
            return read_as("float", value)
        except ValueError as error:
            self.leave(f"{name} {error}; {default:g} is used", section)
            return default

    def _arch(self) -> str:
        if self["model.arch"]:
            return self["model.arch"].strip()
        flags = self.program.facts["flags"]
        return next((arch for flag, arch in flags.items() if self[f"model.{flag}"]), "sd1")

    def _method(self, given: Mapping[str, Any]) -> MethodFacts:
        if self.is_slider:
            return next(one for one in METHODS.values() if one.draws_images(TrainConfig()))
        adapters = self.has_network
        words = self.has_embedding and bool(self.family.embedding_keys)
        if isinstance(given.get("adapter"), Mapping) and not adapters:
            raise UserError(
                "adapter of ai-toolkit: Chorus trains no IP adapters, control nets or other adapters of images; import "
                "a job that has a network."
            )
        return next(
            one
            for one in METHODS.values()
            if one.uses_denoiser
            and one.trains_adapters == adapters
            and one.trains_words == words
            and one.trains_weights == (not adapters and not words)
        )
