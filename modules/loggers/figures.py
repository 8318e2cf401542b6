"""The figures that loggers get, by name."""

from __future__ import annotations

from modules.session.StepInfo import StepInfo

GIB = 2**30


def step_figures(info: StepInfo) -> dict[str, float]:
    """The figures of a step; those that are not known or not finite are left out.

    The learning rates of all parameter groups are among the metrics.
    """
    figures: dict[str, float | None] = {
        "loss": info.loss,
        "smooth_loss": info.smooth_loss,
        "grad_norm": info.grad_norm,
        **info.metrics,
        "train/epoch": info.epoch,
        "train/samples_per_sec": info.samples / info.seconds if info.seconds else None,
        "train/data_seconds": info.data_seconds,
    }
    for name, num_bytes in (("allocated", info.memory_bytes), ("peak", info.peak_memory_bytes)):
        figures[f"memory/{name}_gib"] = None if num_bytes is None else num_bytes / GIB
    return {name: value for name, value in figures.items() if value is not None}
