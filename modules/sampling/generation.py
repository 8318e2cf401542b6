"""Generates images and videos with the family's diffusers pipeline, at fixed seeds."""

from __future__ import annotations

import contextlib
import functools
import inspect
import itertools
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import torch
from PIL import Image
from PIL.PngImagePlugin import PngInfo
from torch import nn
from torch.utils._pytree import tree_leaves, tree_map

from modules.config.atomic_file import new_file, write_bytes
from modules.config.clips import sample_frames
from modules.config.image_sizes import sample_size
from modules.data.ClipWithAudio import ClipWithAudio
from modules.data.conditions import conditions_of
from modules.data.ImageRequest import ImageRequest
from modules.data.sample_images import image_files
from modules.data.SampleParts import SampleParts
from modules.data.videos import to_mp4
from modules.families.conditioning import clip_by_its_former_name, expand_textual_inversion
from modules.families.registry import family_of_pipeline
from modules.layers.device_memory import free_memory
from modules.layers.evaluation_mode import evaluation_mode
from modules.session.out_of_memory import is_out_of_memory, is_out_of_system_memory

if TYPE_CHECKING:
    from diffusers.pipelines.pipeline_utils import DiffusionPipeline

    from modules.config.SampleConfig import SampleConfig
    from modules.config.SamplingConfig import Sampler, SamplingConfig
    from modules.config.TrainConfig import TrainConfig
    from modules.families.Family import Family

Video = list[Image.Image]  # its frames
Sample = tuple[ImageRequest, Image.Image | Video | SampleParts]


def with_prompts(
    sampling: SamplingConfig, prompts: Sequence[str], settings: Mapping[str, Mapping[str, Any]] = {}
) -> SamplingConfig:
    """The settings with samples that have no prompt given one of `prompts` each, in turn.

    settings: prompt -> what samples without a `reference` start from, as from `settings_of_captions`.
    """
    turns = itertools.cycle(prompts or [""])
    samples = []
    for sample in sampling.samples:
        if sample.enabled and not sample.prompt:
            prompt = next(turns)
            if not sample.reference:
                sample = replace(sample, **settings.get(prompt, {}))
            sample = replace(sample, prompt=prompt)
        samples.append(sample)
    return replace(sampling, samples=samples)


def with_sizes(sampling: SamplingConfig, config: TrainConfig) -> SamplingConfig:
    """The settings with a width, a height and a number of frames in each sample. config: of the run."""
    samples = []
    for sample in sampling.samples:
        width, height = sample_size(sample, config.data)
        samples.append(replace(sample, width=width, height=height, frames=sample_frames(sample, config)))
    return replace(sampling, samples=samples)


def image_requests(sample: SampleConfig, clip_skip: int = 1, fps: float = 0.0) -> list[ImageRequest]:
    """The images that a sample setting asks for. clip_skip: of the model. fps: as in ImageRequest."""
    first = ImageRequest(
        sample.prompt,
        sample.negative_prompt,
        sample.seed,
        sample.width,
        sample.height,
        sample.steps,
        sample.guidance,
        tuple(image_files(sample.reference)) if sample.reference else (),
        clip_skip,
        sample.frames or 1,
        sample.mask,
        image_files(sample.last_frame)[-1] if sample.last_frame else "",
        sample.layers,
        fps,
    )
    return repeated(first, sample.count)


def repeated(first: ImageRequest, count: int) -> list[ImageRequest]:
    """`count` images with consecutive seeds, starting with that of `first`."""
    return [replace(first, seed=first.seed + number) for number in range(count)]


def generate_images(
    pipe: DiffusionPipeline, requests: list[ImageRequest], batch_size: int, sampler: Sampler = "model"
) -> Iterator[Sample]:
    """Yields the images, videos and parts in the order of `requests`, batch by batch.

    All components of the pipeline must be in memory. A scheduler is created for each batch, because sampling changes
    its state; the pipeline gets its own back at the end.
    """
    for batch in batches(requests, batch_size):
        yield from zip(batch, run_pipeline(pipe, batch, sampler), strict=True)


