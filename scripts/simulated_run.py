"""The GPU memory of a run, from its own code and the real size of its model, with neither weights nor a GPU.

The run's code encodes images, attaches the method, makes a step and predicts and decodes a sample on
scripts/simulated_gpu.py, with the models of scripts/simulated_model.py. In place of a pipeline's call, the denoiser is
run once for a sample. What comes and goes counts with the share that fragmentation adds (`ALLOCATOR`).
"""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any
from unittest import mock

from modules.config.families import model_of
from modules.config.TrainConfig import TrainConfig
from modules.machine.memory.SampleMemory import ALLOCATOR, images_at_once
from modules.machine.memory_estimate import PROCESS_BYTES
from scripts.simulated_model import (
    encode_text,
    has_sources,
    largest_side,
    make_base,
    make_batch,
    make_inputs,
    reference_size,
    trained_encoders,
    with_stand_ins,
)

if TYPE_CHECKING:
    from torch import Tensor

    from modules.families.Family import Family
    from modules.trainer.Step import Step
    from modules.trainer.TrainingLoop import TrainingLoop
    from modules.weights.BaseModel import BaseModel

_CACHED_BYTES = 2**26  # that libraries may keep, such as the positions of tokens


@dataclass(frozen=True)
class Simulation:
    """Bytes on one GPU, as in MemoryEstimate. activations: all that comes and goes in a step, at its peak."""

    weights: int
    gradients: int
    optimizer: int
    average: int
    activations: int
    caching: int
    sampling: int

    @property
    def training(self) -> int:
        lasting = self.weights + self.gradients + self.optimizer + self.average
        return lasting + self.activations + PROCESS_BYTES

    @property
    def peak(self) -> int:
        return max(self.training, self.caching, self.sampling)


def simulate(config: TrainConfig) -> Simulation:
    """The memory of a run on one GPU."""
    from scripts.simulated_gpu import MEMORY

    gc.collect()
    gc.freeze()  # libraries and what they hold, so that the collections below are quick
    MEMORY.forget()
    with with_stand_ins(), _with_plain_layers():
        caching = _caching(config)
        result = _training(config)
    gc.collect()
    assert MEMORY.now <= _CACHED_BYTES, f"{MEMORY.now} bytes are still held after the run"
    return Simulation(**result, caching=round(caching))


@contextlib.contextmanager
def _with_plain_layers() -> Iterator[None]:
    """LoRA as PEFT computes it, norms, rotary embeddings and divisions by 1 as diffusers does, casts as autocast does.

    The layers of Chorus keep about as much or less, and leave some cases to these, which are to fit, too.
    """
    methods = (f"methods.{each}" for each in ("lora.fuse_lora", "full.cast_by_block", "vae.cast_by_block"))
    ours = (f"trainer.attach_method.{each}" for each in ("fuse_rotary", "leave_out_divisions"))
    layers = (*ours, "layers.frozen_norms.fuse_norms")
    with contextlib.ExitStack() as stack:
        for replaced in (*methods, *layers):
            stack.enter_context(mock.patch(f"modules.{replaced}"))
        yield


def _training(config: TrainConfig) -> dict[str, int]:
    from modules.distributed.Runtime import Runtime
    from modules.methods.parts import trained_in
    from modules.trainer.attach_method import attach_method
    from modules.trainer.GenericTrainer import GenericTrainer
    from modules.trainer.Step import Step
    from scripts.simulated_gpu import GPU, MEMORY

    base = make_base(config)
    trainer = GenericTrainer(config, runtime=Runtime(GPU))
    method = trainer.method
    parts = trained_in(method, base, config)
    if not method.facts.uses_denoiser:
        base.require(base.family.vae)
    attach_method(config, method, base, parts)
    run: Any = SimpleNamespace(base=base, parts=parts, loss=method.loss(base, config), total_steps=100)
    run.steps_until, run.learning_rate_factor = (lambda epochs: 100), 1.0
    weights = MEMORY.now
    loop = trainer._make_loop(run)
    step = Step([make_batch(config, base)])
    if loop.settings.fused_backward:
        _fused_step(loop, step)  # makes the optimizer's state
    else:
        _make_state(config, loop)
    gc.collect()
    MEMORY.restart()
    _fused_step(loop, step) if loop.settings.fused_backward else loop.train_step(step)
    gradients = 0 if loop.settings.fused_backward else sum(param.nbytes for param in loop.trainable.values())
    state = sum(_nbytes(value) for value in loop.optimizer.torch.state.values())
    average = sum(value.nbytes for value in loop.ema.averages.values()) if loop.ema else 0
    transient = max(0, MEMORY.peak - weights - gradients - state - average)
    gc.collect()
    sampling = 0
    if config.sampling.makes_samples:
        before = MEMORY.now
        with loop.inference_weights(config.ema.sample):
            averaged = MEMORY.now - before
            # only the steps themselves differ by gradient checkpointing, optimizer and batch size
            model = replace(config.model, gradient_checkpointing=False)
            made = (config.data.shape, config.data.resolutions, config.data.frames, config.sampling)
            others = repr((model, made, config.text_encoder, config.lora, has_sources(config)))
            key = ("sampling", config.family, config.method, others)
            added = _remembered(key, lambda: _sample(config, base, loop))
        sampling = round(before + averaged + added * ALLOCATOR + PROCESS_BYTES)
    return {
        "weights": weights,
        "gradients": gradients,
        "optimizer": state,
        "average": average,
        "activations": round(transient * ALLOCATOR),
        "sampling": sampling,
    }


