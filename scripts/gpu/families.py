"""A short run of every family, each in a process of its own: cuDNN keeps its plans for a whole process."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from importlib.util import find_spec
from typing import Any

from modules.config.families import load_families
from scripts.gpu.cases import Case, NotHere
from scripts.gpu.tiny_runs import Waits, config_of, problems_of, train, work_folder
from tests.support.small_runs import family_data, family_settings

RUN = (
    "model.gradient_checkpointing=true",
    "max_steps=3",
    "batch_size=2",
    "concepts.0.repeats=2",
    "validation.every=2",
    "validation.unit=steps",
    "data.validation_share=0.3",
    "ema.enabled=true",
    "sampling.at_end=true",
    "backup.at_end=false",
)


def families(device: str) -> Iterator[Case]:
    for name in load_families():
        yield name, partial(train_family, name, device)


def train_family(name: str, device: str, precision: str = "bf16") -> dict[str, Any]:
    """The family trains, validates, samples and saves; and the lines at which its steps wait for the GPU."""
    facts, folder = load_families()[name], work_folder() / "data" / f"{name} {precision}"
    if (facts.fact("first_frame", "needed") or facts.section) and not find_spec("av"):
        raise NotHere("needs the package av, as it learns from videos")
    data = [f"{path}={value}" for path, value in family_data(name, folder).items()]
    weights = ["model.weight_dtype=bfloat16"] if precision == "bf16" else []
    settings = (*family_settings(name), f"model.mixed_precision={precision}", *weights, *RUN, *data)
    waits = Waits(device)
    trainer = train(config_of(f"{name} {precision}", *settings, family=name), device, waits=waits)
    problems = problems_of(trainer)
    if trainer.runtime.device.type != device.partition(":")[0]:
        problems.append(f"it ran on {trainer.runtime.device}")
    base = trainer.prepared.base
    # released once everything is cached, also after sampling
    held = [part for part in ("vae", *base.family.text.encoders) if getattr(base.pipe, part) is not None]
    problems += [f"{part} is still held" for part in held]
    losses, told = trainer.callbacks.losses, trainer.callbacks
    waited = {"waits": waits.ours, "waits_of_libraries": waits.of_libraries}
    return {"ok": not problems, "problems": problems, "losses": losses, "warnings": told.warnings, **waited}
