"""Trains one entry of the queue, as scripts/train.py would: python scripts/starting/queue_entry.py FOLDER --devices 0,2

scripts/starting/queue_runner.py starts it (modules/queue/run_entry.py).
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

if __name__ == "__main__":  # before the imports that take long
    from scripts.terminal import prepare_terminal

    prepare_terminal()
    from modules.session.signals import remember_early_signals

    remember_early_signals()
elif __name__ == "__mp_main__":  # in a rank that this script has spawned
    from modules.launch.parent_watch import end_with_parent

    end_with_parent()

from modules.session.program_end import end_program


def main(argv: list[str] | None = None) -> int:
    args = parse(argv)
    from modules.machine.Machine import read_machine
    from modules.queue.run_entry import run_entry
    from scripts.train import main as train

    return run_entry(args.entry, args.devices, train, read_machine())


def parse(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Train one entry of the queue.")
    parser.add_argument("entry", type=Path, metavar="FOLDER", help="folder of the entry")
    parser.add_argument("--devices", type=indexes, default=(), metavar="0,2", help="GPUs, or cores without GPUs")
    return parser.parse_args(argv)


def indexes(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split(",") if part)


if __name__ == "__main__":
    end_program(main)
