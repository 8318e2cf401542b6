"""Rules of reference images."""

from collections.abc import Iterator

from modules.config.families import load_families
from modules.config.image_sizes import largest_area
from modules.config.methods import facts_of
from modules.config.problems import Problem, Remedy
from modules.config.rules.conditions.ConditionRules import ConditionRules
from modules.config.TrainConfig import TrainConfig


class _References(ConditionRules):
    def problems(self, config: TrainConfig) -> Iterator[Problem]:
        """Reference images that the model can't see, or that it can't do without."""
        if not facts_of(config).uses_denoiser:
            return
        family = load_families()[config.family]
        takes_folder, is_needed = family.takes("references", without="layers"), family.fact("references", "needed")
        needs_folder = takes_folder and is_needed
        for number, concept in enumerate(config.concepts):
            path = f"concepts.{number}.reference_folder"
            if concept.enabled and concept.reference_folder and not takes_folder:
                message = f"{path}: {family.label} takes no reference images; empty it."
                yield Problem(path, message, remedy=Remedy("Train without references", {path: ""}))
            if concept.enabled and not concept.reference_folder and needs_folder:
                message = (
                    f"{path} is empty: {family.label} starts from images; choose the folder of those before the edit, "
                    "or that control it, which have the names of those that it learns to make."
                )
                yield Problem(path, message)
        for number, sample in enumerate(config.sampling.samples):
            path = f"sampling.samples.{number}.reference"
            if sample.enabled and sample.prompt and not sample.reference and is_needed:
                makes = "starts from an image" if takes_folder else "decomposes images"
                message = (
                    f"{path} is empty: {family.label} {makes}; choose one, or empty the prompt, so that an image of "
                    "the dataset gives both."
                )
                yield Problem(path, message)

    def why_not_sharded(self, config: TrainConfig) -> Iterator[tuple[str, str]]:
        for number, concept in enumerate(config.concepts):
            if concept.enabled and concept.reference_folder:
                reason = "ranks may need different numbers of passes for their references"
                yield f"concepts.{number}.reference_folder", reason

    def further_pixels(self, config: TrainConfig) -> int:
        """The area of an image's reference, if it has one; a model that takes just one, or needs it, is made for it."""
        family = load_families()[config.family]
        if family.fact("references", "as_channels"):
            return 0
        has_folder = any(concept.enabled and concept.reference_folder for concept in config.concepts)
        if has_folder or family.fact("references", "max_images") == 1 or family.fact("references", "needed"):
            return family.fact("references", "pixels") or largest_area(config)
        return 0


RULES = _References()
