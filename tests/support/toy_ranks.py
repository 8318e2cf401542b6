"""Ranks without a model, for the tests of the supervisor: each does one thing that a rank may do.

`scenario` says what: {"folder": ..., "0": [name, ...], "1": [name, ...]}, or, for another behaviour in each attempt,
{"0": [[name, ...], [name, ...]]}. Imports no torch.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from modules.config.files import load_config
from modules.launch.launchers import SpawnLauncher
from modules.launch.lifeline import Lifeline
from modules.launch.stacks import dump_stacks_on_request
from modules.session.atomic import write_text
from modules.session.EventCallbacks import EventCallbacks
from modules.session.events import EventWriter
from modules.session.RunFolder import RunFolder
from modules.session.signals import remember_signals
from modules.session.slurm import REQUEUE_SIGNALS
from modules.session.StepInfo import StepInfo
from tests.support.waiting import wait_until


def toy_rank(rank: int, variables: dict[str, str], scenario: dict[str, Any]) -> None:
    os.environ.update(variables)
    folder = RunFolder(scenario["folder"])
    dump_stacks_on_request(folder.stacks_path(rank))
    line = Lifeline.from_environment(rank)
    actions = scenario[str(rank)]
    if isinstance(actions[0], list):
        actions = actions[int(os.environ["CHORUS_ATTEMPT"])]
    if actions == ["import"]:
        write_text(folder.path / f"pid-0-{rank}", str(os.getpid()))
        time.sleep(600)
    _meet(line, folder, rank, scenario)
    try:
        for action in actions:
            ACTIONS[action](line, folder)
    except Exception as error:
        is_user_error = isinstance(error, LookupError)
        line.failed(f"{type(error).__name__}: {error}", "Traceback\nlast line", is_user_error=is_user_error)
        os._exit(1)
    line.close()


def _meet(line: Lifeline, folder: RunFolder, rank: int, scenario: dict[str, Any]) -> None:
    """Waits for all ranks, so that what they do does not depend on who has started first."""
    attempt = os.environ["CHORUS_ATTEMPT"]
    line.beat()  # first, as who sees the file takes the rank for one that has begun
    write_text(folder.path / f"pid-{attempt}-{rank}", str(os.getpid()))
    paths = [folder.path / f"pid-{attempt}-{other}" for other in scenario if other.isdigit()]

    def all_are_here() -> bool:
        line.beat()
        return all(path.exists() for path in paths)

    wait_until(all_are_here)


def _finish(line: Lifeline, folder: RunFolder) -> None:
    line.done("finished", 10)


def _raise(line: Lifeline, folder: RunFolder) -> None:
    raise ValueError("no such luck")


def _raise_user_error(line: Lifeline, folder: RunFolder) -> None:
    raise LookupError("no images")


def _symptom(line: Lifeline, folder: RunFolder) -> None:
    line.failed("Connection closed by peer", "", is_symptom=True)
    os._exit(1)


def _hang_in_this_function(line: Lifeline, folder: RunFolder) -> None:
    time.sleep(600)


def _work(line: Lifeline, folder: RunFolder) -> None:
    while True:
        line.beat()
        time.sleep(0.05)


def _work_until_stopped(line: Lifeline, folder: RunFolder) -> None:
    while not list(folder.commands_dir.glob("*.stop.cmd")):
        line.beat()
        time.sleep(0.05)
    line.done("stopped", 5)


def _work_until_requeued(line: Lifeline, folder: RunFolder) -> None:
    remember_signals(REQUEUE_SIGNALS)
    while not signal.getsignal(signal.SIGUSR1).has_come:
        line.beat()
        time.sleep(0.05)
    for number in REQUEUE_SIGNALS:  # as Python ends it takes handlers away; real ranks end without that
        signal.signal(number, signal.SIG_IGN)
    line.done("requeued", 5)


def _train(line: Lifeline, folder: RunFolder) -> None:
    """Tells of steps up to max_steps of the folder's settings, of samples and backups, as a rank that trains."""
    total = load_config(folder.config_path).max_steps or 1_000_000
    done = max((int(path.name[5:]) for path in folder.backup_dir.glob("step-*")), default=0)
    with EventWriter(folder.event_path(line.rank), line.rank) as events, line.phase("training"):
        callbacks = EventCallbacks(events)
        callbacks.on_status("Training")
        for step in range(done + 1, total + 1):
            callbacks.on_step(StepInfo(1, step, total, 1 / step, 1 / step, 1e-4, 4, 0.05, 0.1, device="cpu"))
            line.beat()
            time.sleep(0.05)
            if line.rank == 0 and step % 3 == 0:
                sample = folder.samples_dir / f"step-{step:09d}" / "000_a cat_seed42.png"
                sample.parent.mkdir(parents=True)
                sample.touch()
                callbacks.on_sample(sample, "a cat", step)
            if list(folder.commands_dir.glob("*.stop.cmd")):
                if line.rank == 0:
                    backup = folder.backup_dir / f"step-{step:09d}"
                    backup.mkdir(parents=True)
                    callbacks.on_backup(backup, step)
                return line.done("stopped", step)
    line.done("finished", total)


