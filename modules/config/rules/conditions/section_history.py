"""Rules of models that make videos section by section."""

from collections.abc import Iterator

from modules.config.families import load_families
from modules.config.image_sizes import largest_area
from modules.config.methods import facts_of
from modules.config.problems import Problem, Remedy, set_to
from modules.config.rules.conditions.ConditionRules import ConditionRules
from modules.config.TrainConfig import TrainConfig


class _SectionHistory(ConditionRules):
    def problems(self, config: TrainConfig) -> Iterator[Problem]:
        family, method = load_families()[config.family], facts_of(config)
        section = family.fact("section_history", "section")
        if section is None:
            return
        if method.takes_pairs(config):
            message = f"method {method.name}: {family.label} learns from clips, and pairs are images; choose another."
            yield Problem("method", message)
        elif config.data.frames == 1:
            message = f"data.frames 1: {family.label} learns how sections of {section} frames follow each other; "
            remedy = set_to("data.frames", 3 * section)
            yield Problem("data.frames", f"{message}use {3 * section}.", remedy=remedy)
        for number, sample in enumerate(config.sampling.samples):
            if sample.enabled and sample.frames == 1:
                path = f"sampling.samples.{number}.frames"
                message = f"{path} 1: {family.label} makes sections of {section} frames; raise it, or empty it."
                yield Problem(path, message, remedy=Remedy("Empty", {path: None}))

    def further_pixels(self, config: TrainConfig) -> int:
        """The area of as many latent frames as have the tokens of the history."""
        as_latents = load_families()[config.family].fact("section_history", "as_latents") or 0.0
        return round(as_latents * largest_area(config))


RULES = _SectionHistory()
