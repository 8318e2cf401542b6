"""Compiled blocks on images of several sizes: how many graphs, and seconds of the first and of later steps."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from scripts.gpu.cases import Case, NotHere, is_cuda
from scripts.gpu.tiny_runs import MIXED, SAMPLED, VALIDATED, config_of, problems_of, train

KINDS = {"plain": (), "int8": ("model.denoiser_quantization=int8",)}


def compiled(device: str) -> Iterator[Case]:
    for name, settings in KINDS.items():
        yield name, lambda name=name, settings=settings: compiled_run(name, settings, device)


def compiled_run(name: str, settings: tuple[str, ...], device: str) -> dict[str, Any]:
    """A compiled run on three sizes trains, validates and samples."""
    from importlib.util import find_spec

    import torch

    if not find_spec("triton") and is_cuda(device):
        raise NotHere("needs the package triton")
    dynamo: Any = torch._dynamo
    dynamo.reset()
    dynamo.utils.counters.clear()
    options = ("model.compile=blocks", "batch_size=4", "max_steps=8")
    trainer = train(config_of(f"compiled {name}", *MIXED, *settings, *options, *SAMPLED, *VALIDATED), device)
    problems = problems_of(trainer)
    graphs = dynamo.utils.counters["stats"]["unique_graphs"]
    seconds = [round(info.seconds, 2) for info in trainer.callbacks.steps]
    num_sizes = len(trainer.prepared.source.buckets.shapes)
    is_right = not problems and graphs > 0 and num_sizes == 3
    return {"ok": is_right, "problems": problems, "graphs": graphs, "step_seconds": seconds}
