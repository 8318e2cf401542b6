"""Checks by short trainings whether several GPUs train like one: python scripts/validate_multigpu.py

It trains the demo's model for a few steps on one rank and on all, and resumes each run's backup on the other number of
ranks, which takes some minutes, most of them for starting PyTorch. With fewer than two GPUs, two ranks train on the
CPU. Exit code 0: all is well; 1: something failed.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

if __name__ == "__main__":  # before the imports that take long
    from scripts.terminal import prepare_terminal

    prepare_terminal()

from modules.config.errors import UserError
from modules.config.installation import command_name
from modules.config.visible_text import visible_line
from modules.launch.TrialRuns import TrialRuns
from modules.machine.backend import choose_backend
from modules.machine.doctor.CheckResult import CheckResult
from modules.machine.doctor.communication import check_communication
from modules.machine.doctor.examine import within
from modules.machine.doctor.hardware import Hardware, check_gpus, check_torch, read_hardware, read_torch
from modules.session.atomic import remove_folder
from modules.session.printing import print_text
from scripts.terminal import escape_unprintable, show

CPU_RANKS = 2
DRIVER_SECONDS = 30
MARKS = {"ok": "✓", "warning": "!", "fails": "✗"}
PLAIN_MARKS = {"ok": "ok", "warning": "warning", "fails": "FAILS"}  # for terminals without these characters


def main(argv: list[str] | None = None) -> int:
    """0 where several ranks train like one, else 1; 2 for devices that are not there."""
    args = parse(argv)
    escape_unprintable()
    folder = Path(tempfile.mkdtemp(prefix="chorus-validate-"))
    failed = False
    try:
        for result in make_checks(args, folder):
            show("\n".join(table_lines(result)))
            failed = failed or result.state == "fails"
    except UserError as error:
        print_text(error, sys.stderr)
        remove_folder(folder)
        return 2
    except KeyboardInterrupt:
        remove_folder(folder)
        raise
    if failed:
        show(f"\nSeveral ranks do not train like one here: follow the arrow above. The runs are kept in {folder}.")
        return 1
    remove_folder(folder)
    show("\nSeveral ranks train like one on this machine.")
    return 0


def parse(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog=command_name("validate_multigpu"), description="Check by short trainings that several GPUs train like one."
    )
    parser.add_argument("--devices", metavar="0,2", type=indexes, help="indexes of the GPUs to use; all by default")
    parser.add_argument("--backend", choices=("nccl", "gloo", "auto"), default="auto", help="communication backend")
    return parser.parse_args(argv)


def indexes(text: str) -> list[int]:
    try:
        return [int(index) for index in text.split(",")]
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} are no indexes of GPUs; write them as 0,2") from None


def make_checks(args: argparse.Namespace, folder: Path) -> Iterator[CheckResult]:
    """The results, each as soon as it is there; none after one that makes the next pointless."""
    hardware = within(DRIVER_SECONDS, "GPUs", read_hardware)
    if isinstance(hardware, CheckResult):
        yield hardware
        return
    hardware = choose_devices(hardware, args.devices)
    if args.backend == "nccl" and not hardware.gpus:
        raise UserError(
            "--backend nccl: two ranks train on the CPU here, and NCCL needs GPUs; use gloo, or leave it out."
        )
    facts = read_torch()
    result = facts if isinstance(facts, CheckResult) else check_torch(facts, hardware)
    yield result
    if isinstance(facts, CheckResult) or result.state == "fails":
        return
    yield check_gpus(hardware) if hardware.gpus else CheckResult("devices", "ok", f"{CPU_RANKS} ranks on the CPU")
    if not hardware.gpus:
        os.environ["CUDA_VISIBLE_DEVICES"] = ""  # for the processes that are started: a single GPU is not shared
    num_ranks = len(hardware.gpus) or CPU_RANKS
    backend, _ = choose_backend(args.backend, bool(hardware.gpus), facts["has_nccl"])
    result = check_communication(hardware, num_ranks, backend)
    yield result
    if result.state != "fails":
        yield from TrialRuns(folder, num_ranks, [gpu.index for gpu in hardware.gpus], backend).checks()


def choose_devices(hardware: Hardware, devices: list[int] | None) -> Hardware:
    """`hardware` with the GPUs to check; with none if there are fewer than two. Raises UserError for unknown ones."""
    found = [gpu.index for gpu in hardware.gpus]
    if devices is None:
        return hardware if len(found) > 1 else hardware.choose([])
    if not set(devices) <= set(found) or len(set(devices)) < 2:
        available = ", ".join(map(str, found)) or "none"
        raise UserError(
            f"--devices {','.join(map(str, devices))}: name at least two GPUs of this machine (it has {available})."
        )
    return hardware.choose(devices)


def table_lines(result: CheckResult) -> list[str]:
    """A row of the table, with details and the remedy below."""
    marks = MARKS if can_print("".join(MARKS.values())) else PLAIN_MARKS
    lines = [f"{marks[result.state]} {result.name:<24}{result.text}"]
    lines += [f"  {'':<24}{line}" for line in result.details]
    lines += [f"  --> {result.remedy}"] if result.remedy else []
    return list(map(visible_line, lines))


def can_print(text: str) -> bool:
    try:
        text.encode(sys.stdout.encoding or "ascii")
    except UnicodeEncodeError:
        return False
    return True


if __name__ == "__main__":
    sys.exit(main())