def _kill_itself(line: Lifeline, folder: RunFolder) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def _stop_itself(line: Lifeline, folder: RunFolder) -> None:
    os.kill(os.getpid(), signal.SIGSTOP)


def _be_deaf(line: Lifeline, folder: RunFolder) -> None:
    """Neither a word nor SIGTERM ends this process, as if it were stuck in native code."""
    line.on_lost = lambda: None
    signal.signal(signal.SIGTERM, signal.SIG_IGN)


ACTIONS = {
    "finish": _finish,
    "raise": _raise,
    "raise_user_error": _raise_user_error,
    "symptom": _symptom,
    "hang": _hang_in_this_function,
    "work": _work,
    "work_until_stopped": _work_until_stopped,
    "work_until_requeued": _work_until_requeued,
    "train": _train,
    "kill_itself": _kill_itself,
    "stop_itself": _stop_itself,
    "be_deaf": _be_deaf,
    "wait_a_moment": lambda line, folder: time.sleep(0.4),
    "exit_0": lambda line, folder: os._exit(0),
    "exit_3": lambda line, folder: os._exit(3),
}


class ToyLauncher:
    """Starts toy ranks as plain processes, which takes a tenth of the time of spawning them with torch."""

    def __init__(self, scenario_path: Path, num_ranks: int):
        self.num_ranks = num_ranks
        self.last_lines = ()
        self._command = [sys.executable, "-m", "tests.support.toy_ranks", str(scenario_path)]
        self._processes: list[subprocess.Popen] = []

    def start(self, variables: dict[str, str]) -> None:
        for rank in range(self.num_ranks):
            env = {**os.environ, **variables, "RANK": str(rank)}
            self._processes.append(subprocess.Popen(self._command, env=env, cwd=Path(__file__).parents[2]))

    def is_running(self) -> bool:
        return any(process.poll() is None for process in self._processes)

    def exit_codes(self) -> dict[int, int | None]:
        return {rank: process.poll() for rank, process in enumerate(self._processes)}

    def killed_by(self) -> int | None:
        return None

    def terminate(self) -> None:
        for process in self._processes:
            process.terminate()

    def kill(self) -> None:
        for process in self._processes:
            process.kill()


class ForkedToyLauncher(SpawnLauncher):
    """Forks them, which takes a tenth of that again, once the process is there that all are forked from."""

    def __init__(self, scenario_path: Path, num_ranks: int):
        super().__init__(toy_rank, [json.loads(scenario_path.read_text())], num_ranks)

    def start(self, variables: dict[str, str]) -> None:
        from tests.support.fork_server import start_forked

        for rank in range(self.num_ranks):
            self._processes.append(start_forked(self._target, rank, {**os.environ, **variables}, *self._args))


if __name__ == "__main__":  # by ToyLauncher, torchrun, or the stand-in for it
    toy_rank(int(os.environ["RANK"]), {}, json.loads(Path(sys.argv[1]).read_text()))
