"""The benchmarks by name. A new one is a line of BENCHMARKS, and a function that gives its parts."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from modules.machine.devices import list_gpus, num_cores
from scripts.benchmarks.backup import compare_backup
from scripts.benchmarks.caching import SLOW_SECONDS, compare_caching
from scripts.benchmarks.compare import compare_engine, compare_memory, compare_option, compare_start, compare_steps
from scripts.benchmarks.loading import measure_loading
from scripts.benchmarks.operators import compare_operators
from scripts.benchmarks.options import OPTIONS
from scripts.benchmarks.peer_programs import PEERS
from scripts.benchmarks.peers import chosen_peers, compare_peer
from scripts.benchmarks.planning import measure_planning
from scripts.benchmarks.profiling import cases_of, profile_step
from scripts.benchmarks.real_sizes import measure_real_sizes
from scripts.benchmarks.results import Comparison, Found
from scripts.benchmarks.scaling import RANK_COUNTS, measure_scaling
from scripts.benchmarks.standby import compare_images, compare_standby
from scripts.benchmarks.ui import PARTS, measure_ui
from scripts.benchmarks.worker import BF16, COMPILED, SHARDED
from scripts.gpu.cases import is_cuda
from scripts.gpu.models import MODELS
from scripts.name_option import name_among

METHODS, DEVICES = ("lora", "full"), ("cpu", "cuda")


@dataclass(frozen=True, eq=False)
class Option:
    """An option of the command that only some benchmarks take; values: as `add_argument` takes them."""

    name: str
    values: dict[str, Any]

    @property
    def destination(self) -> str:
        return self.name.lstrip("-").replace("-", "_")


@dataclass(frozen=True)
class Part:
    """What is measured at a stretch. key: it among the parts of its benchmark, whatever the number of pairs."""

    key: str
    run: Callable[[], Iterable[Found] | Comparison]

    def measure(self) -> Iterable[Found]:
        """One result after another."""
        found = self.run()
        return [found] if isinstance(found, Comparison) else found


@dataclass(frozen=True)
class Benchmark:
    """what: it measures. parts: for the arguments of the command, whose `folder` exists. in_all: whether it is in
    `all`. needs_material: the model and the images of material.py, in that folder. options: those that only some
    benchmarks take. needs: the destination of an option that must be given; `all` leaves the benchmark out without it.
    all_on: the devices on which `all` measures it.
    """

    what: str
    parts: Callable[[argparse.Namespace], Iterable[Part]]
    in_all: bool = False
    needs_material: bool = True
    options: tuple[Option, ...] = ()
    needs: str = ""
    all_on: tuple[str, ...] = DEVICES

    def is_in_all(self, args: argparse.Namespace) -> bool:
        """Whether `all` measures it with these arguments."""
        has_what_it_needs = not self.needs or getattr(args, self.needs) is not None
        return self.in_all and args.device in self.all_on and has_what_it_needs


def methods(args: argparse.Namespace) -> Iterable[str]:
    return [args.method] if args.method else METHODS


def step(args: argparse.Namespace) -> Iterator[Part]:
    for method in methods(args):
        sizes = args.folder, method, args.device, args.blocks, args.steps_per_block
        for option in args.options:
            yield Part(f"{method} with {option}", partial(compare_option, *sizes, option))
        ways = ((), (BF16,), (COMPILED,)) if args.what != "step" else (tuple(args.switches),)
        for switches in () if args.options else ways:
            yield Part(", ".join((method, *switches)), partial(compare_steps, *sizes, switches=switches))


def ranks(args: argparse.Namespace) -> Iterator[Part]:
    ways: tuple[tuple[str, ...], ...] = ((), (SHARDED,))
    if args.what == "ranks":
        ways = ((SHARDED,),) if args.sharding else ((),)
    for method in methods(args):
        sizes = args.folder, method, args.device, args.blocks, args.steps_per_block, args.ranks
        for switches in ways:
            key = ", ".join((method, *switches, f"{args.ranks} ranks"))
            yield Part(key, partial(compare_steps, *sizes, switches=switches))


def memory(args: argparse.Namespace) -> Iterator[Part]:
    for method in methods(args):
        sizes = args.folder, method, args.device, args.pairs, args.steps_per_block
        for cold in (False, True):
            yield Part(f"{method}, {'encoding' if cold else 'cached'}", partial(compare_memory, *sizes, cold))


def start(args: argparse.Namespace) -> Iterator[Part]:
    for method in methods(args):
        sizes = args.folder, method, args.device, args.pairs
        yield Part(method, partial(compare_start, *sizes))
        yield Part(f"{method} from the window", partial(compare_standby, *sizes))
    yield Part("images", partial(compare_images, args.folder, args.device, args.pairs))


def caching(args: argparse.Namespace) -> Iterator[Part]:
    for num_ranks in dict.fromkeys((1, args.ranks)):
        for seconds in (0.0, SLOW_SECONDS):
            key = f"{num_ranks} ranks{', slow decoder' if seconds else ''}"
            yield Part(key, partial(compare_caching, args.folder, args.device, args.pairs, num_ranks, seconds))


def plan(args: argparse.Namespace) -> Iterator[Part]:
    yield Part("", partial(measure_planning, args.folder, args.blocks))


def backup(args: argparse.Namespace) -> Iterator[Part]:
    for method in methods(args):
        yield Part(method, partial(compare_backup, args.folder, method, args.device, args.pairs, args.steps_per_block))


def loading(args: argparse.Namespace) -> Iterator[Part]:
    yield Part("", partial(measure_loading, args.folder))


def peers(args: argparse.Namespace) -> Iterator[Part]:
    def material(family: str, device: str) -> Path:
        if family == "sd15":
            return args.folder
        from scripts.gpu import real_models

        return real_models.material(family, f"{device}:0" if is_cuda(device) else device)

    sizes = args.device, args.blocks, args.steps_per_block, material
    for checkout, name in chosen_peers(args.scripts, args.peers or (), args.device):
        for how in PEERS[name][1].hows:
            yield Part(f"{name}, {how}", partial(compare_peer, args.folder, checkout, name, how, *sizes))


def real(args: argparse.Namespace) -> Iterator[Part]:
    for model in args.models or MODELS:
        yield Part(model, partial(measure_real_sizes, args.folder, args.device, [model]))


def engine(args: argparse.Namespace) -> Iterator[Part]:
    for num_ranks in dict.fromkeys((1, args.ranks)):
        sizes = args.folder, args.device, args.blocks, args.steps_per_block, num_ranks
        yield Part(f"{num_ranks} ranks", partial(compare_engine, *sizes))


def scaling(args: argparse.Namespace) -> Iterator[Part]:
    num_devices = num_cores() if args.device == "cpu" else len(list_gpus())
    counts = [count for count in RANK_COUNTS if args.device == "cpu" or count <= num_devices]
    sizes = args.blocks, args.steps_per_block, num_devices, counts
    yield Part("", partial(measure_scaling, args.folder, args.device, *sizes))


def operators(args: argparse.Namespace) -> Iterator[Part]:
    yield Part("", compare_operators)


def profile(args: argparse.Namespace) -> Iterator[Part]:
    for method in methods(args):
        for what, settings, num_ranks in cases_of(method, args.ranks):
            sizes = args.device, args.steps_per_block, num_ranks
            yield Part(what, partial(profile_step, args.folder, what, method, settings, *sizes))


def ui(args: argparse.Namespace) -> Iterator[Part]:
    for name in args.parts or PARTS:
        yield Part(name, partial(measure_ui, args.folder, [name]))


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
_SWITCHES = Option(
    "--switches",
    {"nargs": "+", "choices": (BF16, COMPILED), "default": [], "help": "what is on on both sides"},
)
_SHARDING = Option("--sharding", {"action": "store_true", "help": "FSDP2 on both sides, in place of DDP"})
_SCRIPTS = Option(
    "--scripts",
    {"nargs": "+", "type": Path, "metavar": "DIR", "help": "checkouts of diffusers, sd-scripts and OneTrainer"},
)
_PEERS = Option("--peers", {"nargs": "+", "choices": PEERS, "help": "which of their scripts; all if left out"})
_MODELS = Option("--models", {"nargs": "+", "choices": MODELS, "help": "which of them; all if left out"})
_PARTS = Option("--parts", {"nargs": "+", "choices": PARTS, "help": "what of the window; all if left out"})

BENCHMARKS: dict[str, Benchmark] = {
    "step": Benchmark("the time of a step beside the loop by hand", step, in_all=True, options=(_OPTIONS, _SWITCHES)),
    "ranks": Benchmark("the same of several ranks", ranks, in_all=True, options=(_SHARDING,)),
    "memory": Benchmark("the most memory of a process", memory, in_all=True),
    "start": Benchmark("from the start to the first step", start, in_all=True),
    "caching": Benchmark("encoding images and captions beside a loop by hand", caching, in_all=True),
    "backup": Benchmark("how long a backup holds up the training", backup, in_all=True),
    "loading": Benchmark("RAM while a quantized base is loaded", loading, in_all=True, needs_material=False),
    "plan": Benchmark("what many images cost", plan, in_all=True),
    "peers": Benchmark(
        "the training scripts of others", peers, in_all=True, options=(_SCRIPTS, _PEERS), needs="scripts"
    ),
    "real": Benchmark(
        "models of real size with random weights on a GPU",
        real,
        in_all=True,
        needs_material=False,
        options=(_MODELS,),
        all_on=DEVICES[1:],
    ),
    "engine": Benchmark("TrainingEngine beside other loops", engine, needs_material=False),
    "scaling": Benchmark("TrainingEngine on 1, 2 and 4 ranks", scaling, needs_material=False),
    "operators": Benchmark(
        "operators of a step of LoRA, counted without a GPU", operators, in_all=True, needs_material=False
    ),
    "profile": Benchmark("where the time of a step goes", profile),
    "ui": Benchmark("the speed of the window", ui, needs_material=False, options=(_PARTS,)),
}
