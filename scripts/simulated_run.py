"""The GPU memory of a run, from its own code and the real size of its model, with neither weights nor a GPU.

The run's code encodes images, attaches the method, makes a step and predicts and decodes a sample on
scripts/simulated_gpu.py. In place of the pipelines' calls, text encoders are run on the tokens of a caption, and the
denoiser once for a sample. What comes and goes counts with the share that fragmentation adds (`ALLOCATOR`).
"""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any
from unittest import mock

from modules.config.TrainConfig import TrainConfig
from modules.machine.memory_estimate import ALLOCATOR, CUDA_BYTES


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
        return lasting + self.activations + CUDA_BYTES

    @property
    def peak(self) -> int:
        return max(self.training, self.caching, self.sampling)


def simulate(config: TrainConfig) -> Simulation:
    """The memory of a run on one GPU."""
    from scripts.simulated_gpu import MEMORY

    with _as_simulated():
        caching = _remembered("caching", config, lambda: _caching(config))
        result = _training(config)
    gc.collect()
    assert MEMORY.now == 0, f"{MEMORY.now} bytes are still held after the run"
    return Simulation(**result, caching=round(caching))


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
    run.plan, run.learning_rate_factor = SimpleNamespace(steps_per_epoch=100), 1.0
    weights = MEMORY.now
    loop = trainer._make_loop(run)
    step = Step([make_batch(config, base)])
    if loop.settings.fused_backward:
        loop.train_step(step)  # makes the optimizer's state
    else:
        _make_state(config, loop)
    gc.collect()
    MEMORY.restart()
    loop.train_step(step)
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
            added = _remembered("sampling", config, lambda: _sample(config, base, loop))
        sampling = round(before + averaged + added * ALLOCATOR + CUDA_BYTES)
    return {
        "weights": weights,
        "gradients": gradients,
        "optimizer": state,
        "average": average,
        "activations": round(transient * ALLOCATOR),
        "sampling": sampling,
    }


def _make_state(config: TrainConfig, loop: Any) -> None:
    """Takes the loop to the last micro-batch of a later step, with the optimizer's state and the gradients so far."""
    import torch

    for param in loop.trainable.values():
        param.grad = torch.empty_like(param)
    loop.optimizer.set_learning_rates(0)
    loop.optimizer.step(0)
    if config.gradient_accumulation_steps == 1:
        loop.optimizer.torch.zero_grad(set_to_none=True)


def _nbytes(state: Any) -> int:
    import torch
    from torch.utils._pytree import tree_leaves

    return sum(value.nbytes for value in tree_leaves(state) if isinstance(value, torch.Tensor))


