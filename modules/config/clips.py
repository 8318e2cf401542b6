"""Which runs train on video clips, and how many frames a clip can have."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from modules.config.families import load_families
from modules.config.methods import facts_of
from modules.config.problems import Problem, set_to

if TYPE_CHECKING:
    from modules.config.families import FamilyInfo
    from modules.config.SampleConfig import SampleConfig
    from modules.config.TrainConfig import TrainConfig


@dataclass(frozen=True)
class ClipRule:
    """How videos become clips.

    frames, selection: `data.frames` and `data.clips`. step, rest: Family.frame_step, Family.frame_rest. seed: of the
    run, for random starts.
    """

    frames: int
    fps: float
    selection: str
    step: int
    seed: int = 0
    rest: int = 1


def clip_rule(config: TrainConfig) -> ClipRule | None:
    """None for a run that trains on images only; data.frames counts for models of videos alone."""
    family = load_families()[config.family]
    if not family.frame_step or config.data.frames == 1 or not facts_of(config).uses_denoiser:
        return None
    of_family = clip_fps(config), config.data.clips, family.frame_step
    return ClipRule(config.data.frames, *of_family, config.seed, family.frame_rest)


def clip_fps(config: TrainConfig) -> float:
    """The frames per second of clips and of generated videos."""
    return config.data.fps or load_families()[config.family].fps


def clip_length(num_frames: int, step: int, rest: int = 1) -> int:
    """The largest number of frames up to `num_frames`, at least 1, that a clip can have.

    step, rest: Family.frame_step, Family.frame_rest.
    """
    steps = (num_frames - rest) // step
    return steps * step + rest if steps > 0 else 1


def sample_frames(sample: SampleConfig, config: TrainConfig) -> int:
    """The number of frames of a sample: by default that of the training clips, 1 for models of images."""
    if not load_families()[config.family].frame_step:
        return 1
    return sample.frames or config.data.frames


def frames_in_pass(num_frames: int, family: FamilyInfo) -> int:
    """How many frames of a clip go through the denoiser at once: those of a section, where videos are made of some."""
    return min(num_frames, family.section or num_frames)


def latent_frames(num_frames: int, family: FamilyInfo) -> int:
    """How many latent frames an image or a clip has. num_frames: a number that the family takes."""
    if num_frames <= 1 or not family.frame_step:
        return 1
    of_step, of_rest = family.frame_latents
    return (num_frames - family.frame_rest) // family.frame_step * of_step + of_rest


def frame_problems(config: TrainConfig) -> Iterator[Problem]:
    """Numbers of frames that the model's VAE would silently cut."""
    family = load_families()[config.family]
    frames = {"data.frames": config.data.frames}
    for number, sample in enumerate(config.sampling.samples):
        if sample.frames is not None:
            frames[f"sampling.samples.{number}.frames"] = sample.frames
    for setting, count in frames.items() if family.frame_step else ():
        if problem := frame_problem(setting, count, family.label, family.frame_step, family.frame_rest):
            yield problem


def frame_problem(setting: str, num_frames: int, family: str, step: int, rest: int = 1) -> Problem | None:
    """Why a clip of the family can't have this many frames, the value of `setting`. family: its name, for the message.

    step, rest: Family.frame_step, Family.frame_rest.
    """
    below = clip_length(num_frames, step, rest)
    if num_frames == below:
        return None
    above = (below if below > 1 else rest) + step
    taken = f"a multiple of {step} plus {rest}; use {below} or {above}"
    if not rest:  # and no images, then
        taken = f"a multiple of {step}; use {f'{below} or ' if below > 1 else ''}{above}"
    message = f"{setting} {num_frames}: {family} takes {taken}."
    return Problem(setting, message, remedy=set_to(setting, above))
