"""Encodes prompts with the pipeline's own `encode_prompt`, with only the text encoders in memory."""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from modules.families.TextEncoding import collate_text

if TYPE_CHECKING:
    import torch
    from diffusers.pipelines.pipeline_utils import DiffusionPipeline
    from PIL.Image import Image
    from torch import Tensor

    from modules.families.Family import Family
    from modules.families.TextEncoding import Conditioning

# Arguments for every encode_prompt that has them: one text per prompt, without the unconditional half.
_FIXED = {
    "do_classifier_free_guidance": False,
    "num_images_per_prompt": 1,
    "prompt_2": None,
    "prompt_3": None,
}


def encode_text(
    family: Family, pipe: DiffusionPipeline, prompts: list[str], references: Sequence[list[Image]] | None = None
) -> Conditioning:
    """The conditioning of a batch of prompts, on the device of the encoders.

    Gradients flow if the caller enables them. Names are those of `family.text.outputs` and, for padded texts,
    `family.text.mask`. references: as in `encode_records`.
    """
    return collate_text(family.text, encode_records(family, pipe, prompts, references))


def encode_records(
    family: Family, pipe: DiffusionPipeline, prompts: list[str], references: Sequence[list[Image]] | None = None
) -> list[dict[str, Tensor]]:
    """The conditioning of each prompt, without a batch axis, as stored in the cache.

    references: of each prompt, the images that the encoders see, in the sizes of `TextEncoding.reference_size`.
    """
    numbers = range(len(prompts))
    if references is not None:
        seen = zip(prompts, references, strict=True)
        return [_encode(family, pipe, [prompt], images)[0] for prompt, images in seen]
    if family.text.collate in ("pad", "group"):  # one at a time, or they would be padded to the longest
        groups = [[number] for number in numbers]
    elif family.text.empty_options or family.text.empty_outputs:
        groups = [[number for number in numbers if bool(prompts[number]) is spoken] for spoken in (True, False)]
    else:
        groups = [list(numbers)]
    records: dict[int, dict[str, Tensor]] = {}
    for group in filter(None, groups):
        records |= dict(zip(group, _encode(family, pipe, [prompts[number] for number in group]), strict=True))
    return [records[number] for number in numbers]


def _encode(
    family: Family, pipe: DiffusionPipeline, prompts: list[str], images: list[Image] | None = None
) -> list[dict[str, Tensor]]:
    encoder = getattr(pipe, family.text.encoders[0])
    taken = inspect.signature(pipe.encode_prompt).parameters
    arguments: dict[str, Any] = {**_FIXED, "batch_size": len(prompts), "device": encoder.device}
    if images:
        arguments["image"] = images
    names = family.text.outputs
    if family.text.empty_outputs and not prompts[0]:
        names = family.text.empty_outputs
        arguments["do_classifier_free_guidance"] = True
    texts = [family.text.rewrite(pipe, prompt) if prompt else family.text.empty_prompt for prompt in prompts]
    outputs: dict[str, Any] = {}
    with _denoiser_config_available(family, pipe), _no_float16(encoder.device), clip_by_its_former_name(pipe):
        for options, own_names in ((family.text.options_for(prompts[0]), names), *family.text.further_calls):
            values = pipe.encode_prompt(
                prompt=expand_textual_inversion(pipe, texts),
                **{name: value for name, value in {**arguments, **options}.items() if name in taken},
            )
            values = values if isinstance(values, tuple) else (values,)
            outputs |= {name: value for name, value in zip(own_names, values, strict=True) if name is not None}
        named = family.text.select(pipe, outputs)
    return [{name: value[row] for name, value in named.items()} for row in range(len(prompts))]


def expand_textual_inversion(pipe: DiffusionPipeline, prompts: list[str]) -> list[str]:
    """A new list of prompts, in which words of textual inversion are expanded to all their tokens.

    Most pipelines do this themselves; that of Stable Diffusion 3 does not. Processors of texts and images in place of a
    tokenizer have no such words.
    """
    if hasattr(pipe, "maybe_convert_prompt") or not hasattr(getattr(pipe, "tokenizer", None), "tokenize"):
        return list(prompts)  # a copy: some pipelines edit the list in place
    from diffusers.loaders import TextualInversionLoaderMixin

    return TextualInversionLoaderMixin().maybe_convert_prompt(list(prompts), pipe.tokenizer)


def is_unconditional_zero(family: Family, pipe: DiffusionPipeline) -> bool:
    """Whether the pipeline uses zeros instead of the conditioning of "" if no prompt is given, as SDXL's does.

    Not where the family has options for "": they encode it as the pipeline does.
    """
    return not family.text.empty_options and bool(pipe.config.get("force_zeros_for_empty_prompt", False))


def zeroed(text: Conditioning, rows: Tensor) -> Conditioning:
    """`text` with zeros in the rows marked by `rows`, bool[B]. text: tensors only, no lists."""
    zeros: dict[str, Tensor | list[Tensor]] = {}
    for name, value in text.items():
        assert not isinstance(value, list)
        zeros[name] = value.masked_fill(rows.view(-1, *[1] * (value.dim() - 1)), 0)
    return zeros


def _no_float16(device: torch.device) -> AbstractContextManager:
    """Context that disables autocast to float16, in which the activations of T5 overflow."""
    import torch

    if torch.is_autocast_enabled(device.type) and torch.get_autocast_dtype(device.type) == torch.float16:
        return torch.autocast(device.type, enabled=False)
    return contextlib.nullcontext()


@contextlib.contextmanager
def clip_by_its_former_name(pipe: DiffusionPipeline) -> Iterator[None]:
    """Context in which a CLIPTextModel has itself as `text_model`, whose layers it took over in transformers 5.

    The pipeline of Stable Diffusion 1 uses that name where `clip_skip` is given.
    """
    encoder = getattr(pipe, "text_encoder", None)
    if type(encoder).__name__ != "CLIPTextModel" or hasattr(encoder, "text_model"):
        yield
        return
    vars(encoder)["text_model"] = encoder  # not as a module, or it would be its own child
    try:
        yield
    finally:
        del vars(encoder)["text_model"]


@contextlib.contextmanager
def _denoiser_config_available(family: Family, pipe: DiffusionPipeline) -> Iterator[None]:
    """Context in which a denoiser that is not loaded is replaced by `pipe.denoiser_config`, if the pipeline has it.

    Pipelines read the width of the zeros that replace a missing text encoder from the denoiser's config, or cast their
    results to its dtype.
    """
    (denoiser, *_), config = family.denoisers, getattr(pipe, "denoiser_config", None)
    if config is None or getattr(pipe, denoiser) is not None:
        yield
        return
    dtype = getattr(pipe, family.text.encoders[0]).dtype
    vars(pipe)[denoiser] = SimpleNamespace(config=SimpleNamespace(**config), dtype=dtype)
    try:
        yield
    finally:
        vars(pipe)[denoiser] = None
