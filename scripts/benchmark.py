"""Compares the speed of Chorus with a hand-written training loop, and measures the speed of its window.

docs/benchmarks.md describes the method and the results.

    python scripts/benchmark.py step --method lora
    python scripts/benchmark.py step --options ema lion
    python scripts/benchmark.py ranks --ranks 2
    python scripts/benchmark.py all --json figures.json
    python scripts/benchmark.py engine
    python scripts/benchmark.py scaling
    python scripts/benchmark.py ui --parts paint tabs
"""

import argparse
import json
import os
import platform
import sys
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

if __name__ == "__main__":  # before the imports that take long
    from scripts.terminal import prepare_terminal

    prepare_terminal()

from modules.config.errors import UserError
from modules.machine.devices import list_gpus, num_cores
from scripts.benchmarks.compare import (
    Comparison,
    compare_engine,
    compare_memory,
    compare_option,
    compare_start,
    compare_steps,
)
from scripts.benchmarks.material import make_material
from scripts.benchmarks.options import OPTIONS
from scripts.benchmarks.planning import describe, measure_planning
from scripts.benchmarks.scaling import RANK_COUNTS, Scaling, measure_scaling
from scripts.benchmarks.ui import PARTS, Figure, measure_ui
from scripts.name_option import name_among
from scripts.number_options import positive

METHODS = ("lora", "full")


def main(argv: list[str] | None = None) -> int:
    args = parse(argv)
    folder = args.folder.resolve()
    results: dict[str, Any] = {"machine": machine(args.device), "comparisons": []}
    try:
        if args.what == "ui":
            results["window"] = [show(figure) for figure in measure_ui(folder, args.parts or list(PARTS))]
        elif args.what == "engine":
            folder.mkdir(parents=True, exist_ok=True)
            for num_ranks in dict.fromkeys((1, args.ranks)):
                for comparison in compare_engine(folder, args.device, args.blocks, args.steps_per_block, num_ranks):
                    results["comparisons"].append(show(comparison))
            return save(results, args.json)
        elif args.what == "scaling":
            folder.mkdir(parents=True, exist_ok=True)
            num_devices = num_cores() if args.device == "cpu" else len(list_gpus())
            counts = [count for count in RANK_COUNTS if args.device == "cpu" or count <= num_devices]
            scalings = measure_scaling(folder, args.device, args.blocks, args.steps_per_block, num_devices, counts)
            results["scaling"] = [show(scaling) for scaling in scalings]
            return save(results, args.json)
        else:
            make_material(folder)
        for comparison in comparisons(args, folder):
            results["comparisons"].append(show(comparison))
        if args.what in ("plan", "all"):
            results["plan"] = measure_planning(folder)
            print(describe(results["plan"]))
    except UserError as error:
        print(error, file=sys.stderr)
        return 2
    return save(results, args.json)


def save(results: dict[str, Any], path: Path | None) -> int:
    if path:
        path.write_text(json.dumps(results, indent=1), encoding="utf-8")
    return 0


def show(found: Comparison | Figure | Scaling) -> dict[str, Any]:
    """Prints what was found, and gives it as it goes into the file."""
    print(found, flush=True)
    return found.as_values()


def parse(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Measure Chorus against a training loop written by hand.")
    parser.add_argument("what", choices=("step", "memory", "start", "plan", "all", "ranks", "ui", "engine", "scaling"))
    parser.add_argument("--method", choices=METHODS, help="what is trained; both if left out")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument(
        "--options",
        nargs="+",
        type=name_among(OPTIONS, "option", "scripts/benchmarks/options.py"),
        metavar="NAME",
        default=[],
        help="of step: instead, Chorus with each against without",
    )
    parser.add_argument(
        "--blocks", type=positive, default=20, help="pairs of turns of the step comparison; rounds of scaling"
    )
    parser.add_argument("--steps-per-block", type=positive, default=5, help="steps of a turn, and of a memory run")
    parser.add_argument("--pairs", type=positive, default=8, help="pairs of runs of the start and memory comparisons")
    parser.add_argument("--ranks", type=positive, default=2, help="of the ranks and engine comparisons")
    parser.add_argument("--parts", nargs="+", choices=PARTS, help="of ui: what of the window; all if left out")
    parser.add_argument("--folder", type=Path, default=Path("workspace/benchmark"), help="for model and caches")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write every measurement to FILE")
    args = parser.parse_args(argv)
    if args.options and args.what != "step":
        parser.error(f"--options with {args.what}: they are of step")
    if args.parts and args.what != "ui":
        parser.error(f"--parts with {args.what}: they are of ui")
    if args.json and not args.json.parent.is_dir():
        parser.error(f"--json {args.json}: there is no folder {args.json.parent}")  # now, not after an hour
    return args


def comparisons(args: argparse.Namespace, folder: Path) -> Iterator[Comparison]:
    """The comparisons asked for, each made when it is its turn."""
    for method in [args.method] if args.method else METHODS:
        for option in args.options:
            yield from compare_option(folder, method, args.device, args.blocks, args.steps_per_block, option)
        if args.what in ("step", "all") and not args.options:
            yield from compare_steps(folder, method, args.device, args.blocks, args.steps_per_block)
        if args.what == "ranks":
            yield from compare_steps(folder, method, args.device, args.blocks, args.steps_per_block, args.ranks)
        if args.what in ("memory", "all"):
            for cold in (False, True):
                yield compare_memory(folder, method, args.device, args.pairs, args.steps_per_block, cold)
        if args.what in ("start", "all"):
            yield compare_start(folder, method, args.device, args.pairs)


def machine(device: str) -> dict[str, Any]:
    return {
        "device": device,
        "cores": os.cpu_count(),
        "system": platform.platform(),
        "python": platform.python_version(),
        **{package: version(package) for package in ("torch", "diffusers", "transformers", "peft")},
    }


if __name__ == "__main__":
    sys.exit(main())
