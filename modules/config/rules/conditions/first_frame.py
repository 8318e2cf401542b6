"""Rules of the first and the last frame of clips and videos."""

from collections.abc import Iterator

from modules.config.clips import sample_frames
from modules.config.families import FamilyInfo, load_families
from modules.config.image_sizes import largest_area
from modules.config.methods import facts_of
from modules.config.problems import Problem, Remedy, set_to
from modules.config.rules.conditions.ConditionRules import ConditionRules
from modules.config.SampleConfig import SampleConfig
from modules.config.TrainConfig import TrainConfig


class _FirstFrame(ConditionRules):
    def problems(self, config: TrainConfig) -> Iterator[Problem]:
        family = load_families()[config.family]
        if family.takes("first_frame"):
            yield from _first_frame_problems(config, family)
            yield from _image_to_video_problems(config)

    def why_not_sharded(self, config: TrainConfig) -> Iterator[tuple[str, str]]:
        if load_families()[config.family].fact("first_frame", "beside") and 0 < config.data.image_to_video < 1:
            yield "data.image_to_video", "ranks may need different numbers of passes for clips with and without it"

    def further_pixels(self, config: TrainConfig) -> int:
        """The area of the first frame, or of an image of as many tokens, where clips have it beside their latents."""
        family = load_families()[config.family]
        if not (family.fact("first_frame", "beside") and config.data.image_to_video and config.data.frames > 1):
            return 0
        return family.fact("first_frame", "beside_pixels") or largest_area(config)


def _first_frame_problems(config: TrainConfig, family: FamilyInfo) -> Iterator[Problem]:
    """What makes no sense for models that generate a video from its first frame."""
    method = facts_of(config)
    if family.fact("first_frame", "needed") and method.takes_pairs(config):
        message = f"method {method.name}: {family.label} learns from clips, and pairs are images; choose another model."
        yield Problem("method", message)
    elif family.fact("first_frame", "needed") and config.data.frames == 1:
        message = f"data.frames 1: {family.label} learns how an image goes on; use 33, about two seconds."
        yield Problem("data.frames", message, remedy=set_to("data.frames", 33))
    for number, sample in enumerate(config.sampling.samples):
        path = f"sampling.samples.{number}.reference"
        if not sample.enabled:
            continue
        if sample.reference and sample_frames(sample, config) == 1:
            message = f"{path}: the sample would be this image alone; raise its frames or data.frames, or empty it."
            yield Problem(path, message, remedy=Remedy("Empty", {path: ""}))
        if family.fact("first_frame", "needed") and sample.prompt and not sample.reference:
            message = (
                f"{path} is empty: {family.label} makes videos of images; choose one, or empty the prompt, so that a "
                "clip of the dataset gives both."
            )
            yield Problem(path, message)
        if family.fact("first_frame", "last") == "needed" and sample.frames == 1:
            path_of_frames = f"sampling.samples.{number}.frames"
            message = f"{path_of_frames} 1: {family.label} makes videos between two images; raise it, or empty it."
            yield Problem(path_of_frames, message, remedy=Remedy("Empty", {path_of_frames: None}))
        if family.fact("first_frame", "last"):
            yield from _last_frame_problems(sample, family, f"sampling.samples.{number}.last_frame", path)


def _last_frame_problems(sample: SampleConfig, family: FamilyInfo, path: str, of_first: str) -> Iterator[Problem]:
    """path, of_first: the settings of the sample's last and first frame."""
    if sample.last_frame and not sample.reference:
        message = f"{path}: there is no first frame; choose one in {of_first}, or empty it."
        yield Problem(path, message, remedy=Remedy("Empty", {path: ""}))
    elif family.fact("first_frame", "last") == "needed" and sample.reference and not sample.last_frame:
        message = f"{path} is empty: {family.label} makes videos between two images; choose the one that they end with."
        yield Problem(path, message)


def _image_to_video_problems(config: TrainConfig) -> Iterator[Problem]:
    if config.data.image_to_video and config.data.frames == 1 and facts_of(config).uses_denoiser:
        message = f"data.image_to_video {config.data.image_to_video:g}: images alone are trained; raise data.frames."
        off = set_to("data.image_to_video", 0.0, "0")
        yield Problem("data.image_to_video", message, blocking=False, remedy=off)


RULES = _FirstFrame()