def as_many_as_fit(
    generate: Callable[[Sequence[ImageRequest], int], Generator[Sample, None, None]],
    requests: Sequence[ImageRequest],
    batch_size: int,
    device: torch.device,
    tell: Callable[[], None],
) -> Generator[Sample, None, None]:
    """What `generate` yields for (requests, batch size); once a batch does not fit in memory, the rest one at a time.

    tell: called before that. Running out of memory with a single image is an error as it was.
    """
    done = 0
    try:
        with contextlib.closing(generate(requests, batch_size)) as samples:  # also when no more are wanted
            for sample in samples:
                yield sample
                done += 1
        return
    except (RuntimeError, MemoryError) as error:
        is_single = all(len(batch) == 1 for batch in batches(requests[done:], batch_size))
        if is_single or not (is_out_of_memory(error) or is_out_of_system_memory(error)):
            raise
    free_memory(device)  # outside of `except`, where the traceback keeps the tensors alive
    tell()
    yield from generate(requests[done:], 1)


def make_scheduler(own: Any, sampler: Sampler) -> Any:
    """A new scheduler of that kind for the model whose own scheduler is given."""
    if sampler == "model":
        return type(own).from_config(own.config)
    from diffusers import EulerDiscreteScheduler, FlowMatchEulerDiscreteScheduler, HeunDiscreteScheduler

    from modules.sampling.FlowHeunScheduler import FlowHeunScheduler

    config = dict(own.config)
    is_flow = isinstance(own, FlowMatchEulerDiscreteScheduler) or config.get("prediction_type") == "flow_prediction"
    if not is_flow:
        changed = {}
        if "snr_shift_scale" in config:  # a noise schedule that the others can only be told as betas
            kept = own.alphas_cumprod.clamp(min=2**-24)  # none would be an infinite sigma
            betas = (1 - kept / torch.cat([kept.new_ones(1), kept[:-1]])).tolist()
            changed = {"trained_betas": betas, "rescale_betas_zero_snr": False}
        kind = {"euler": EulerDiscreteScheduler, "heun": HeunDiscreteScheduler}[sampler]
        return kind.from_config(config, **changed)  # in `config`, they would count as defaults that the model left
    config["shift"] = config.get("shift", config.get("flow_shift", 1.0))  # flow_shift: multistep schedulers
    return {"euler": FlowMatchEulerDiscreteScheduler, "heun": FlowHeunScheduler}[sampler].from_config(config)


def run_pipeline(
    pipe: DiffusionPipeline, batch: Sequence[ImageRequest], sampler: Sampler = "model"
) -> list[Image.Image] | list[Video] | list[SampleParts]:
    """The images, videos or parts of a batch, as from `batches`."""
    own = pipe.scheduler
    pipe.scheduler = make_scheduler(own, sampler)
    try:
        return _run(pipe, batch)
    finally:
        pipe.scheduler = own


