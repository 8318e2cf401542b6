"""Whole runs of a tiny model: of every kind, with each option that saves memory, and with too little of it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from functools import partial
from statistics import median
from typing import Any
from unittest import mock

from scripts.gpu.cases import Case, NotHere, needs_cuda
from scripts.gpu.tiny_runs import (
    MIXED,
    SAMPLED,
    VALIDATED,
    Waits,
    config_of,
    furthest,
    largest_difference,
    problems_of,
    train,
    weights_of,
)

FULL = ("method=full", "model.mixed_precision=bf16")
KINDS: dict[str, tuple[str, ...]] = {
    "LoRA": MIXED,
    "LoRA, float32 without TF32": ("model.tf32=false",),
    "LoRA, fp16": ("model.mixed_precision=fp16",),
    "full, stochastic rounding": ("method=full", *MIXED, "optimizer.stochastic_rounding=true"),
    "full, fused backward pass": (*FULL, "optimizer.fused_backward=true", "optimizer.max_grad_norm=0"),
    "full, state in RAM": (*FULL, "optimizer.state_in_ram=true"),
    "full, Adafactor": ("method=full", "optimizer.name=adafactor"),
    "VAE": ("method=vae", "model.mixed_precision=bf16"),
    "embedding": ("method=embedding", "embeddings.0.placeholder=number", "embeddings.0.initial_text=dog"),
    "text encoder": ("text_encoder.train=true", "model.mixed_precision=bf16"),
    "int8, offloaded, swapped": (
        *MIXED,
        "model.denoiser_quantization=int8",
        "model.activation_offloading=true",
        "model.blocks_to_swap=3",
    ),
    "float8": (*MIXED, "model.denoiser_quantization=float8"),
    "max norm and dropouts": (*MIXED, "lora.max_norm=0.1", "lora.rank_dropout=0.2", "lora.module_dropout=0.2"),
    "Huber and prior": (
        *MIXED,
        "loss.huber=0.5",
        "loss.huber_schedule=snr",
        "loss.prior_by_frozen_model=true",
        "concepts.0.regularisation=true",
    ),
}


def runs(device: str) -> Iterator[Case]:
    """Each kind of run trains, validates, samples and saves; and the lines at which its steps wait for the GPU."""
    for name, settings in KINDS.items():
        yield name, partial(one_run, f"kind {name}", settings, device)


def one_run(name: str, settings: tuple[str, ...], device: str) -> dict[str, Any]:
    waits = Waits(device)
    trainer = train(config_of(name, *settings, *SAMPLED, *VALIDATED), device, waits=waits)
    problems, told = problems_of(trainer), trainer.callbacks
    step = round(median(info.seconds for info in told.steps), 4)
    waited = {"waits": waits.ours, "waits_of_libraries": waits.of_libraries}
    return {"ok": not problems, "problems": problems, "step_seconds": step, "warnings": told.warnings, **waited}


# --- what saves memory changes no result ------------------------------------------------------------------------------

SAME_LORA = (*MIXED, "max_steps=6", "batch_size=2")
SAME_FULL = (*FULL, "max_steps=6", "batch_size=2", "optimizer.max_grad_norm=0")
SAVING = {
    "LoRA again": (SAME_LORA, ()),
    "activation offloading": (SAME_LORA, ("model.activation_offloading=true",)),
    "block swapping": (SAME_LORA, ("model.blocks_to_swap=4",)),
    "full again": (SAME_FULL, ()),
    "optimizer state in RAM": (SAME_FULL, ("optimizer.state_in_ram=true",)),
    "fused backward pass": (SAME_FULL, ("optimizer.fused_backward=true",)),
}
EXACT = 1e-6  # of the largest weight; two plain runs may differ by more where kernels sum in any order


def same_results(device: str) -> Iterator[Case]:
    """Each option against the plain run, beside two plain runs, whose difference is the noise."""
    plain: dict[tuple[str, ...], Any] = {}
    noise: dict[tuple[str, ...], float] = {}

    def difference(name: str, base: tuple[str, ...], option: tuple[str, ...]) -> dict[str, Any]:
        with small_tensors_too():
            if base not in plain:
                plain[base] = weights_of(train(config_of(f"plain of {name}", *base), device))
            other = weights_of(train(config_of(f"same {name}", *base, *option), device))
        found = largest_difference(plain[base], other)
        if not option:
            noise[base] = found
        return {"ok": not option or found <= max(10 * noise.get(base, 0.0), EXACT), "difference": found}

    for name, (base, option) in SAVING.items():
        yield name, partial(difference, name, base, option)


@contextlib.contextmanager
def small_tensors_too() -> Iterator[None]:
    """Inside, activations and optimizer states of tiny models go to system memory, too."""
    from modules.layers import ActivationOffload
    from modules.trainer import HostState, optimizers

    with (
        mock.patch.object(ActivationOffload, "LEAST_BYTES", 1),
        mock.patch.object(HostState, "SMALLEST_IN_RAM", 2**10),
        mock.patch.object(optimizers, "SMALLEST_IN_RAM", 2**10),
    ):
        yield


# --- the CPU's curve --------------------------------------------------------------------------------------------------


def curve_of_the_cpu(device: str) -> Iterator[Case]:
    for name, settings, most in (("float32", ("model.tf32=false",), 1e-4), ("TF32", (), 1e-2)):
        yield name, partial(curves, name, settings, most, device)


def curves(name: str, settings: tuple[str, ...], most: float, device: str) -> dict[str, Any]:
    """The losses on the device differ by less than `most` from those on the CPU."""
    import torch

    base = ("max_steps=8", "batch_size=2", *settings)
    expected = train(config_of(f"curve of the CPU, {name}", *base), "cpu").callbacks.losses
    found = train(config_of(f"curve, {name}", *base), device).callbacks.losses
    off = furthest(found, expected)
    changes = float(torch.tensor(expected).std())  # a flat curve would prove nothing
    return {"ok": off < most and changes > 1e-3, "difference": off}


# --- too little memory ------------------------------------------------------------------------------------------------

LARGE_SAMPLE = "sampling.samples=[{prompt: 'a photo of a cat', width: 4096, height: 4096, steps: 1}]"
SPARE_BYTES, MOST_LEFT = 2**26, 2**24


def out_of_memory(device: str) -> Iterator[Case]:
    yield "while sampling", partial(samples_that_do_not_fit, device)


def samples_that_do_not_fit(device: str) -> dict[str, Any]:
    """The run goes on, says so, and leaves nothing on the GPU."""
    needs_cuda(device)
    import torch

    from modules.distributed.Runtime import Runtime
    from modules.session.TrainCommands import TrainCommands
    from modules.trainer.GenericTrainer import GenericTrainer
    from tests.support.Recorder import Recorder

    config = config_of("out of memory", LARGE_SAMPLE, "sampling.every=2", "sampling.unit=steps", "max_steps=5")
    told = Recorder()
    trainer = GenericTrainer(config, told, TrainCommands(), Runtime(torch.device(device)))
    trainer.start()
    held = torch.cuda.memory_allocated()
    total = torch.cuda.get_device_properties(0).total_memory
    torch.cuda.set_per_process_memory_fraction((torch.cuda.memory_reserved() + SPARE_BYTES) / total)
    try:
        trainer.train()
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
    left = torch.cuda.memory_allocated() - held
    is_told = any("memory" in text for text in told.warnings)
    return {"ok": trainer.step == 5 and is_told and left < MOST_LEFT, "left": left, "warnings": told.warnings[:2]}


# --- optional packages ------------------------------------------------------------------------------------------------

OF_BITSANDBYTES = {
    "nf4": (*MIXED, "model.denoiser_quantization=nf4"),
    "nf4, swapped": (*MIXED, "model.denoiser_quantization=nf4", "model.blocks_to_swap=3"),
    "8-bit AdamW": (*MIXED, "optimizer.name=adamw_8bit"),
}


def bitsandbytes(device: str) -> Iterator[Case]:
    """What needs bitsandbytes trains, samples and goes on from a backup."""
    from importlib.util import find_spec

    needs_cuda(device)
    if not find_spec("bitsandbytes"):
        raise NotHere("needs the package bitsandbytes")
    for name, settings in OF_BITSANDBYTES.items():
        yield name, partial(run_and_resume, name, settings, device)


def run_and_resume(name: str, settings: tuple[str, ...], device: str) -> dict[str, Any]:
    found = one_run(name, settings, device)
    resumed = train(config_of(name, *settings, *SAMPLED, *VALIDATED, "max_steps=6"), device, resume=True)
    problems = [*found["problems"], *problems_of(resumed)]
    return {**found, "ok": not problems and resumed.step == 6, "problems": problems}
