"""Generates images with the family's diffusers pipeline, at fixed seeds."""

from __future__ import annotations

import functools
import inspect
import itertools
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import torch
from PIL import Image
from PIL.PngImagePlugin import PngInfo
from torch import nn
from torch.utils._pytree import tree_leaves, tree_map

from modules.config.atomic_file import new_file
from modules.families.conditioning import expand_textual_inversion
from modules.families.registry import family_of_pipeline
from modules.trainer.evaluation_mode import evaluation_mode

if TYPE_CHECKING:
    from diffusers.pipelines.pipeline_utils import DiffusionPipeline

    from modules.config.SampleConfig import SampleConfig
    from modules.config.SamplingConfig import SamplingConfig


@dataclass(frozen=True)
class ImageRequest:
    """One image to generate.

    seed: of its initial noise, independent of the batch. width, height: in pixels; None for the model's default.
    """

    prompt: str
    negative_prompt: str
    seed: int
    width: int | None
    height: int | None
    steps: int
    guidance: float

    def batch_key(self) -> tuple:
        """Images of one batch must have the same key."""
        return self.width, self.height, self.steps, self.guidance, bool(self.negative_prompt)


def with_prompts(sampling: SamplingConfig, prompts: Sequence[str]) -> SamplingConfig:
    """The settings with samples that have no prompt given one of `prompts` each, in turn."""
    turns = itertools.cycle(prompts or [""])
    samples = [
        replace(sample, prompt=next(turns)) if sample.enabled and not sample.prompt else sample
        for sample in sampling.samples
    ]
    return replace(sampling, samples=samples)


def image_requests(sample: SampleConfig) -> list[ImageRequest]:
    """The images that a sample setting asks for."""
    first = ImageRequest(
        sample.prompt,
        sample.negative_prompt,
        sample.seed,
        sample.width,
        sample.height,
        sample.steps,
        sample.guidance,
    )
    return repeated(first, sample.count)


def repeated(first: ImageRequest, count: int) -> list[ImageRequest]:
    """`count` images with consecutive seeds, starting with that of `first`."""
    return [replace(first, seed=first.seed + number) for number in range(count)]


def generate_images(
    pipe: DiffusionPipeline, requests: list[ImageRequest], batch_size: int
) -> Iterator[tuple[ImageRequest, Image.Image]]:
    """Yields the images in the order of `requests`, batch by batch.

    All components of the pipeline must be in memory. Its scheduler is recreated for each batch, because sampling
    changes its state.
    """
    family = family_of_pipeline(pipe)
    options = {**family.text.options, **family.call_options} if family else {}
    for batch in _batches(requests, batch_size):
        pipe.scheduler = type(pipe.scheduler).from_config(pipe.scheduler.config)
        first = batch[0]
        negative = expand_textual_inversion(pipe, [request.negative_prompt for request in batch])
        arguments = {
            **options,
            "prompt": expand_textual_inversion(pipe, [request.prompt for request in batch]),
            "generator": [torch.Generator().manual_seed(request.seed) for request in batch],
            "width": first.width,
            "height": first.height,
            "num_inference_steps": first.steps,
            family.guidance_argument if family else "guidance_scale": first.guidance,
            "output_type": "pil",
        }
        if first.negative_prompt:
            arguments["negative_prompt"] = negative
        elif family and family.text.empty_prompt:  # other pipelines encode "" themselves
            arguments["negative_prompt"] = [family.text.empty_prompt] * len(batch)
        taken = inspect.signature(pipe.__call__).parameters
        modules = (part for part in pipe.components.values() if isinstance(part, nn.Module))
        with evaluation_mode(*modules), _sliced_decoding(pipe), torch.no_grad():
            call = cast("Callable[..., Any]", pipe)  # every pipeline has a call of its own
            output = call(**{name: value for name, value in arguments.items() if name in taken})
        images = output.images if hasattr(output, "images") else [frames[0] for frames in output.frames]
        yield from zip(batch, images, strict=True)


@contextmanager
def autocast_denoiser(denoiser: nn.Module, autocast: Callable[[], AbstractContextManager]) -> Iterator[None]:
    """Inside, `denoiser` runs under `autocast` and returns its prediction in the dtype of its input.

    Autocast for the whole pipeline would be wrong: text encoders and VAEs may overflow in float16, and the sampler
    would lose the precision of the latents.
    """
    forward = denoiser.forward

    @functools.wraps(forward)
    def lowered(*args, **kwargs):
        with autocast():
            outputs = forward(*args, **kwargs)
        latents = next(value for value in tree_leaves((args, kwargs)) if isinstance(value, torch.Tensor))
        return tree_map(lambda value: value.to(latents.dtype), tuple(outputs))

    denoiser.forward = lowered
    try:
        yield
    finally:
        del denoiser.forward


def save_image(path: Path, image: Image.Image, request: ImageRequest) -> None:
    """Atomically writes a PNG with the request in its metadata."""
    info = PngInfo()
    for name, value in vars(request).items():
        info.add_text(name, str(value))
    path.parent.mkdir(parents=True, exist_ok=True)
    with new_file(path) as temporary:
        image.save(temporary, format="PNG", pnginfo=info)


@contextmanager
def _sliced_decoding(pipe: DiffusionPipeline) -> Iterator[None]:
    """Inside, the VAE decodes images one at a time, because decoding a batch takes the most memory."""
    vae = getattr(pipe, "vae", None)
    if vae is None or not hasattr(vae, "use_slicing"):
        yield
        return
    vae.enable_slicing()
    try:
        yield
    finally:
        vae.disable_slicing()  # it would slow down encoding, too


def _batches(requests: list[ImageRequest], size: int) -> Iterator[list[ImageRequest]]:
    batch: list[ImageRequest] = []
    for request in requests:
        if batch and (len(batch) == size or request.batch_key() != batch[0].batch_key()):
            yield batch
            batch = []
        batch.append(request)
    if batch:
        yield batch
