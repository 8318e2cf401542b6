"""Prompts to conditioning: the pipeline's own `encode_prompt`, with only the text encoders in memory."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from diffusers import DiffusionPipeline
    from torch import Tensor

    from modules.families.Family import Family

# What every encode_prompt that takes them is told: one plain text per prompt, no unconditional half.
_FIXED = {
    "do_classifier_free_guidance": False,
    "num_images_per_prompt": 1,
    "prompt_2": None,
    "prompt_3": None,
}


def encode_text(family: Family, pipe: DiffusionPipeline, prompts: list[str]) -> dict[str, Tensor]:
    """Conditioning of `prompts`, by name, each [len(prompts), ...], on the encoders' device.

    Gradients flow where the caller has them enabled. The names are those of `family.text.outputs`.
    """
    encoder = getattr(pipe, family.text.encoders[0])
    taken = inspect.signature(pipe.encode_prompt).parameters
    arguments: dict[str, Any] = {**_FIXED, "device": encoder.device, **family.text.options}
    outputs = pipe.encode_prompt(
        prompt=list(prompts),  # a copy: some pipelines edit the list in place
        **{name: value for name, value in arguments.items() if name in taken},
    )
    return {name: value for name, value in zip(family.text.outputs, outputs, strict=True) if name is not None}
