"""The prompts that samples without one get from the dataset, before a run has read all of it. No Tk."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from modules.config.clips import clip_rule
from modules.config.errors import UserError
from modules.data.folder_walk import Outputs

if TYPE_CHECKING:
    from modules.config.SampleConfig import SampleConfig
    from modules.config.TrainConfig import TrainConfig

MAX_READ = 1000  # captions, if most of them are alike


def coming_prompts(config: TrainConfig, count: int, is_wanted: Callable[[], bool] = lambda: True) -> tuple[str, ...]:
    """At most `count` prompts, as `caption_prompts` finds them; of what can't be read, none. Looks at the disk.

    is_wanted: as for `scan`.
    """
    from modules.data.concepts import as_prompt, caption_prompts

    found: dict[str, None] = {}
    for options in itertools.islice(_captions(config, is_wanted), MAX_READ):
        if options[0]:
            found[as_prompt(options[0], config.concepts)] = None
        if len(found) == count:
            break
    return tuple(found) or caption_prompts((), config.concepts, count)


def _captions(config: TrainConfig, is_wanted: Callable[[], bool]) -> Iterator[tuple[str, ...]]:
    """The captions of each image, in the order of the dataset; of a video, those of its first clip."""
    from modules.data.caption_tables import read_table
    from modules.data.captions import read_captions
    from modules.data.concepts import find_images

    outputs, takes_videos = Outputs.of(config), clip_rule(config) is not None
    for number, concept in enumerate(config.concepts):
        if not concept.enabled:
            continue
        setting = f"concepts.{number}"
        try:
            table = read_table(concept, setting) if concept.captions == "table" else None
            images, _ = find_images(concept, setting, is_wanted, outputs, takes_videos)
        except UserError:  # which its field reports
            continue
        for image in images:
            try:
                yield read_captions(image.path, concept, table) or ("",)
            except UserError:  # which the check of the data reports
                continue


def coming_prompt(samples: list[SampleConfig], number: int, prompts: tuple[str, ...]) -> str:
    """What the sample of this number gets, as with_prompts in sampling/generation.py gives them out; "" if unknown."""
    if not prompts or not samples[number].enabled:
        return ""
    earlier = sum(sample.enabled and not sample.prompt for sample in samples[:number])
    return prompts[earlier % len(prompts)]