def _caching(config: TrainConfig) -> float:
    """The most bytes while captions and images are encoded."""
    import torch

    from modules.config.image_sizes import largest_area
    from modules.data.LatentEncoder import PIXELS_AT_ONCE, LatentEncoder
    from modules.methods.registry import METHODS
    from scripts.simulated_gpu import MEMORY

    base, facts = make_base(config), METHODS[config.method].facts
    family, most = base.family, 0.0
    if not _trained_encoders(config, base) and (facts.uses_denoiser or config.sampling.makes_samples):
        vae = [family.vae] if not facts.uses_denoiser else []
        with base.using(*vae), base.using(*family.text_components), torch.no_grad():
            lasting = MEMORY.now
            MEMORY.restart()
            _encode_text(base, 1)
            most = lasting + (MEMORY.peak - lasting) * ALLOCATOR
    if facts.uses_denoiser:
        side, frames = round(largest_area(config) ** 0.5 / family.align) * family.align, config.data.frames
        with base.using(family.vae):
            lasting = MEMORY.now
            MEMORY.restart()
            encoder = LatentEncoder(family, base.vae)
            if family.frame_step and frames > 1:
                encoder.encode_clip(lambda: (torch.empty(3, side, side).numpy() for _ in range(frames)))
            else:
                count = max(1, min(4, PIXELS_AT_ONCE // side**2))
                encoder.encode(_pixels(family, count, side))
            most = max(most, lasting + (MEMORY.peak - lasting) * ALLOCATOR)
    return most + CUDA_BYTES


def _pixels(family: Any, count: int, side: int) -> Any:
    import torch

    return torch.empty(count, 3, *([1] if family.frame_step else []), side, side)


def _trained_encoders(config: TrainConfig, base: Any) -> list[str]:
    from modules.methods.parts import trained_in
    from modules.methods.registry import METHODS

    return [name for name in trained_in(METHODS[config.method], base, config) if name in base.family.text.encoders]


def _encode_text(base: Any, count: int) -> list[Any]:
    """The outputs of all text encoders for the tokens of `count` captions."""
    import torch

    from scripts.simulated_gpu import GPU

    outputs = []
    for name, (_, tokens) in zip(base.family.text.encoders, base.family.published.text_encoders, strict=True):
        ids = torch.empty(count, tokens, dtype=torch.long, device="meta").to(GPU)
        outputs.append(getattr(base.pipe, name)(ids)[0])
    return outputs


_remembered_bytes: dict[str, float] = {}


def _remembered(what: str, config: TrainConfig, simulated: Callable[[], float]) -> float:
    """The result of `simulated`, which is the same for runs that differ only in how they make their steps."""
    data = config.data.shape, config.data.resolutions, config.data.frames
    model = replace(config.model, gradient_checkpointing=False)
    key = repr((what, config.family, config.method, model, data, config.text_encoder, config.sampling, config.lora))
    if key not in _remembered_bytes:
        _remembered_bytes[key] = simulated()
    return _remembered_bytes[key]


def _sample(config: TrainConfig, base: Any, loop: Any) -> int:
    """The bytes that a prediction for the largest samples adds at the most, or the decoding of one of them."""
    import torch

    from modules.config.clips import sample_frames
    from modules.config.image_sizes import sample_size
    from modules.families.latents import decode_latents
    from modules.families.prediction import predict
    from modules.trainer.sampling import autocast_denoiser
    from scripts.simulated_gpu import GPU, MEMORY

    MEMORY.restart()
    before = MEMORY.now
    family = base.family
    samples = [sample for sample in config.sampling.samples if sample.enabled]
    sample = max(samples, key=lambda each: _area(sample_size(each, config.data)) * sample_frames(each, config))
    width, height = (side // family.align * family.align for side in sample_size(sample, config.data))
    frames = sample_frames(sample, config)
    count = min(config.sampling.batch_size, sum(each.count for each in samples))
    guided = count * (2 if _is_guided_at_once(family) else 1)
    with torch.no_grad():
        with contextlib.ExitStack() as stack:
            stack.enter_context(base.using(*family.denoisers, *family.guidance_denoisers))
            for name in family.denoisers:
                stack.enter_context(autocast_denoiser(base.module(name), loop.autocast))
            inputs = _inputs(base, guided, width, height, frames)
            predict(family, base.pipe, **inputs)
        with base.using(family.vae):
            shape = family.codec.shape(base.vae, width, height, frames)
            decode_latents(family, base.vae, torch.empty(1, *shape, device=GPU))
    return MEMORY.peak - before


def _is_guided_at_once(family: Any) -> bool:
    """Whether the pipeline predicts with and without the prompt in one batch, as its code says."""
    import inspect

    import diffusers

    code = inspect.getsource(getattr(diffusers, family.pipeline).__call__)
    return not family.takes_guidance and ("cat([latents] * 2)" in code or "cat([latents, latents])" in code)


def _area(size: tuple[int, int]) -> int:
    return size[0] * size[1]


def _inputs(base: Any, count: int, width: int, height: int, frames: int) -> dict[str, Any]:
    """The arguments of `predict` for `count` samples."""
    import torch

    from scripts.simulated_gpu import GPU

    family = base.family
    shape = family.codec.shape(make_vae(base), width, height, frames)
    latents = torch.empty(count, *shape, device=GPU)
    timestep = torch.full((count,), 500.0)
    given: dict[str, Any] = {"host_timestep": timestep, "text": make_text(family, count)}
    given["sizes"] = torch.zeros(count, 6).to(GPU) if family.takes_sizes else None
    first = latents[:, :, :1] if family.encode_first else latents
    given["first_frame"] = first if family.needs_first_frame else None
    features = family.published.image_features
    given["image_features"] = torch.empty(count, *features, device=GPU) if features else None
    if family.max_references == 1:  # made for it
        given["references"] = [[row] for row in latents]
    return {"noised": latents, "timestep": timestep.to(GPU), **given}


def make_batch(config: TrainConfig, base: Any) -> Any:
    """The largest micro-batch of the run, on the GPU."""
    import torch

    from modules.config.image_sizes import largest_area
    from modules.data.Batch import Batch
    from modules.methods.registry import METHODS
    from scripts.simulated_gpu import GPU

    count, family = config.batch_size, base.family
    if config.batch_size_mode == "global":
        count = -(-count // config.gradient_accumulation_steps)
    side = round(largest_area(config) ** 0.5 / family.align) * family.align
    weight, u = torch.ones(count), torch.full((count,), 0.3)
    fixed = {"weight": weight.to(GPU), "u": u.to(GPU), "cpu_u": u, "count": count, "prompts": [""] * count}
    if not METHODS[config.method].facts.uses_denoiser:
        shape = family.codec.shape(make_vae(base), side, side, 1)
        pixels = torch.empty(count, 3, side, side, device=GPU)
        return Batch(**fixed, noise=torch.empty(count, *shape, device=GPU), pixels=pixels)
    inputs = _inputs(base, count, side, side, config.data.frames)
    return Batch(
        **fixed,
        noise=torch.empty_like(inputs["noised"]),
        latents=inputs["noised"],
        sizes=inputs["sizes"],
        first_frame=inputs["first_frame"],
        image_features=inputs["image_features"],
        references=inputs.get("references"),
        text=None if _trained_encoders(config, base) else inputs["text"],
    )


def make_text(family: Any, count: int) -> dict[str, Any]:
    """The conditioning of `count` captions; masks have values, because some denoisers read the lengths of texts."""
    import torch

    from scripts.simulated_gpu import GPU

    text: dict[str, Any] = {}
    for name, shape in family.published.text.items():
        is_mask = "_mask" in name
        text[name] = (
            torch.ones(count, *shape, dtype=torch.long).to(GPU) if is_mask else torch.empty(count, *shape, device=GPU)
        )
    return {name: list(value) for name, value in text.items()} if family.text.collate == "list" else text


# --- the model --------------------------------------------------------------------------------------------------------


def make_vae(base: Any) -> Any:
    """The VAE, on the meta device if it is not loaded."""
    return base.meta_module(base.family.vae)


class _Words:
    """A tokenizer of one token."""

    unk_token, eos_token_id = None, 2

    def __call__(self, text: str, add_special_tokens: bool) -> SimpleNamespace:
        return SimpleNamespace(input_ids=[1])

    def tokenize(self, word: str) -> list[str]:
        return list(word)

    def get_vocab(self) -> dict[str, int]:
        return {}

    def add_tokens(self, names: list[str]) -> None:
        """It needs none."""

    def convert_tokens_to_ids(self, name: str) -> int:
        return 1


def make_base(config: TrainConfig) -> Any:
    """The published model of the family, none of it on the GPU."""
    import threading

    import torch
    from diffusers import DDPMScheduler

    from modules.families.registry import FAMILIES
    from modules.weights.BaseModel import BaseModel
    from scripts.count_memory import build
    from scripts.simulated_gpu import GPU

    family = FAMILIES[config.family]
    published = family.published
    assert published is not None  # presets of families of unknown size are not simulated
    components = dict.fromkeys((*family.denoisers, *family.guidance_denoisers), published.denoiser)
    components[family.vae] = published.vae
    components |= {name: part for name, (part, _) in zip(family.text.encoders, published.text_encoders, strict=True)}
    components |= dict(zip(family.text.connectors, published.connectors, strict=True))

    class PublishedModel(BaseModel):
        def __init__(self) -> None:
            self.family, self.config, self.device = family, config.model, GPU
            self._lock, self._loading_turn, self._quantized = threading.RLock(), contextlib.nullcontext, set()
            self.num_swapped, self.swaps, self._own_parts = config.model.blocks_to_swap or 0, {}, {}
            self.is_single_file = False
            self._classes = dict.fromkeys(components, ("", ""))
            self._components = dict.fromkeys(components)
            self.pipe = self._new_pipe()

        @property
        def stored_quantized(self) -> list[str]:
            return []

        def tokenizer_of(self, text_encoder: str) -> Any:
            return _Words()

        def _new_pipe(self) -> Any:
            tokenizers = dict.fromkeys(family.text.tokenizers, _Words())
            return SimpleNamespace(
                **self._components, **tokenizers, scheduler=DDPMScheduler(), config={"boundary_ratio": 0.9}
            )

        def _load_component(self, name: str) -> Any:
            return self._ready(name, build(components[name], self.dtype))

        def _on_meta(self, name: str) -> Any:
            return build(components[name], torch.float32)

    return PublishedModel()


@contextlib.contextmanager
def _as_simulated() -> Iterator[None]:
    """Inside, what needs values or files has a stand-in."""
    import torch
    from torch import Tensor, nn

    import scripts.simulated_gpu  # noqa: F401 - before a backward pass
    from modules.families import hidream
    from modules.methods import full, lora, vae
    from modules.methods.DenoisingLoss import DenoisingLoss

    def route(experts: nn.ModuleList, tokens: Tensor, expert_of: Tensor, weights: Tensor) -> Tensor:
        """The experts get equal numbers of tokens; which ones depends on values."""
        count = len(expert_of) // len(tokens)
        share = len(tokens) * count // len(experts)
        result = tokens.new_zeros(tokens.shape)
        for expert in experts:
            rows = torch.arange(share, device=tokens.device)
            result = result.index_add(0, rows, (expert(tokens[rows]) * weights[rows]).to(result.dtype))
        return result

    def text(self: DenoisingLoss, batch: Any) -> dict[str, Any]:
        if batch.text is not None:
            return batch.text
        whole = sum(output.float().mean() for output in _encode_text(self.base, batch.count))
        return {name: value + whole for name, value in make_text(self.base.family, batch.count).items()}

    with (
        mock.patch.object(hidream, "_route", route),
        mock.patch.object(DenoisingLoss, "_text", text),
        mock.patch.object(full.Full, "check_output"),
        mock.patch.object(lora.Lora, "check_output"),
        mock.patch.object(vae.Vae, "check_output"),
    ):
        yield
