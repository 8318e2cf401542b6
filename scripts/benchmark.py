"""Compares the speed of Chorus with a hand-written training loop, and measures the speed of its window.

docs/benchmarks.md describes the method and the results.

    python scripts/benchmark.py all --json figures.json --resume
    python scripts/benchmark.py step --method lora
    python scripts/benchmark.py step --options ema lion
    python scripts/benchmark.py ranks --ranks 2
    python scripts/benchmark.py caching
    python scripts/benchmark.py operators
    python scripts/benchmark.py peers --scripts DIFFUSERS SD_SCRIPTS ONETRAINER
    python scripts/benchmark.py real --device cuda
    python scripts/benchmark.py engine
    python scripts/benchmark.py scaling
    python scripts/benchmark.py ui --parts paint tabs
"""

import argparse
import os
import platform
import sys
from collections.abc import Iterator, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

if __name__ == "__main__":  # before the imports that take long
    from scripts.terminal import prepare_terminal

    prepare_terminal()

from modules.config.errors import UserError
from scripts.benchmarks.material import make_material
from scripts.benchmarks.registry import BENCHMARKS, DEVICES, METHODS, Option, Part
from scripts.benchmarks.results import table
from scripts.benchmarks.results_file import ResultsFile
from scripts.name_option import name_among
from scripts.number_options import positive

ALL = "all"


def main(argv: Sequence[str] | None = None) -> int:
    args = parse(argv)
    code = 0
    try:
        results = ResultsFile(args.json, machine(args.device), args.resume)
    except UserError as error:
        print(error, file=sys.stderr)
        return 2
    try:
        for name, part in parts(args):
            if results.has(name, part.key):
                continue
            for one in part.measure():
                print(one, flush=True)
                results.add(name, part.key, one)
            results.finish(name, part.key)
    except UserError as error:
        print(error, file=sys.stderr)
        code = 2
    if len(results.rows) > 1:
        print(f"\n{table(results.rows)}")
    results.write()  # also what was measured before an error
    return code


def parts(args: argparse.Namespace) -> Iterator[tuple[str, Part]]:
    """(name of the benchmark, part of it) of what was asked for, to be measured one after the other."""
    names = [args.what]
    if args.what == ALL:
        names = [name for name, one in BENCHMARKS.items() if one.is_in_all(args)]
    args.folder.mkdir(parents=True, exist_ok=True)
    if any(BENCHMARKS[name].needs_material for name in names):
        make_material(args.folder)
    for name in names:
        for part in BENCHMARKS[name].parts(args):
            yield name, part


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    whats = "\n".join(f"  {name:10} {one.what}" for name, one in BENCHMARKS.items())
    in_all = ", ".join(name for name, one in BENCHMARKS.items() if one.in_all)
    parser = argparse.ArgumentParser(
        formatter_class=argparse.RawDescriptionHelpFormatter,
        description="Measure Chorus against a training loop written by hand.",
        epilog=f"what is measured:\n{whats}\n  {ALL:10} {in_all}",
    )
    parser.add_argument("what", type=name_among((*BENCHMARKS, ALL), "benchmark", "--help"))
    parser.add_argument("--method", choices=METHODS, help="what is trained; both if left out")
    parser.add_argument("--device", choices=DEVICES, default="cpu")
    parser.add_argument("--blocks", type=positive, default=20, help="pairs of turns of a comparison; rounds of scaling")
    parser.add_argument("--steps-per-block", type=positive, default=5, help="steps of a turn, and of a memory run")
    parser.add_argument("--pairs", type=positive, default=8, help="pairs of runs where each is a process of its own")
    parser.add_argument("--ranks", type=positive, default=2, help="of the ranks, caching and engine comparisons")
    parser.add_argument("--folder", type=Path, default=Path("workspace/benchmark"), help="for model and caches")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write what is measured to FILE after each part")
    parser.add_argument("--resume", action="store_true", help="measure only the parts that the FILE of --json lacks")
    owners = _owners()
    for option, names in owners.items():
        parser.add_argument(option.name, **{**option.values, "help": f"of {', '.join(names)}: {option.values['help']}"})
    args = parser.parse_args(argv)
    args.folder = args.folder.resolve()
    for option, names in owners.items():
        is_given = getattr(args, option.destination) != parser.get_default(option.destination)
        asks_for_more = any(BENCHMARKS[name].needs for name in names)
        if is_given and args.what not in names and not (args.what == ALL and asks_for_more):
            parser.error(f"{option.name} with {args.what}: it belongs to {' and '.join(names)}")
    for option in BENCHMARKS[args.what].options if args.what != ALL else ():
        if option.destination == BENCHMARKS[args.what].needs and not getattr(args, option.destination):
            parser.error(f"{args.what} needs {option.name}: {option.values['help']}")
    if args.resume and not args.json:
        parser.error("--resume needs --json FILE: the file to go on with")
    if args.json and not args.json.parent.is_dir():
        parser.error(f"--json {args.json}: there is no folder {args.json.parent}")  # now, not after an hour
    return args


def _owners() -> dict[Option, list[str]]:
    """The options that not all benchmarks take, and those that do."""
    owners: dict[Option, list[str]] = {}
    for name, one in BENCHMARKS.items():
        for option in one.options:
            owners.setdefault(option, []).append(name)
    return owners


def machine(device: str) -> dict[str, Any]:
    return {
        "device": device,
        "cores": os.cpu_count(),
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        **{package: version(package) for package in ("torch", "diffusers", "transformers", "peft")},
    }


if __name__ == "__main__":
    sys.exit(main())
