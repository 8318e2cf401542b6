"""Finds problems that would make training on this machine fail or slow: python scripts/doctor.py [--config run.yaml]

With --json, it prints one object:

    {"can_train": true, "verdict": "Training can start: 13 checks, 1 warning.",
     "checks": [{"name": "GPUs", "state": "warning", "text": "...", "remedy": "...", "details": ["..."], "values": {}}]}

state is "ok", "warning" or "fails". remedy is a sentence, empty if there is no problem. details are lines to show below
the text. values has the values that the check measured; they differ between checks, and more may be added.
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

if __name__ == "__main__":  # before the imports that take long
    from scripts.terminal import prepare_terminal

    prepare_terminal()

from modules.config.installation import command_name, docs_page
from modules.machine.doctor.CheckResult import CheckResult
from modules.machine.doctor.packages import check_packages, check_python
from modules.machine.doctor.report import as_values, can_train, result_lines, verdict
from modules.session.printing import print_line
from modules.session.program_end import end_program
from modules.session.redaction import redact
from scripts.terminal import escape_unprintable, show

if TYPE_CHECKING:
    from modules.config.TrainConfig import TrainConfig

# Where no settings are given: a run on everything that there is.
WHOLE_MACHINE = {"enable_multi_gpu": True, "distributed_backend": "auto"}


def main(argv: list[str] | None = None) -> int:
    """0 where training can start, 1 where it would fail."""
    args = parse(argv)
    escape_unprintable()
    results = []
    for result in make_checks(args):
        results.append(result)
        if not args.json:
            lines = "\n".join(result_lines(result))
            show(redact(lines) if args.report else lines)
    show(json.dumps(as_values(results), indent=2) if args.json else f"\n{verdict(results)}")
    return 0 if can_train(results) else 1


def parse(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog=command_name("doctor"), description="Look for what would keep this machine from training."
    )
    parser.add_argument("--config", metavar="FILE", help="settings of a run to check as well")
    parser.add_argument("--preset", metavar="NAME", help=f"start from a preset ({docs_page('presets')} lists them)")
    parser.add_argument("--set", metavar="PATH=VALUE", action="append", default=[], help="change one setting")
    parser.add_argument("--quick", action="store_true", help="do not measure how fast the ranks exchange gradients")
    output = parser.add_mutually_exclusive_group()
    output.add_argument("--json", action="store_true", help="print what was found as JSON")
    output.add_argument(
        "--report", action="store_true", help="leave out names of people and machines, addresses and secrets"
    )
    nodes = parser.add_argument_group("several machines")
    nodes.add_argument("--nodes", metavar="N", type=int, help="how many train together")
    nodes.add_argument("--node-rank", metavar="R", type=int, help="number of this one; it then waits for the others")
    nodes.add_argument("--master-addr", metavar="HOST", help="address of machine 0")
    nodes.add_argument("--master-port", metavar="PORT", type=int, help="port on machine 0")
    return parser.parse_args(argv)


def make_checks(args: argparse.Namespace) -> Iterator[CheckResult]:
    """The results, each as soon as it is there. Where Python or packages are not what Chorus needs, only these."""
    for result in (check_python(), check_packages()):
        yield result
        if result.state == "fails":
            return
    from modules.config.errors import UserError
    from modules.config.files import config_from_values
    from modules.launch.check_other_nodes import check_other_nodes
    from modules.machine.doctor.examine import examine

    arguments = train_arguments(args)
    try:
        config = read_config(args)
    except UserError as error:
        problems = tuple(str(error).splitlines())
        yield CheckResult("settings", "fails", "they can't be used", "Fix what is named above.", problems)
        config, arguments = config_from_values(dict(WHOLE_MACHINE)), []
    meet = None if args.node_rank is None else lambda: check_other_nodes(config, tell)
    yield from examine(config, arguments, args.quick, meet)


def read_config(args: argparse.Namespace) -> TrainConfig:
    """The settings of the run to come; without settings one on the whole machine."""
    from modules.config.files import apply_overrides, config_from_values
    from scripts import train

    if arguments := train_arguments(args):
        return train.read_config(train.parse(arguments))
    return config_from_values(apply_overrides(dict(WHOLE_MACHINE), overrides(args)))


def overrides(args: argparse.Namespace) -> list[str]:
    """The options for several machines as `--set` would say them, and those of --set."""
    nodes = {
        "num_nodes": args.nodes,
        "node_rank": args.node_rank,
        "master_addr": args.master_addr,
        "initial_port": args.master_port,
    }
    return [f"{path}={value}" for path, value in nodes.items() if value is not None] + args.set


def train_arguments(args: argparse.Namespace) -> list[str]:
    """What scripts/train.py has to be given for the same settings; nothing where no settings are given."""
    given = [f"--{name}={value}" for name in ("config", "preset") if (value := getattr(args, name))]
    return [*given, *(f"--set={change}" for change in overrides(args))] if given else []


def tell(text: str) -> None:
    print_line(text, sys.stderr)


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))  # so that started processes end, too
    end_program(main)
