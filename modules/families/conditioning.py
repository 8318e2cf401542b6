"""Prompts to conditioning: the pipeline's own `encode_prompt`, with only the text encoders in memory."""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch
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
    with _denoiser_described(family, pipe), _no_float16(encoder.device):
        outputs = pipe.encode_prompt(
            prompt=written_out(pipe, prompts),
            **{name: value for name, value in arguments.items() if name in taken},
        )
    return {name: value for name, value in zip(family.text.outputs, outputs, strict=True) if name is not None}


def written_out(pipe: DiffusionPipeline, prompts: list[str]) -> list[str]:
    """The prompts, in a new list, with every token of trained words that have several (textual inversion).

    Pipelines that know textual inversion do it themselves; Stable Diffusion 3's does not.
    """
    if hasattr(pipe, "maybe_convert_prompt") or getattr(pipe, "tokenizer", None) is None:
        return list(prompts)  # a copy: some pipelines edit the list in place
    from diffusers.loaders import TextualInversionLoaderMixin

    return TextualInversionLoaderMixin().maybe_convert_prompt(list(prompts), pipe.tokenizer)


def is_unconditional_zero(pipe: DiffusionPipeline) -> bool:
    """Whether the pipeline takes zeros where no prompt is given, as SDXL's does, and not the conditioning of ""."""
    return bool(pipe.config.get("force_zeros_for_empty_prompt", False))


def zeroed(text: Mapping[str, Tensor], rows: Tensor) -> dict[str, Tensor]:
    """The conditioning `text`, zero in the rows that `rows`, bool[B], marks."""
    return {name: value.masked_fill(rows.view(-1, *[1] * (value.dim() - 1)), 0) for name, value in text.items()}


def _no_float16(device: torch.device) -> AbstractContextManager:
    """Inside, autocast is off where it casts to float16, in which the activations of T5 overflow."""
    import torch

    if torch.is_autocast_enabled(device.type) and torch.get_autocast_dtype(device.type) == torch.float16:
        return torch.autocast(device.type, enabled=False)
    return contextlib.nullcontext()


@contextlib.contextmanager
def _denoiser_described(family: Family, pipe: DiffusionPipeline) -> Iterator[None]:
    """Inside, a denoiser that is not in memory has its config, if the pipeline's maker left one in `denoiser_config`.

    Pipelines ask it how wide the zeros are that stand in for an encoder which the model goes without.
    """
    (denoiser, *_), config = family.denoisers, getattr(pipe, "denoiser_config", None)
    if config is None or getattr(pipe, denoiser) is not None:
        yield
        return
    vars(pipe)[denoiser] = SimpleNamespace(config=SimpleNamespace(**config))
    try:
        yield
    finally:
        vars(pipe)[denoiser] = None
