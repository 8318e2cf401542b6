"""The search for settings with which a run fits into the memory of a GPU: for presets, and for the window's remedies.

An axis is a list of alternatives for one thing that can be changed, from the mildest, mostly to change nothing, to the
one that saves the most memory.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from modules.config.TrainConfig import TrainConfig


@dataclass(frozen=True)
class Change:
    """values: setting -> the value that it gets. text: what the change is, in a few words; "" for none."""

    values: Mapping[str, Any] = field(default_factory=dict, hash=False)
    text: str = ""


NO_CHANGE = Change()
MOST_SAMPLES = 100_000  # of a step on one GPU whose divisors are tried


def mildest(axes: Sequence[Sequence[Change]], fits: Callable[[Mapping[str, Any]], bool]) -> list[Change] | None:
    """One change of each axis, which together fit; None if even the last of all axes don't.

    axes: the first is changed last, only if the strongest changes of all behind it don't suffice.
    fits: whether a run with these values does. It has to grow more likely along each axis.
    """
    chosen: list[Change] = []
    for number, axis in enumerate(axes):
        strongest = [later[-1] for later in axes[number + 1 :]]
        found = next((change for change in axis if fits(values_of([*chosen, change, *strongest]))), None)
        if found is None:
            return None
        chosen.append(found)
    return chosen


def values_of(changes: Sequence[Change]) -> dict[str, Any]:
    """All values; where several changes set the same setting, that of the first."""
    return {path: value for change in reversed(changes) for path, value in change.values.items()}


def quantizations(part: str, formats: Sequence[str]) -> list[Change]:
    """part: "denoiser" or "text_encoder". formats: the largest first."""
    name = part.replace("_", " ") + ("s" if part == "text_encoder" else "")
    return [NO_CHANGE, *(Change({f"model.{part}_quantization": each}, f"{each} for the {name}") for each in formats)]


def micro_batches(config: TrainConfig, num_ranks: int = 1) -> dict[int, Change]:
    """How a GPU can compute its part of a step: size of the micro-batches, the largest first -> the change for it.

    num_ranks: over all machines. A step with a fused backward pass has one micro-batch. One of absurdly many samples
    stays as it is.
    """
    batch, steps = config.batch_size, config.gradient_accumulation_steps
    is_global = config.batch_size_mode == "global"
    samples = max(1, batch // num_ranks) if is_global else batch * steps  # of a step on one GPU
    found: dict[int, Change] = {}
    counts = [steps] if samples > MOST_SAMPLES else [count for count in range(1, samples + 1) if samples % count == 0]
    if config.optimizer.fused_backward:
        counts = [1]
    for count in (count for count in counts if samples % count == 0):
        size, values = samples // count, {}
        if not is_global and size != batch:
            values["batch_size"] = size
        if count != steps:
            values["gradient_accumulation_steps"] = count
        text = f"micro-batches of {size}" if is_global else f"batch size {size} ({count} accumulation steps)"
        found[size] = Change(values, text) if values else NO_CHANGE
    return found
