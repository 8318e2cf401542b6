"""Compiled blocks on several image sizes: how many graphs, seconds of steps, and what a second start finds cached."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from functools import partial
from typing import Any

from scripts.gpu.cases import Case, NotHere, is_cuda
from scripts.gpu.tiny_runs import MIXED, SAMPLED, VALIDATED, config_of, problems_of, train

KINDS = {
    "each size": ("model.compile_sizes=each",),
    "all sizes": ("model.compile_sizes=all",),
    "all sizes, int8": ("model.compile_sizes=all", "model.denoiser_quantization=int8"),
    "each size, swapped": ("model.compile_sizes=each", "model.blocks_to_swap=2"),
    "all sizes, full": ("model.compile_sizes=all", "method=full"),
}


def compiled(device: str) -> Iterator[Case]:
    for name, settings in KINDS.items():
        yield name, partial(compiled_run, name, settings, device)


def compiled_run(name: str, settings: tuple[str, ...], device: str) -> dict[str, Any]:
    """A compiled run on three sizes trains, validates and samples; another one finds its kernels in the cache."""
    from importlib.util import find_spec

    import torch

    if not find_spec("triton") and is_cuda(device):
        raise NotHere("needs the package triton")
    options = (*MIXED, *settings, "model.compile=blocks", "batch_size=4", "max_steps=8", "data.bucket_step=8")
    # on a CPU, where a compiler of C++ would take minutes, the graphs are made and run as they are
    stance = contextlib.nullcontext() if is_cuda(device) else torch.compiler.set_stance(force_backend="eager")
    with stance:
        first = _started(config_of(f"compiled {name}", *options, *SAMPLED, *VALIDATED), device)
        second = _started(config_of(f"compiled {name} again", *options, *SAMPLED, *VALIDATED), device)
    sizes = first.pop("sizes")
    is_right = not first["problems"] and first["graphs"] > 0 and sizes > 1 and second["losses"] == first["losses"]
    return {"ok": is_right, "sizes": sizes, **first, "again": second}


def _started(config: Any, device: str) -> dict[str, Any]:
    """The run in a process that has nothing compiled in memory."""
    import torch

    dynamo: Any = torch._dynamo
    dynamo.reset()
    dynamo.utils.counters.clear()
    trainer = train(config, device)
    counters = dynamo.utils.counters
    return {
        "problems": problems_of(trainer),
        "sizes": len(trainer.prepared.source.buckets.shapes),
        "graphs": counters["stats"]["unique_graphs"],
        "cache": {
            key: count
            for part in ("inductor", "aot_autograd")
            for key, count in counters[part].items()
            if "cache" in key
        },
        "step_seconds": [round(info.seconds, 2) for info in trainer.callbacks.steps],
        "losses": trainer.callbacks.losses,
    }
