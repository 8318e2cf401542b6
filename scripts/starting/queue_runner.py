"""Works off a queue until nothing is left to do: python scripts/starting/queue_runner.py FOLDER

The window and scripts/run_queue.py start it. It may be killed at any time: runs that it has started go on, and the next
one takes over.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from modules.machine.Machine import read_machine
from modules.queue.processes import start_entry
from modules.queue.QueueRunner import QueueRunner
from modules.queue.TrainingQueue import TrainingQueue
from modules.session.printing import print_line
from modules.session.program_end import end_program


def main(argv: list[str] | None = None) -> int:
    """Returns 0 once the queue is done or off, or if another process works it off."""
    args = parse(argv)
    QueueRunner(TrainingQueue(args.queue), start_entry, read_machine(), say).run()
    return 0


def say(text: str) -> None:
    print_line(f"{time.strftime('%Y-%m-%d %H:%M:%S')} {text}")


def parse(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Work off a queue.")
    parser.add_argument("queue", metavar="FOLDER", help="folder of the queue")
    return parser.parse_args(argv)


if __name__ == "__main__":
    end_program(main)
