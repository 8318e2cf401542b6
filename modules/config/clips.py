"""Which runs train on video clips, and how many frames a clip can have."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from modules.config.families import load_families
from modules.config.methods import facts_of
from modules.config.problems import Problem, Remedy, set_to

if TYPE_CHECKING:
    from modules.config.families import FamilyInfo
    from modules.config.SampleConfig import SampleConfig
    from modules.config.TrainConfig import TrainConfig


@dataclass(frozen=True)
class ClipRule:
    """How videos become clips.

    frames, selection: `data.frames` and `data.clips`. step: Family.frame_step. seed: of the run, for random starts.
    last_frame: whether the model is given the last frame of some clips.
    """

    frames: int
    fps: float
    selection: str
    step: int
    seed: int = 0
    last_frame: bool = False


def clip_rule(config: TrainConfig) -> ClipRule | None:
    """None for a run that trains on images only; data.frames counts for models of videos alone."""
    family = load_families()[config.family]
    if not family.frame_step or config.data.frames == 1 or not facts_of(config).uses_denoiser:
        return None
    given = last_frame_share(config) > 0
    return ClipRule(config.data.frames, clip_fps(config), config.data.clips, family.frame_step, config.seed, given)


def last_frame_share(config: TrainConfig) -> float:
    """The fraction of the clips of which the model is given the last frame, too."""
    family = load_families()[config.family]
    if family.needs_last_frame:
        return 1.0
    return config.data.last_frame if family.takes_last_frame else 0.0


def clip_fps(config: TrainConfig) -> float:
    """The frames per second of clips and of generated videos."""
    return config.data.fps or load_families()[config.family].fps


def clip_length(num_frames: int, step: int) -> int:
    """The largest number of frames up to `num_frames`, at least 1, that a clip can have. step: Family.frame_step."""
    return (max(num_frames, 1) - 1) // step * step + 1


def sample_frames(sample: SampleConfig, config: TrainConfig) -> int:
    """The number of frames of a sample: by default that of the training clips, 1 for models of images."""
    if not load_families()[config.family].frame_step:
        return 1
    return sample.frames or config.data.frames


def frame_problems(config: TrainConfig) -> Iterator[Problem]:
    """Numbers of frames that the model's VAE would silently cut."""
    family = load_families()[config.family]
    frames = {"data.frames": config.data.frames}
    for number, sample in enumerate(config.sampling.samples):
        if sample.frames is not None:
            frames[f"sampling.samples.{number}.frames"] = sample.frames
    for setting, count in frames.items() if family.frame_step else ():
        if problem := frame_problem(setting, count, family.label, family.frame_step):
            yield problem
    if family.takes_first_frame:
        yield from _first_frame_problems(config, family)


def _first_frame_problems(config: TrainConfig, family: FamilyInfo) -> Iterator[Problem]:
    """What makes no sense for models that generate a video from its first frame."""
    if family.needs_first_frame and config.data.frames == 1:
        message = f"data.frames 1: {family.label} learns how an image goes on; use 33, about two seconds."
        yield Problem("data.frames", message, remedy=set_to("data.frames", 33))
    for number, sample in enumerate(config.sampling.samples):
        path = f"sampling.samples.{number}.reference"
        if not sample.enabled:
            continue
        if sample.reference and sample_frames(sample, config) == 1:
            message = f"{path}: the sample would be this image alone; raise its frames or data.frames, or empty it."
            yield Problem(path, message, remedy=Remedy("Empty", {path: ""}))
        if family.needs_first_frame and sample.prompt and not sample.reference:
            message = (
                f"{path} is empty: {family.label} makes videos of images; choose one, or empty the prompt, so that a "
                "clip of the dataset gives both."
            )
            yield Problem(path, message)
        if family.needs_last_frame and sample.frames == 1:
            path_of_frames = f"sampling.samples.{number}.frames"
            message = f"{path_of_frames} 1: {family.label} makes videos between two images; raise it, or empty it."
            yield Problem(path_of_frames, message, remedy=Remedy("Empty", {path_of_frames: None}))
        if family.takes_last_frame:
            yield from _last_frame_problems(sample, family, f"sampling.samples.{number}.last_frame", path)


def _last_frame_problems(sample: SampleConfig, family: FamilyInfo, path: str, of_first: str) -> Iterator[Problem]:
    """path, of_first: the settings of the sample's last and first frame."""
    if sample.last_frame and not sample.reference:
        message = f"{path}: there is no first frame; choose one in {of_first}, or empty it."
        yield Problem(path, message, remedy=Remedy("Empty", {path: ""}))
    elif family.needs_last_frame and sample.reference and not sample.last_frame:
        message = f"{path} is empty: {family.label} makes videos between two images; choose the one that they end with."
        yield Problem(path, message)


def frame_problem(setting: str, num_frames: int, family: str, step: int) -> Problem | None:
    """Why a clip of the family can't have this many frames, the value of `setting`. family: its name, for the message.

    step: Family.frame_step.
    """
    below = clip_length(num_frames, step)
    if num_frames == below:
        return None
    above = below + step
    message = f"{setting} {num_frames}: {family} takes a multiple of {step} plus 1; use {below} or {above}."
    return Problem(setting, message, remedy=set_to(setting, above))
