"""Runs whose passes are replayed as CUDA graphs beside the same runs without: results, speed and memory."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

from scripts.gpu.cases import Case, needs_cuda
from scripts.gpu.models import FLUX1, SDXL
from scripts.gpu.step_speed import CHECKPOINTS, chorus
from scripts.gpu.tiny_runs import MIXED, SAMPLED, VALIDATED, config_of, furthest, largest_difference, train, weights_of
from tests.support.small_runs import family_settings

ON, OFF = "model.cuda_graphs=on", "model.cuda_graphs=off"
MOST_OFF = 1e-6  # relative, of losses and weights
MOST_MEMORY = 1.10  # of that without graphs
# several sizes, and samples, validation and a backup between replays
RUN = (
    "batch_size=4",
    "max_steps=16",
    "data.bucket_step=16",
    "lora.dropout=0",
    *VALIDATED,
    *SAMPLED,
    "sampling.every=5",
    "sampling.unit=steps",
)
LOSSES = (
    "loss.weighting=min_snr_gamma",
    "diffusion.offset_noise=0.1",
    "diffusion.offset_noise_by_timestep=true",
    "data.caption_dropout=0.3",
)
KINDS: dict[str, tuple[str, ...]] = {
    "LoRA": (),
    "LoRA, bf16, checkpointing": MIXED,
    "LoRA, fp16, dropout, losses": ("model.mixed_precision=fp16", "lora.dropout=0.1", "lora.rank_dropout=0.1", *LOSSES),
    "LoRA, int8": (*MIXED, "model.denoiser_quantization=int8"),
    "full, accumulation": ("method=full", "optimizer.learning_rate=1e-5", "gradient_accumulation_steps=2"),
}
FAMILIES = ("flux1", "sdxl", "zimage", "sana")
SPEED = {
    "SDXL, batch 4, checkpointing": (SDXL, ("batch_size=4", CHECKPOINTS)),
    "SDXL, batch 1": (SDXL, ()),
    "FLUX.1, checkpointing": (FLUX1, (CHECKPOINTS,)),
    "FLUX.1, int8": (FLUX1, (CHECKPOINTS, "model.denoiser_quantization=int8")),
}


def graphs(device: str) -> Iterator[Case]:
    """Whether replayed passes give the same as others."""
    needs_cuda(device)
    for name, settings in KINDS.items():
        yield name, partial(as_without, name, settings, device)
    for family in FAMILIES:
        yield family, partial(as_without, family, (*MIXED, *family_settings(family)), device, family)
    yield "compiled", partial(as_without, "compiled", (*MIXED, "model.compile=blocks"), device)
    yield "resumed", partial(resumed, device)


def graph_speed(device: str) -> Iterator[Case]:
    """Steps of real widths with graphs and without, one after the other."""
    needs_cuda(device)
    for name, (model, settings) in SPEED.items():
        yield name, partial(with_and_without, name, model, settings, device)


@contextmanager
def soon() -> Iterator[None]:
    """Inside, graphs repay their capture in a run of a few steps."""
    from modules.trainer import PassGraphs

    least = PassGraphs.LEAST_USES
    PassGraphs.LEAST_USES = 1
    try:
        yield
    finally:
        PassGraphs.LEAST_USES = least


def as_without(name: str, settings: tuple[str, ...], device: str, family: str = "sd15") -> dict[str, Any]:
    """Losses and weights are those of a run without graphs, unless it says why it has none."""
    usual = train(config_of(f"{name} without graphs", *RUN, *settings, OFF, family=family), device)
    with soon():
        replayed = train(config_of(f"{name} with graphs", *RUN, *settings, ON, family=family), device)
    curve = furthest(replayed.callbacks.losses, usual.callbacks.losses)
    weights = largest_difference(weights_of(replayed), weights_of(usual))
    obstacles = [text for text in replayed.callbacks.warnings if "cuda_graphs" in text]
    count = replayed.loop.graphs.num_replays
    is_right = curve <= MOST_OFF and weights <= MOST_OFF and bool(count or obstacles)
    return {"ok": is_right, "replays": count, "curve": curve, "weights": weights, "obstacles": obstacles}


def resumed(device: str) -> dict[str, Any]:
    """A run that was stopped and resumed, both with graphs, ends as one without."""
    usual = train(config_of("resumed without graphs", *RUN, OFF), device)
    with soon():
        train(config_of("resumed with graphs", *RUN, ON, "max_steps=8"), device)
        last = train(config_of("resumed with graphs", *RUN, ON), device, resume=True)
    weights = largest_difference(weights_of(last), weights_of(usual))
    return {"ok": weights <= MOST_OFF, "weights": weights, "replays": last.loop.graphs.num_replays}


def with_and_without(name: str, model: str, settings: tuple[str, ...], device: str) -> dict[str, Any]:
    """Seconds of a step, what the allocator reserves, and how many times as fast the steps with graphs are."""
    import torch

    found: dict[str, Any] = {}
    reserved = {}
    for choice in (OFF, ON):
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        with soon():
            values = chorus(model, f"{name}, {choice}", (*settings, choice), device)
        reserved[choice] = torch.cuda.max_memory_reserved()
        label = "with" if choice == ON else "without"
        found |= {f"{label}_{key}": values[key] for key in ("step_seconds", "peak_gib", "first_step_seconds")}
        found[f"{label}_reserved_gib"] = round(reserved[choice] / 2**30, 2)
    found["times_as_fast"] = round(found["without_step_seconds"] / found["with_step_seconds"], 2)
    found["times_the_memory"] = round(reserved[ON] / reserved[OFF], 3)
    return {"ok": found["times_the_memory"] <= MOST_MEMORY, **found}
