"""Entries for every combination of some settings' values, with names that say what differs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import product
from math import prod
from typing import TYPE_CHECKING

from modules.config.counted import counted
from modules.config.errors import UserError
from modules.config.files import apply_overrides, config_from_values, to_values
from modules.config.parse import parse_yaml_value
from modules.config.show_value import show_value
from modules.config.validation import check_settings
from modules.queue.TrainingQueue import EntryOptions
from modules.session.names import safe_file_name

if TYPE_CHECKING:
    from modules.config.TrainConfig import TrainConfig

MAX_RUNS = 500


@dataclass(frozen=True)
class Axis:
    """The values that a setting takes. path: as in files. values: as a person writes them."""

    path: str
    values: tuple[str, ...]


@dataclass(frozen=True)
class GridRun:
    """One combination. values: setting -> value. name: what differs, such as "rank=8 seed=2"."""

    name: str
    values: dict[str, str]
    config: TrainConfig


def read_axis(text: str) -> Axis:
    """What `--vary` says: "lora.rank=4,8,16", or a list of YAML where values hold commas: 'path=["a, b", c]'.

    Raises UserError.
    """
    path, equals, values = text.partition("=")
    if not equals:
        raise UserError(f"{text[:60]!r} has no values: write path=value,value.")
    return make_axis(path.strip(), values)


def make_axis(path: str, values: str) -> Axis:
    """The values of a setting, as `read_axis` reads them. Raises UserError."""
    text = values.strip()
    if text.startswith("["):
        listed = parse_yaml_value(text)
        found = [show_value(value) if isinstance(value, bool) else str(value) for value in listed]
    else:
        found = [value.strip() for value in text.split(",")]
    if "" in found:
        raise UserError(f"{path} has an empty value: write values with a comma between two, such as 4,8.")
    if twice := next((value for value in found if found.count(value) > 1), None):
        raise UserError(f"{path} has the value {twice} twice: each would train the same.")
    return Axis(path, tuple(found))


def make_grid(config: TrainConfig, axes: Sequence[Axis]) -> list[GridRun]:
    """All combinations of the values, the last setting changing fastest, each with its settings.

    Run folder and model name get what differs at their end. Raises UserError for a setting that does not exist or is
    named twice, a value that it can't have, settings that contradict each other, and more runs than MAX_RUNS.
    """
    if not axes:
        raise UserError("The grid has no setting: name one with at least one value.")
    paths = [axis.path for axis in axes]
    if twice := next((path for path in paths if paths.count(path) > 1), None):
        raise UserError(f"{twice} is in the grid twice: name it once, with all its values.")
    number = prod(len(axis.values) for axis in axes)
    if number > MAX_RUNS:
        raise UserError(f"The grid has {number:,} runs: at most {MAX_RUNS} are possible; leave out some values.")
    names = short_names(paths)
    return [_run(config, dict(zip(paths, values, strict=True)), names) for values in product(*(a.values for a in axes))]


def grid_entries(
    runs: Iterable[GridRun], name: str, options: EntryOptions | None = None
) -> list[tuple[TrainConfig, EntryOptions]]:
    """What `TrainingQueue.add_all` takes. name: put before what differs. options: of all of them."""
    shared = options or EntryOptions()
    return [(run.config, replace(shared, name=f"{name} {run.name}".strip())) for run in runs]


def count_text(axes: Sequence[Axis]) -> str:
    """Such as "3 x 2 = 6 runs"."""
    sizes = [len(axis.values) for axis in axes]
    return (
        f"{' x '.join(map(str, sizes))} = {counted(prod(sizes), 'run')}"
        if len(sizes) > 1
        else counted(prod(sizes), "run")
    )


def short_names(paths: Sequence[str]) -> list[str]:
    """The last part of each path, with as much before it as tells it from the others: "rank", "seed"."""
    found = []
    for path in paths:
        parts = path.split(".")
        lengths = range(1, len(parts) + 1)
        ends = (".".join(parts[-length:]) for length in lengths)
        found.append(next((e for e in ends if sum(p == e or p.endswith(f".{e}") for p in paths) == 1), path))
    return found


def _run(config: TrainConfig, values: dict[str, str], names: Sequence[str]) -> GridRun:
    plain = apply_overrides(to_values(config), [f"{path}={value}" for path, value in values.items()])
    made = config_from_values(plain, "the grid")
    differs = [f"{name}={value}" for name, value in zip(names, values.values(), strict=True)]
    end = safe_file_name("-".join(differs))
    if "workspace_dir" not in values:
        made = replace(made, workspace_dir=f"{made.workspace_dir.rstrip('/')}-{end}")
    if "output.name" not in values:
        made = replace(made, output=replace(made.output, name=f"{made.output.name}-{end}"))
    check_settings(made)
    return GridRun(" ".join(differs), values, made)
