"""scripts/train.py in processes of its own, started as a user would start it."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.support.fork_server import ForkedScript, pids_that_write_to
from tests.support.ports import free_port
from tests.support.waiting import PATIENCE_SECONDS

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = str(ROOT / "scripts" / "train.py")
MARK = "CHORUS_TEST_RUN"  # in the environment of every process of a run, so that all can be found


class StartedRun:
    """A run by one of `LAUNCHERS`; all that is left of it ends with the block.

    launcher: its name. config_file: the settings. folder: their workspace_dir. arguments: further ones of the script.
    variables: for the environment. forked: the processes begin with all imports done, which saves seconds.
    """

    def __init__(
        self,
        launcher: str,
        config_file: str | Path,
        folder: Path,
        *arguments: str,
        variables: Mapping[str, str] | None = None,
        forked: bool = False,
    ):
        self.folder = folder
        self._forked = forked
        self.variables = dict(variables or {})
        self._mark = secrets.token_hex(8)
        self._output_path = Path(config_file).with_name(f"output-{self._mark}.txt")
        left_out = ("SLURM_", "TORCHELASTIC_", "ACCELERATE_", "CHORUS_")
        env = {name: value for name, value in os.environ.items() if not name.startswith(left_out)}
        env |= {MARK: self._mark, "CUDA_VISIBLE_DEVICES": "", **self.variables}
        self._output_path.touch()
        commands = LAUNCHERS[launcher](["--config", str(config_file), *arguments])
        self.port = commands[0][1].get("MASTER_PORT")  # at which the ranks meet; None: the settings say so
        self.processes = [self._start(command, env | own) for command, own in commands]

    def _start(self, command: list[str], env: dict[str, str]) -> subprocess.Popen | ForkedScript:
        """In a session of its own, as a terminal gives it: a Ctrl-C goes to all of it."""
        if self._forked:
            _python, *arguments = command
            return ForkedScript(arguments, env, self._output_path)
        with self._output_path.open("ab") as output:
            return subprocess.Popen(
                command, env=env, stdout=output, stderr=subprocess.STDOUT, cwd=ROOT, start_new_session=True
            )

    def __enter__(self) -> StartedRun:
        return self

    def __exit__(self, *exc_info: object) -> None:
        while pids := self.pids():  # again, for what they have started meanwhile
            kill_all(pids)
        for process in self.processes:
            process.wait()

    @property
    def output(self) -> str:
        """What all processes have written to the terminal."""
        return self._output_path.read_text(encoding="utf-8", errors="replace")

    def wait(self, seconds: float = PATIENCE_SECONDS) -> list[int]:
        """The exit codes of the processes that were started here. Raises subprocess.TimeoutExpired."""
        deadline = time.monotonic() + seconds
        return [process.wait(max(0.0, deadline - time.monotonic())) for process in self.processes]

    def events(self, rank: int, kind: str) -> list[dict[str, Any]]:
        path = self.folder / "events" / f"rank-{rank}.jsonl"
        lines = path.read_bytes().splitlines() if path.exists() else []
        return [event for event in map(_parsed, lines) if event.get("type") == kind]

    def losses(self, rank: int = 0) -> dict[int, float]:
        """Step -> loss; of a step that was done twice the later one."""
        return {event["step"]: event["loss"] for event in self.events(rank, "step")}

    def record(self) -> dict[str, Any]:
        """exit.json; empty while there is none."""
        path = self.folder / "exit.json"
        return json.loads(path.read_bytes()) if path.exists() else {}

    def pids(self, **variables: str) -> list[int]:
        """The processes of this run that are there; of them those that were started with `variables`, if not forked."""
        if self._forked:  # whose environment the system tells of is that of the process they are forked from
            return pids_that_write_to(self._output_path)
        return find_processes({MARK: self._mark, **variables})

    def wait_for(self, condition: Callable[[], Any], seconds: float = PATIENCE_SECONDS) -> None:
        """Raises TimeoutError, with the output, where `condition` does not come true."""
        deadline = time.monotonic() + seconds
        while not condition():
            if time.monotonic() > deadline:
                raise TimeoutError(self.output)
            time.sleep(0.05)

    def wait_for_step(self, step: int) -> None:
        self.wait_for(lambda: self.losses().get(step))

    def wait_until_gone(self, seconds: float = PATIENCE_SECONDS) -> None:
        for process in self.processes:  # reaps those that have ended
            self.wait_for(lambda process=process: process.poll() is not None, seconds)
        self.wait_for(lambda: not self.pids(), seconds)


def end_processes(variables: Mapping[str, str]) -> None:
    """Ends those that were started with these environment variables, and what they start meanwhile."""
    while pids := find_processes(variables):
        kill_all(pids)


def kill_all(pids: Sequence[int]) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def find_processes(variables: Mapping[str, str]) -> list[int]:
    """The processes of this machine that were started with these environment variables."""
    wanted = {f"{name}={value}".encode() for name, value in variables.items()}
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            is_ours = wanted <= set((folder / "environ").read_bytes().split(b"\0"))
        except OSError:  # it has ended just now, or is somebody else's
            continue
        if is_ours:
            found.append(int(folder.name))
    return found


Command = tuple[list[str], dict[str, str]]


def _alone(arguments: Sequence[str]) -> list[Command]:
    return [([sys.executable, SCRIPT, *arguments], {})]


def _spawn(arguments: Sequence[str]) -> list[Command]:
    return _alone([*arguments, "--multi_gpu", "--no_torchrun", "--world_size", "2"])


def _own_torchrun(arguments: Sequence[str]) -> list[Command]:
    return _alone([*arguments, "--multi_gpu", "--world_size", "2"])


def _torchrun(arguments: Sequence[str]) -> list[Command]:
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--nproc_per_node=2", f"--master_port={free_port()}"]
    return [([*torchrun, SCRIPT, *arguments, "--multi_gpu"], {})]


def _agent(arguments: Sequence[str]) -> list[Command]:
    agent = [sys.executable, str(ROOT / "scripts" / "elastic_agent.py"), "--nproc_per_node=2"]
    return [([*agent, SCRIPT, *arguments, "--multi_gpu"], {})]


def _accelerate(arguments: Sequence[str]) -> list[Command]:
    config_file = str(ROOT / "resources" / "accelerate_config.yaml")
    launch = [sys.executable, "-m", "accelerate.commands.launch", "--config_file", config_file]
    return [([*launch, SCRIPT, *arguments], {})]


def _slurm(arguments: Sequence[str]) -> list[Command]:
    step = {
        "MASTER_PORT": str(free_port()),
        "SLURM_JOB_ID": "4711",
        "SLURM_NODEID": "0",
        "SLURM_STEP_ID": "0",
        "SLURM_STEP_NUM_NODES": "1",
        "SLURM_STEP_NUM_TASKS": "2",
        "SLURM_STEP_TASKS_PER_NODE": "2",
    }
    command = [sys.executable, SCRIPT, *arguments, "--multi_gpu"]
    return [(command, {**step, "SLURM_PROCID": str(rank), "SLURM_LOCALID": str(rank)}) for rank in range(2)]


# "own torchrun": the agent that Chorus starts; "agent": the same, started by hand in place of torchrun.
LAUNCHERS: dict[str, Callable[[Sequence[str]], list[Command]]] = {
    "alone": _alone,
    "spawn": _spawn,
    "own torchrun": _own_torchrun,
    "torchrun": _torchrun,
    "agent": _agent,
    "accelerate": _accelerate,
    "slurm": _slurm,
}


def _parsed(line: bytes) -> dict[str, Any]:
    try:
        return json.loads(line)
    except ValueError:  # a line that is being written
        return {}
