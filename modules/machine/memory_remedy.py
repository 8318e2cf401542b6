"""Settings with which a run that is too large fits into the memory of a device, by estimate."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations
from typing import TYPE_CHECKING, Any

from modules.config.methods import facts_of
from modules.config.problems import Remedy, with_remedy
from modules.config.quantizations import QUANTIZATIONS
from modules.config.validation import find_problems
from modules.machine.memory_estimate import needed_bytes

if TYPE_CHECKING:
    from modules.config.TrainConfig import TrainConfig

FORMATS = [name for name, facts in QUANTIZATIONS.items() if not facts.package][:1]  # the first that is always there


def memory_remedy(
    config: TrainConfig, num_ranks: int, available_bytes: float, base_bytes: int | None = None
) -> Remedy | None:
    """The mildest change with which the run fits: as few of the measures as possible, none of which changes the
    effective batch. None if even all together are not enough.

    num_ranks: over all machines. base_bytes: as for `needed_bytes`.
    """
    measures = list(_measures(config, num_ranks))
    known = {problem.path for problem in find_problems(config)}
    for count in range(1, len(measures) + 1):
        for chosen in combinations(measures, count):
            values = {path: value for _, change in chosen for path, value in change.items()}
            remedy = Remedy(f"Use {' and '.join(text for text, _ in chosen)}", values)
            smaller = with_remedy(config, remedy)
            needed = needed_bytes(smaller, num_ranks, base_bytes)
            has_new_problem = any(problem.path not in known for problem in find_problems(smaller))
            if needed is not None and needed <= available_bytes and not has_new_problem:
                return remedy
    return None


def _measures(config: TrainConfig, num_ranks: int) -> Iterator[tuple[str, dict[str, Any]]]:
    """(what it is, its values), the mildest first: all cost time, only the last some precision."""
    if not config.model.gradient_checkpointing:
        yield "gradient checkpointing", {"model.gradient_checkpointing": True}
    steps = config.gradient_accumulation_steps
    if config.batch_size_mode == "per_device" and config.batch_size > 1:
        values = {"batch_size": 1, "gradient_accumulation_steps": steps * config.batch_size}
        yield "batch size 1 with accumulation", values
    elif config.batch_size_mode == "global" and config.batch_size // num_ranks > steps:
        yield "one image at a time", {"gradient_accumulation_steps": config.batch_size // num_ranks}
    if config.distributed_strategy == "ddp" and num_ranks > 1 and facts_of(config).trains_weights:
        yield "a sharded optimizer state", {"ddp_shard_optimizer": True}
    parts = [f"{part}_quantization" for part in ("denoiser", "text_encoder")]
    whole = {f"model.{part}": FORMATS[0] for part in parts if getattr(config.model, part) == "none"}
    if whole and not facts_of(config).trains_weights and config.model.weight_dtype != "float64":
        yield f"{QUANTIZATIONS[FORMATS[0]].label} quantization", whole
