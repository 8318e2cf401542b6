"""Compiled blocks on images of several sizes: how many graphs, and seconds of the first and of later steps."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from functools import partial
from typing import Any

from scripts.gpu.cases import Case, NotHere, is_cuda
from scripts.gpu.tiny_runs import MIXED, SAMPLED, VALIDATED, config_of, problems_of, train

KINDS = {"plain": (), "int8": ("model.denoiser_quantization=int8",)}


def compiled(device: str) -> Iterator[Case]:
    for name, settings in KINDS.items():
        yield name, partial(compiled_run, name, settings, device)


def compiled_run(name: str, settings: tuple[str, ...], device: str) -> dict[str, Any]:
    """A compiled run on three sizes trains, validates and samples."""
    from importlib.util import find_spec

    import torch

    if not find_spec("triton") and is_cuda(device):
        raise NotHere("needs the package triton")
    dynamo: Any = torch._dynamo
    dynamo.reset()
    dynamo.utils.counters.clear()
    options = ("model.compile=blocks", "batch_size=4", "max_steps=8", "data.bucket_step=8")
    config = config_of(f"compiled {name}", *MIXED, *settings, *options, *SAMPLED, *VALIDATED)
    # on a CPU, where a compiler of C++ would take minutes, the graphs are made and run as they are
    stance = contextlib.nullcontext() if is_cuda(device) else torch.compiler.set_stance(force_backend="eager")
    with stance:
        trainer = train(config, device)
    problems = problems_of(trainer)
    graphs = dynamo.utils.counters["stats"]["unique_graphs"]
    seconds = [round(info.seconds, 2) for info in trainer.callbacks.steps]
    num_sizes = len(trainer.prepared.source.buckets.shapes)
    is_right = not problems and graphs > 0 and num_sizes > 1
    return {"ok": is_right, "problems": problems, "sizes": num_sizes, "graphs": graphs, "step_seconds": seconds}
