"""SimpleTuner's validation prompts as samples of Chorus."""

from __future__ import annotations

import re
from typing import Any

from modules.config.other_programs import ForeignSetting
from modules.importers.foreign_values import shown
from modules.importers.SimpleTunerTranslation import SimpleTunerTranslation

_MEGAPIXELS = 128  # below it, SimpleTuner takes a resolution as thousands of pixels
_MOST = 200  # samples
_OF_SAMPLES = (
    "validation_resolution", "validation_negative_prompt", "validation_guidance", "validation_num_inference_steps",
    "validation_seed", "num_validation_images", "validation_num_video_frames",
)  # fmt: skip


def take_samples(t: SimpleTunerTranslation, setting: ForeignSetting) -> None:
    """Take each prompt in each resolution as a sample."""
    prompts: list[tuple[str, str]] = []
    if t.is_given("validation_prompt"):
        prompts.append((t["validation_prompt"], t.theirs("validation_prompt")))
    if t.is_given("user_prompt_library"):
        prompts += _of_library(t)
    if not prompts:
        names = [name for name in _OF_SAMPLES if t.is_given(name)]
        if names:
            t.leave("there is no prompt to make samples of", *names)
        return
    sizes, number = _sizes(t), 0
    if t["validation_randomize"]:
        t.leave("samples keep their seed here, so that they can be compared", "validation_randomize")
    for prompt, theirs in prompts:
        for width, height in sizes:
            if number < _MOST:
                _take_sample(t, f"sampling.samples.{number}", prompt, theirs, (width, height))
            number += 1
    if number > _MOST:
        t.leave(f"only the first {_MOST} samples are taken", "user_prompt_library", "validation_resolution")


def _take_sample(t: SimpleTunerTranslation, path: str, prompt: str, theirs: str, size: tuple[int, int]) -> None:
    t.take_line(f"{path}.prompt", prompt, theirs)
    for setting, value in zip(("width", "height"), size, strict=True):
        t.take(f"{path}.{setting}", value, "validation_resolution")
    names = {
        "validation_negative_prompt": "negative_prompt",
        "validation_guidance": "guidance",
        "validation_num_inference_steps": "steps",
        "num_validation_images": "count",
    }
    for name, own in names.items():
        t.take(f"{path}.{own}", t[name], name)
    if t.is_given("validation_seed") and not t["validation_randomize"]:
        t.take(f"{path}.seed", t["validation_seed"] % 2**31, "validation_seed")
    if t.family.frame_step and t["validation_num_video_frames"]:
        t.take(f"{path}.frames", t["validation_num_video_frames"], "validation_num_video_frames")


def _of_library(t: SimpleTunerTranslation) -> list[tuple[str, str]]:
    """The prompts of a file, with what a line shows of each."""
    content: Any = t.structure("user_prompt_library", dict)
    if content is None:
        t.leave("the file was not found or can't be read: add its prompts to sampling.samples", "user_prompt_library")
        return []
    return [
        (prompt, shown(f"user_prompt_library {name}", prompt))
        for name, prompt in content.items()
        if isinstance(prompt, str) and prompt.strip()
    ]


def _sizes(t: SimpleTunerTranslation) -> list[tuple[int, int]]:
    """The resolutions of the samples, such as 1024 or 1280x768,1024."""
    found: list[tuple[int, int]] = []
    for text in t["validation_resolution"].split(","):
        match = re.fullmatch(r"\s*(\d{1,5})(?:\.\d*)?\s*(?:x\s*(\d{1,5}))?\s*", text)
        if match is None:
            if text.strip():
                t.leave(f"{text.strip()[:20]} is no resolution", "validation_resolution")
            continue
        width, height = int(match[1]), int(match[2] or match[1])
        if match[2] is None and width < _MEGAPIXELS:
            width = height = 1024 if width == 1 else width * 1000 // 8 * 8
        found.append((width, height))
    return found or [(256, 256)]
