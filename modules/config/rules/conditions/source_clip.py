"""Rules of source clips."""

from collections.abc import Iterator

from modules.config.clips import latent_frames
from modules.config.families import load_families
from modules.config.image_sizes import largest_area
from modules.config.methods import facts_of
from modules.config.problems import Problem, Remedy
from modules.config.rules.conditions.ConditionRules import ConditionRules
from modules.config.TrainConfig import TrainConfig


class _SourceClip(ConditionRules):
    def problems(self, config: TrainConfig) -> Iterator[Problem]:
        """Source clips that the model can't see, or that it can't do without."""
        if not facts_of(config).uses_denoiser:
            return
        family = load_families()[config.family]
        is_seen, is_needed = family.takes("source_clip"), family.fact("source_clip", "needed")
        for number, concept in enumerate(config.concepts):
            path = f"concepts.{number}.source_folder"
            if concept.enabled and concept.source_folder and not is_seen:
                message = f"{path}: {family.label} takes no source clips; empty it."
                yield Problem(path, message, remedy=Remedy("Train without source clips", {path: ""}))
            if concept.enabled and not concept.source_folder and is_needed:
                message = (
                    f"{path} is empty: {family.label} makes videos of videos; choose the folder of the clips that it "
                    "starts from, which have the names of those that it learns to make."
                )
                yield Problem(path, message)
        for number, sample in enumerate(config.sampling.samples):
            path = f"sampling.samples.{number}.reference"
            if sample.enabled and sample.prompt and not sample.reference and is_needed:
                message = (
                    f"{path} is empty: {family.label} makes videos of videos; choose one, or empty the prompt, so that "
                    "a clip of the dataset gives both."
                )
                yield Problem(path, message)

    def further_pixels(self, config: TrainConfig) -> int:
        """Those of a clip, if it is seen as further tokens."""
        family = load_families()[config.family]
        has_folder = any(concept.enabled and concept.source_folder for concept in config.concepts)
        if not has_folder or family.fact("source_clip", "needed") is not False:
            return 0
        return largest_area(config) * latent_frames(config.data.frames, family)


RULES = _SourceClip()