def _fused_step(loop: TrainingLoop, step: Step) -> None:
    """A step with a fused backward pass, which reads first whether the loss is finite; here it has no value."""
    import torch

    def are_finite(tensor: Tensor) -> Tensor:
        return torch.ones(tensor.shape, dtype=torch.bool, device=tensor.device)

    with mock.patch.object(torch, "isfinite", are_finite), mock.patch.object(loop, "_read_late"):
        loop.train_step(step)


def _make_state(config: TrainConfig, loop: TrainingLoop) -> None:
    """Takes the loop to the last micro-batch of a later step, with the optimizer's state and the gradients so far."""
    import torch

    def make_gradients() -> None:
        for param in loop.trainable.values():
            param.grad = torch.empty_like(param)

    make_gradients()
    loop.optimizer.set_learning_rates(0)
    loop.optimizer.step(0)
    loop.optimizer.clear_gradients()
    if config.gradient_accumulation_steps > 1:
        make_gradients()  # anew, because stochastic rounding takes each one away when it has used it


def _nbytes(state: Any) -> int:
    import torch
    from torch.utils._pytree import tree_leaves

    return sum(value.nbytes for value in tree_leaves(state) if isinstance(value, torch.Tensor))


def _caching(config: TrainConfig) -> float:
    """The most bytes while captions and images are encoded."""
    from modules.methods.registry import METHODS

    base, uses_denoiser = make_base(config), METHODS[config.method].facts.uses_denoiser
    most = 0.0
    if not trained_encoders(config, base) and (uses_denoiser or config.sampling.makes_samples):
        encoders = (
            model_of(config).name,
            config.model.weight_dtype,
            config.model.text_encoder_quantization,
            uses_denoiser,
        )
        beside = [] if uses_denoiser else [base.family.vae]
        most = _remembered(("text", *encoders), lambda: _caching_text(base, beside))
    if uses_denoiser:
        side, frames = largest_side(config, base.family), config.data.frames
        images = (model_of(config).name, config.model.weight_dtype, side, frames)
        most = max(most, _remembered(("images", *images), lambda: _caching_images(base, side, frames)))
    return most + PROCESS_BYTES


def _caching_text(base: BaseModel, beside: list[str]) -> float:
    import torch

    from scripts.simulated_gpu import MEMORY

    with base.using(*beside), base.using(*base.family.text_components), torch.no_grad():
        lasting = MEMORY.now
        MEMORY.restart()
        encode_text(base, 1)
        return lasting + (MEMORY.peak - lasting) * ALLOCATOR


def _caching_images(base: BaseModel, side: int, frames: int) -> float:
    import torch

    from modules.data.LatentEncoder import PIXELS_AT_ONCE, LatentEncoder
    from scripts.simulated_gpu import MEMORY

    family = base.family
    with base.using(family.vae):
        lasting = MEMORY.now
        MEMORY.restart()
        encoder = LatentEncoder(family, base.vae)
        if family.frame_step and frames > 1:
            encoder.encode_clip(lambda: (torch.empty(3, side, side).numpy() for _ in range(frames)))
        else:
            width, height = (max(side, own) for own in reference_size(family, side, side))
            count = max(1, min(4, PIXELS_AT_ONCE // (width * height)))
            encoder.encode(_pixels(family, count, width, height))
        return lasting + (MEMORY.peak - lasting) * ALLOCATOR


def _pixels(family: Family, count: int, width: int, height: int) -> Tensor:
    import torch

    return torch.empty(count, 3, *([1] if family.frame_step else []), height, width)


_remembered_bytes: dict[tuple, float] = {}


def _remembered(key: tuple, simulated: Callable[[], float]) -> float:
    """The result of `simulated`, which depends on nothing but the key; many runs have the same."""
    if key not in _remembered_bytes:
        _remembered_bytes[key] = simulated()
    return _remembered_bytes[key]


def _sample(config: TrainConfig, base: BaseModel, loop: TrainingLoop) -> int:
    """The bytes that a prediction for the largest samples adds at the most, or the decoding of one of them."""
    import torch

    from modules.config.clips import sample_frames
    from modules.config.image_sizes import sample_size
    from modules.families.latents import decode_latents
    from modules.families.prediction import predict
    from modules.sampling.generation import autocast_denoiser
    from scripts.simulated_gpu import GPU, MEMORY

    MEMORY.restart()
    before = MEMORY.now
    family = base.family
    samples = [sample for sample in config.sampling.samples if sample.enabled]
    sample = max(samples, key=lambda each: _area(sample_size(each, config.data)) * sample_frames(each, config))
    width, height = (side // family.align * family.align for side in sample_size(sample, config.data))
    frames = sample_frames(sample, config) * images_at_once(config)
    count = min(config.sampling.batch_size, sum(each.count for each in samples))
    guided = count * (2 if _is_guided_at_once(family) else 1)
    with torch.no_grad():
        with contextlib.ExitStack() as stack:
            stack.enter_context(base.using(*family.denoisers, *family.guidance_denoisers))
            for name in family.denoisers:
                stack.enter_context(autocast_denoiser(base.module(name), loop.autocast))
            inputs = make_inputs(base, guided, width, height, frames, has_sources(config))
            predict(family, base.pipe, **inputs)
        with base.using(family.vae):
            shape = family.codec.shape(base.vae, width, height, frames)
            decode_latents(family, base.vae, torch.empty(1, *shape, device=GPU))
    return MEMORY.peak - before


def _is_guided_at_once(family: Family) -> bool:
    """Whether the pipeline predicts with and without the prompt in one batch, as its code says."""
    import inspect

    from modules.weights.libraries import import_pipeline

    code = inspect.getsource(import_pipeline(family.pipeline).__call__)
    return not family.takes_guidance and ("cat([latents] * 2)" in code or "cat([latents, latents])" in code)


def _area(size: tuple[int, int]) -> int:
    return size[0] * size[1]
