"""Settings with which a run that is too large fits into the memory of a device, by estimate."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from modules.config.families import load_families, model_of
from modules.config.methods import facts_of
from modules.config.problems import Remedy
from modules.config.quantizations import QUANTIZATIONS
from modules.config.validation import find_problems
from modules.machine.architectures import load_architectures
from modules.machine.fitting import NO_CHANGE, Change, micro_batches, mildest, quantizations, values_of
from modules.machine.memory_estimate import needed_bytes
from modules.machine.system_memory import kept_bytes

if TYPE_CHECKING:
    from modules.config.TrainConfig import TrainConfig

RESOLUTION_SHARES = (3 / 4, 1 / 2)


def memory_remedy(
    config: TrainConfig,
    num_ranks: int,
    available_bytes: float,
    base_bytes: int | None = None,
    room: float | None = None,
    ranks_here: int = 1,
) -> Remedy | None:
    """The mildest changes with which the run fits: lossy ones only where exact ones are not enough. None of them
    changes the effective batch. None if even all together are not enough.

    num_ranks: over all machines. base_bytes: as for `needed_bytes`. room: what each rank may keep in system memory,
    which no change fills beyond that; None: unknown. ranks_here: as for `kept_in_ram`.
    """
    is_possible = _possible(config)

    def fits(values: Mapping[str, Any]) -> bool:
        needed = needed_bytes(_with(config, values), num_ranks, base_bytes)
        return needed is not None and needed <= available_bytes

    axes = [[NO_CHANGE, *filter(is_possible, axis)] for axis in _axes(config, num_ranks)]
    if room is not None:
        axes = _within(room, axes, lambda values: kept_bytes(_with(config, values), num_ranks, ranks_here, base_bytes))
    return _joined(mildest(axes, fits), is_possible)


def ram_remedy(
    config: TrainConfig, num_ranks: int, ranks_here: int, room: float, base_bytes: int | None = None
) -> Remedy | None:
    """The mildest changes with which a rank keeps no more than `room` bytes in system memory; None if there are none.

    num_ranks, ranks_here, base_bytes: as for `memory_remedy`.
    """

    def fits(values: Mapping[str, Any]) -> bool:
        return kept_bytes(_with(config, values), num_ranks, ranks_here, base_bytes) <= room

    is_possible = _possible(config)
    swapped = config.model.blocks_to_swap or 0
    axes = [
        [Change({"model.activation_offloading": False}, "no activation offloading")],
        [Change({"optimizer.state_in_ram": False}, "the optimizer's state on the GPU")],
        [Change({"model.blocks_to_swap": count}, f"{count} swapped blocks") for count in range(swapped - 1, -1, -1)],
    ]
    used = [[NO_CHANGE, *filter(is_possible, axis)] for axis in axes]
    return _joined(mildest(used, fits), is_possible)


def _possible(config: TrainConfig) -> Callable[[Change], bool]:
    """A function that says whether a change makes no setting a problem that was none before."""
    known = {problem.path for problem in find_problems(config)}
    return lambda change: all(problem.path in known for problem in find_problems(_with(config, change.values)))


def _joined(found: Sequence[Change] | None, is_possible: Callable[[Change], bool]) -> Remedy | None:
    chosen = [change for change in found or () if change.values]
    if not chosen:
        return None
    *others, last = [change.text for change in reversed(chosen)]
    remedy = Change(values_of(chosen), f"{', '.join(others)} and {last}" if others else last)
    return Remedy(f"Use {remedy.text}", remedy.values) if is_possible(remedy) else None


def _within(
    room: float, axes: Sequence[Sequence[Change]], kept: Callable[[Mapping[str, Any]], float]
) -> list[list[Change]]:
    """The axes without changes that, together with the strongest of all behind them, take more system memory than there
    is, and more than without them."""
    found: list[list[Change]] = []
    behind: dict[str, Any] = {}
    for axis in reversed(axes):
        most = max(room, kept(behind))
        fitting = [change for change in axis if kept(values_of([change, Change(behind)])) <= most]
        found.insert(0, fitting)
        behind = values_of([fitting[-1], Change(behind)])
    return found


def _axes(config: TrainConfig, num_ranks: int) -> Iterator[list[Change]]:
    """The lossy ones first, as `mildest` wants it, which is the reverse of docs/memory.md: "What to lower first"."""
    method, model = facts_of(config), config.model
    trains_weights = method.trains_weights
    yield list(_lower_resolutions(config))
    formats = _formats() if not trains_weights else []
    for part in ("denoiser", "text_encoder"):
        is_whole = getattr(model, f"{part}_quantization") == "none"
        yield quantizations(part, formats if is_whole else [])[1:]
    has_wide_weights = model.weight_dtype == "float32" and not trains_weights
    yield [Change({"model.weight_dtype": "bfloat16"}, "bfloat16 weights")] if has_wide_weights else []
    yield list(_swaps(config))
    needed = _needed_to_move(config)
    offload = Change({"model.activation_offloading": True, **needed.values}, f"offloaded activations{needed.text}")
    yield [] if model.activation_offloading or not method.uses_denoiser else [offload]
    yield [Change({"optimizer.state_in_ram": True}, "the optimizer's state in system memory")] if trains_weights else []
    shares_state = config.distributed_strategy == "ddp" and num_ranks > 1 and trains_weights
    yield [Change({"ddp_shard_optimizer": True}, "a sharded optimizer state")] if shares_state else []
    is_many = config.sampling.makes_samples and config.sampling.batch_size > 1
    yield [Change({"sampling.batch_size": 1}, "sampling batch size 1")] if is_many else []
    sizes = micro_batches(config, num_ranks)
    now = next((size for size, change in sizes.items() if change is NO_CHANGE), 0)
    yield [change for size, change in sizes.items() if size < now]
    yield [] if model.gradient_checkpointing else [_CHECKPOINTING]
    yield [_NO_GRAPHS] if model.cuda_graphs == "on" and method.uses_denoiser else []


_CHECKPOINTING = Change({"model.gradient_checkpointing": True}, "gradient checkpointing")
_NO_GRAPHS = Change({"model.cuda_graphs": "off"}, "no CUDA graphs")


def _swaps(config: TrainConfig) -> Iterator[Change]:
    """Numbers of blocks that stay in system memory, where some can."""
    model, now = load_architectures().get(model_of(config).name), config.model.blocks_to_swap
    if model is None or now is None or not facts_of(config).uses_denoiser:
        return
    needed = _needed_to_move(config)
    for count in range(now + 1, model.blocks.count + 1):
        yield Change({"model.blocks_to_swap": count, **needed.values}, f"{count} swapped blocks{needed.text}")


def _needed_to_move(config: TrainConfig) -> Change:
    """What has to go with a change that moves weights or activations in each pass."""
    model = config.model
    needed = [_CHECKPOINTING] if not model.gradient_checkpointing else []
    needed += [_NO_GRAPHS] if model.cuda_graphs == "on" else []
    return Change(values_of(needed), f" with {' and '.join(each.text for each in needed)}") if needed else NO_CHANGE


def _formats() -> list[str]:
    """Those that are installed, without any that takes as much as one before it."""
    found: list[str] = []
    for name, facts in QUANTIZATIONS.items():
        is_smaller = not found or facts.weight_bytes < QUANTIZATIONS[found[-1]].weight_bytes
        if is_smaller and (not facts.package or find_spec(facts.package)):
            found.append(name)
    return found


def _lower_resolutions(config: TrainConfig) -> Iterator[Change]:
    """Of runs with one resolution."""
    data, align = config.data, load_families()[config.family].align
    if data.resolutions or data.fixed_shape or not facts_of(config).uses_denoiser:
        return
    for share in RESOLUTION_SHARES:
        resolution = int(data.resolution * share) // align * align
        if resolution:
            yield Change({"data.resolution": resolution}, f"resolution {resolution}")


def _with(config: TrainConfig, values: Mapping[str, Any]) -> TrainConfig:
    sections: dict[str, dict[str, Any]] = {}
    for path, value in values.items():
        section, _, name = path.rpartition(".")
        sections.setdefault(section, {})[name] = value
    own = sections.pop("", {})
    return replace(config, **own, **{name: replace(getattr(config, name), **each) for name, each in sections.items()})