def _run(pipe: DiffusionPipeline, batch: Sequence[ImageRequest]) -> list[Image.Image] | list[Video] | list[SampleParts]:
    family = family_of_pipeline(pipe)
    first = batch[0]
    conditions = conditions_of(family)
    starting = [condition for condition in conditions if condition.claims(first)] or conditions
    for name in (condition.pipeline(first) for condition in starting):
        if name not in ("", type(pipe).__name__):
            pipe = _in_pipeline(pipe, name)
    options = {**family.with_clip_skip(first.clip_skip).text.options, **family.call_options} if family else {}
    options |= family.step_options(first.steps) if family else {}
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
    if family and family.frame_step:
        arguments[family.frames_argument] = first.frames
    for condition in starting:
        arguments |= condition.sample_arguments(first, len(batch))
    if first.width and first.height:
        arguments["max_area"] = first.width * first.height  # else FLUX.1 Kontext chooses a size of its own
    if first.negative_prompt:
        arguments["negative_prompt"] = negative
    elif family and family.text.empty_prompt:  # other pipelines encode "" themselves
        arguments["negative_prompt"] = [family.text.empty_prompt] * len(batch)
    taken = inspect.signature(pipe.__call__).parameters
    modules = [part for part in pipe.components.values() if isinstance(part, nn.Module)]
    with contextlib.ExitStack() as stack:
        stack.enter_context(evaluation_mode(*modules))
        stack.enter_context(_sliced_decoding(pipe))
        stack.enter_context(clip_by_its_former_name(pipe))
        if family:
            stack.enter_context(call_attributes(family, pipe, first.width, first.height, first.guidance))
        stack.enter_context(torch.no_grad())
        call = cast("Callable[..., Any]", pipe)  # every pipeline has a call of its own
        output = call(**{name: value for name, value in arguments.items() if name in taken})
    samples = images_in(output)
    if samples is None:
        samples = output.frames if len(output.frames[0]) > 1 else [frames[0] for frames in output.frames]
    for condition in conditions:
        samples = condition.made(samples, output, pipe, first)
    return samples


def _in_pipeline(pipe: DiffusionPipeline, name: str) -> DiffusionPipeline:
    """The diffusers pipeline of that class, with the parts of `pipe` and how it encodes prompts."""
    import diffusers

    kind = getattr(diffusers, name)
    parts = {**pipe.config, **pipe.components}
    taken = inspect.signature(kind.__init__).parameters
    made = kind(**{name: value for name, value in parts.items() if name in taken})
    made.set_progress_bar_config(**getattr(pipe, "_progress_bar_config", {}))
    vars(made)["encode_prompt"] = pipe.encode_prompt
    return made


def images_in(output: Any) -> Any:
    """The images in what a pipeline's call returns, whatever they are called there; None if it has videos."""
    return next((getattr(output, name) for name in ("images", "image") if hasattr(output, name)), None)


@contextmanager
def call_attributes(
    family: Family, pipe: DiffusionPipeline, width: int | None, height: int | None, guidance: float
) -> Iterator[None]:
    """Inside, the pipeline has the attributes of `family.call_attributes`."""
    attributes = family.call_attributes(pipe, width, height, guidance)
    own = {name: getattr(pipe, name) for name in attributes}
    vars(pipe).update(attributes)  # setattr would note components in the pipeline's config
    try:
        yield
    finally:
        vars(pipe).update(own)


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
        return tree_map(lambda value: value.to(latents.dtype), outputs)

    denoiser.forward = lowered
    try:
        yield
    finally:
        del denoiser.forward


def save_sample(path: Path, sample: Image.Image | Video | SampleParts, request: ImageRequest, fps: float) -> None:
    """Atomically writes a PNG; of a video its first frame, after an MP4 with the same name, which has its audio, too.

    Of parts, all of them side by side, after a folder with the same name that has each of them. fps: of the video.
    Raises OSError.
    """
    if isinstance(sample, SampleParts):
        for number, part in enumerate(sample.images):
            save_image(path.with_suffix("") / f"{number}.png", part, request)
        sample = sample.side_by_side()
    if isinstance(sample, list):
        path.parent.mkdir(parents=True, exist_ok=True)
        write_bytes(
            path.with_suffix(".mp4"), to_mp4(sample, fps, sample.audio if isinstance(sample, ClipWithAudio) else None)
        )
        sample = sample[0]
    save_image(path, sample, request)


def save_image(path: Path, image: Image.Image, request: ImageRequest) -> None:
    """Atomically writes a PNG with the request in its metadata. Raises OSError."""
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


def batches(requests: Sequence[ImageRequest], size: int) -> Iterator[list[ImageRequest]]:
    """Consecutive requests with the same `batch_key`, at most `size` together."""
    batch: list[ImageRequest] = []
    for request in requests:
        if batch and (len(batch) == size or request.batch_key() != batch[0].batch_key()):
            yield batch
            batch = []
        batch.append(request)
    if batch:
        yield batch
