"""The benchmarks by name. A new one is a line of BENCHMARKS, and a function that gives its results."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from modules.machine.devices import list_gpus, num_cores
from scripts.benchmarks.caching import compare_caching
from scripts.benchmarks.compare import compare_engine, compare_memory, compare_option, compare_start, compare_steps
from scripts.benchmarks.operators import compare_operators
from scripts.benchmarks.options import OPTIONS
from scripts.benchmarks.planning import measure_planning
from scripts.benchmarks.results import Comparison, Found
from scripts.benchmarks.scaling import RANK_COUNTS, measure_scaling
from scripts.benchmarks.standby import compare_images, compare_standby
from scripts.benchmarks.ui import PARTS, measure_ui
from scripts.name_option import name_among

METHODS = ("lora", "full")


@dataclass(frozen=True, eq=False)
class Option:
    """An option of the command that only some benchmarks take; values: as `add_argument` takes them."""

    name: str
    values: dict[str, Any]

    @property
    def destination(self) -> str:
        return self.name.lstrip("-").replace("-", "_")


@dataclass(frozen=True)
class Benchmark:
    """what: it measures. measure: gives one result after another, for the arguments of the command, whose `folder`
    exists. in_all: whether it is a part of `all`. needs_material: the model and the images of material.py, in that
    folder. options: those that only some benchmarks take.
    """

    what: str
    measure: Callable[[argparse.Namespace], Iterable[Found]]
    in_all: bool = False
    needs_material: bool = True
    options: tuple[Option, ...] = field(default=())


def methods(args: argparse.Namespace) -> Iterable[str]:
    return [args.method] if args.method else METHODS


def step(args: argparse.Namespace) -> Iterator[Found]:
    for method in methods(args):
        for option in args.options:
            yield from compare_option(args.folder, method, args.device, args.blocks, args.steps_per_block, option)
        if not args.options:
            yield from compare_steps(args.folder, method, args.device, args.blocks, args.steps_per_block)


def ranks(args: argparse.Namespace) -> Iterator[Found]:
    for method in methods(args):
        yield from compare_steps(args.folder, method, args.device, args.blocks, args.steps_per_block, args.ranks)


def memory(args: argparse.Namespace) -> Iterator[Found]:
    for method in methods(args):
        for cold in (False, True):
            yield compare_memory(args.folder, method, args.device, args.pairs, args.steps_per_block, cold)


def start(args: argparse.Namespace) -> Iterator[Found]:
    for method in methods(args):
        yield compare_start(args.folder, method, args.device, args.pairs)
        yield compare_standby(args.folder, method, args.device, args.pairs)
    yield compare_images(args.folder, args.device, args.pairs)


def caching(args: argparse.Namespace) -> Iterator[Comparison]:
    for num_ranks in dict.fromkeys((1, args.ranks)):
        yield from compare_caching(args.folder, args.device, args.pairs, num_ranks)


def plan(args: argparse.Namespace) -> Iterator[Found]:
    yield from measure_planning(args.folder, args.blocks)


def engine(args: argparse.Namespace) -> Iterator[Comparison]:
    for num_ranks in dict.fromkeys((1, args.ranks)):
        yield from compare_engine(args.folder, args.device, args.blocks, args.steps_per_block, num_ranks)


def scaling(args: argparse.Namespace) -> Iterator[Found]:
    num_devices = num_cores() if args.device == "cpu" else len(list_gpus())
    counts = [count for count in RANK_COUNTS if args.device == "cpu" or count <= num_devices]
    yield from measure_scaling(args.folder, args.device, args.blocks, args.steps_per_block, num_devices, counts)


def operators(args: argparse.Namespace) -> Iterator[Found]:
    yield from compare_operators()


def ui(args: argparse.Namespace) -> Iterator[Found]:
    yield from measure_ui(args.folder, args.parts or list(PARTS))


_OPTIONS = Option(
    "--options",
    {
        "nargs": "+",
        "type": name_among(OPTIONS, "option", "scripts/benchmarks/options.py"),
        "metavar": "NAME",
        "default": [],
        "help": "instead, Chorus with each against without",
    },
)
_PARTS = Option("--parts", {"nargs": "+", "choices": PARTS, "help": "what of the window; all if left out"})

BENCHMARKS: dict[str, Benchmark] = {
    "step": Benchmark("the time of a step beside the loop by hand", step, in_all=True, options=(_OPTIONS,)),
    "ranks": Benchmark("the same of several ranks", ranks, in_all=True),
    "memory": Benchmark("the most memory of a process", memory, in_all=True),
    "start": Benchmark("from the start to the first step", start, in_all=True),
    "caching": Benchmark("encoding images and captions beside a loop by hand", caching, in_all=True),
    "plan": Benchmark("what many images cost", plan, in_all=True),
    "engine": Benchmark("TrainingEngine beside other loops", engine, needs_material=False),
    "scaling": Benchmark("TrainingEngine on 1, 2 and 4 ranks", scaling, needs_material=False),
    "operators": Benchmark("operators of a step of LoRA, counted without a GPU", operators, needs_material=False),
    "ui": Benchmark("the speed of the window", ui, needs_material=False, options=(_PARTS,)),
}
