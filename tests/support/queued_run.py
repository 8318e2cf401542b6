"""A stand-in for the process of an entry of the queue, without torch: it counts, makes backups and goes on from them.

What it does in each step is a hash of all steps before and the seed, so that its model says whether a step was left out
or done twice. `fault.json` in the run folder's parent makes runs of a seed fail or die: {"2": "die"}.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from modules.config.errors import UserError  # noqa: E402
from modules.config.files import load_config  # noqa: E402
from modules.config.TrainConfig import TrainConfig  # noqa: E402
from modules.machine.Machine import Machine  # noqa: E402
from modules.queue.QueueEntry import QueueEntry  # noqa: E402
from modules.queue.QueueRunner import QueueRunner  # noqa: E402
from modules.queue.run_entry import run_entry  # noqa: E402
from modules.queue.TrainingQueue import TrainingQueue  # noqa: E402
from modules.session.atomic import write_text  # noqa: E402
from modules.session.backups import newest_usable  # noqa: E402
from modules.session.event_types import FinishedEvent  # noqa: E402
from modules.session.events import EventWriter  # noqa: E402
from modules.session.FolderCommands import FolderCommands  # noqa: E402
from modules.session.RunFolder import RunFolder  # noqa: E402
from modules.session.StepInfo import StepInfo  # noqa: E402
from modules.session.TrainCallbacks import TrainCallbacks  # noqa: E402
from tests.support.backup_files import state_of, write_backup  # noqa: E402

CORES = 4
STEPS_PER_BACKUP = 5
STEP_SECONDS = 0.01


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("command", choices=("queue", "entry"))
    parser.add_argument("path", type=Path)
    parser.add_argument("--devices", default="")
    args = parser.parse_args(argv)
    machine = Machine(cores=CORES)
    if args.command == "queue":
        import modules.queue.QueueRunner as runner

        runner.LOOK_SECONDS = 0.05
        return not QueueRunner(
            TrainingQueue(args.path), start_entry, machine, lambda text: print(text, flush=True)
        ).run()
    import modules.queue.run_entry as entry

    entry.LOOK_SECONDS = entry.REPEAT_STOP_SECONDS = 0.05
    return run_entry(args.path, [int(one) for one in args.devices.split(",") if one], train, machine)


def start_entry(entry: QueueEntry, devices: Sequence[int]) -> subprocess.Popen[bytes]:
    return start("entry", entry.path, entry.log_path, "--devices", ",".join(map(str, devices)))


def start_queue(queue: TrainingQueue) -> subprocess.Popen[bytes]:
    return start("queue", queue.path, queue.runner_log_path)


def start(command: str, path: Path, log_path: Path, *options: str) -> subprocess.Popen[bytes]:
    with open(log_path, "ab") as log:
        return subprocess.Popen(
            [sys.executable, __file__, command, str(path), *options],
            stdout=log,
            stderr=log,
            stdin=subprocess.DEVNULL,
            start_new_session=True,
        )


def train(argv: list[str]) -> int:
    """As scripts/train.py: the exit code of the run of --config, resumed with --resume."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--supervise", action="store_true", required=True)
    parser.add_argument("--config", required=True)
    parser.add_argument("--resume", action="store_true")
    args = parser.parse_args(argv)
    config = load_config(args.config)
    folder = RunFolder(config.workspace_dir)
    try:
        if not args.resume:
            folder.refuse_earlier_run()
        elif newest_usable(folder) is None:
            raise UserError("There is no backup to resume from.")
    except UserError as error:
        print(error, file=sys.stderr)
        return 2
    folder.create()
    with folder.held():
        folder.freeze_config(config)
        return _count(folder, config)


def _count(folder: RunFolder, config: TrainConfig) -> int:
    done, value = 0, str(config.seed)
    if (backup := newest_usable(folder)) is not None:
        state = json.loads((backup.path / "state.json").read_bytes())
        done, value = state["step"], state["value"]
    fault = _fault(folder, config)
    total = config.max_steps or 20
    commands = FolderCommands(folder, TrainCallbacks())
    with EventWriter(folder.event_path(0), 0) as events:
        for step in range(done + 1, total + 1):
            if fault == "fail":
                folder.write_exit("failed", rank=0, text="It was told to fail.")
                return 1
            if fault == "die":
                os.kill(os.getpid(), signal.SIGKILL)
            value = hashlib.sha256(f"{value} {step}".encode()).hexdigest()
            events.write(StepInfo(1, step, total, 0.1, 0.1, 1e-4, 4, STEP_SECONDS, 0.1, device="cpu"))
            time.sleep(STEP_SECONDS)
            if step % STEPS_PER_BACKUP == 0 or commands.stopping:
                write_backup(folder.backup_dir, step, {**state_of(step), "value": value})
            if commands.stopping:
                folder.write_exit("stopped", rank=0)
                return 130
        write_text(folder.models_dir / "model.txt", value)
        events.write(FinishedEvent(total))
    folder.write_exit("finished", rank=0)
    return 0


def _fault(folder: RunFolder, config: TrainConfig) -> str:
    try:
        return json.loads((folder.path.parent / "fault.json").read_bytes()).get(str(config.seed), "")
    except FileNotFoundError:
        return ""


def expected_model(config: TrainConfig) -> str:
    """What the run writes if every step is done once."""
    value = str(config.seed)
    for step in range(1, (config.max_steps or 20) + 1):
        value = hashlib.sha256(f"{value} {step}".encode()).hexdigest()
    return value


if __name__ == "__main__":
    sys.exit(main())
