"""Start the ranks of this node, by torch.multiprocessing.spawn or by torchrun.

Both launchers implement `Launcher`, the interface that the supervisor uses.
"""

from __future__ import annotations

import codecs
import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Protocol

from modules.config.installation import ROOT
from modules.launch.parent_watch import PARENT_VARIABLE

if TYPE_CHECKING:
    from modules.launch.plan import SupervisePlan
    from modules.launch.WaitingRanks import WaitingRanks

SAVE_SECONDS = 600  # for ranks to save after a signal, before torchrun kills them; its default of 30 s is too short

_TAIL_LINES = 20


class Launcher(Protocol):
    """Starts the ranks of one node, reports how they end and can end them."""

    num_ranks: int

    @property
    def last_lines(self) -> Sequence[str]:
        """The end of the launcher's own output."""

    def start(self, variables: dict[str, str]) -> None:
        """Start the ranks with `variables` added to their environment."""

    def is_running(self) -> bool:
        """Whether any process that this launcher started is still running."""

    def exit_codes(self) -> dict[int, int | None]:
        """By local rank; None while it runs or if unknown; minus the signal number if a signal ended it."""

    def killed_by(self) -> int | None:
        """The signal that ended the launcher itself, if it is a separate process."""

    def terminate(self) -> None:
        """Ask all ranks to end (SIGTERM)."""

    def kill(self) -> None:
        """Kill the processes that this launcher started itself."""


class SpawnLauncher:
    """Runs `target(local_rank, variables, *args)` in `num_ranks` new processes.

    target: a module-level function, which puts `variables` into its environment itself. waiting: ranks that may be
    taken instead of new ones.
    `start` must be called from the main thread, as `spawn_ranks`.
    """

    def __init__(
        self, target: Callable[..., None], args: Sequence[Any], num_ranks: int, waiting: WaitingRanks | None = None
    ):
        self.num_ranks = num_ranks
        self.last_lines: Sequence[str] = ()
        self._target, self._args = target, tuple(args)
        self._waiting = waiting
        self._processes: list[Any] = []

    def start(self, variables: dict[str, str]) -> None:
        args = (variables, *self._args)
        taken = [] if self._waiting is None else self._waiting.take(self.num_ranks, self._target, args)
        self._processes = taken or spawn_ranks(self._target, args, self.num_ranks)

    def is_running(self) -> bool:
        return any(process.exitcode is None for process in self._processes)

    def exit_codes(self) -> dict[int, int | None]:
        return {rank: process.exitcode for rank, process in enumerate(self._processes)}

    def killed_by(self) -> int | None:
        return None

    def terminate(self) -> None:
        for process in self._processes:
            process.terminate()

    def kill(self) -> None:
        for process in self._processes:
            process.kill()


class TorchrunLauncher:
    """Runs `command`, as `torchrun_command` builds it, whose agent starts `num_ranks` ranks on this node.

    ends: the file in which the agent records the exit codes of failed ranks (elastic_agent.py).
    """

    def __init__(self, command: Sequence[str], num_ranks: int, ends: str | os.PathLike):
        self.num_ranks = num_ranks
        self._ends = Path(ends)
        self.last_lines: deque[str] = deque(maxlen=_TAIL_LINES)
        self._command = list(command)
        self._agent: subprocess.Popen[bytes] | None = None

    def start(self, variables: dict[str, str]) -> None:
        # In its own process group: Ctrl-C goes to the supervisor alone, which turns it into a stop command.
        flags = 0
        if sys.platform == "win32":
            flags = subprocess.CREATE_NEW_PROCESS_GROUP
        self._agent = subprocess.Popen(
            self._command,
            env={**os.environ, **variables},
            stdin=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            creationflags=flags,
            start_new_session=sys.platform != "win32",
        )
        pipe = self._agent.stderr
        self._reader = threading.Thread(target=self._pass_on, args=(pipe,), name="torchrun's stderr", daemon=True)
        self._reader.start()

    def is_running(self) -> bool:
        return self._agent is not None and self._agent.poll() is None

    def exit_codes(self) -> dict[int, int | None]:
        code = None if self._agent is None else self._agent.poll()
        if code is not None:
            self._reader.join(1.0)  # its last output may still be in the pipe, which a rank may hold open
            found = self._told()
        else:
            found = {}
        # If the agent died without a record of any rank, its own end is taken as the end of all.
        of_others = code if code is not None and code >= 0 and not found else None
        return {rank: found.get(rank, of_others) for rank in range(self.num_ranks)}

    def killed_by(self) -> int | None:
        code = None if self._agent is None else self._agent.poll()
        return -code if code is not None and code < 0 else None

    def terminate(self) -> None:
        if self._agent is not None:
            self._agent.terminate()

    def kill(self) -> None:
        if self._agent is not None:
            self._agent.kill()

    def _told(self) -> dict[int, int]:
        try:
            return {int(rank): code for rank, code in json.loads(self._ends.read_bytes()).items()}
        except FileNotFoundError:  # no rank failed
            return {}

    def _pass_on(self, pipe: IO[bytes]) -> None:
        """Copy torchrun's stderr to that of this process, and keep its end."""
        decoder = codecs.getincrementaldecoder("utf-8")("backslashreplace")
        line = ""
        with pipe:
            while data := os.read(pipe.fileno(), 1 << 16):
                text = decoder.decode(data)
                with contextlib.suppress(OSError, ValueError):  # the terminal was closed
                    sys.stderr.write(text)
                    sys.stderr.flush()
                *lines, line = (line + text).split("\n")
                for complete in lines:
                    self.last_lines.append(complete.rstrip())


def spawn_ranks(target: Callable[..., None], args: Sequence[Any], num_ranks: int) -> list[Any]:
    """The processes of `num_ranks` new ranks, each of which runs `target(local_rank, *args)`.

    Must be called from the main thread: when the *thread* that spawned the ranks ends, Linux sends them SIGINT (torch
    requests it), and they have been seen to exit with 0 in the middle of a training.
    """
    if threading.current_thread() is not threading.main_thread():
        raise RuntimeError("ranks must be spawned by the main thread: they end with the thread that spawned them")
    from torch import multiprocessing

    os.environ[PARENT_VARIABLE] = str(os.getpid())
    try:
        # Ctrl-C reaches all processes of a terminal and would kill a rank that is still importing. Only the
        # supervisor handles it.
        with _ctrl_c_ignored():
            context = multiprocessing.spawn(target, tuple(args), num_ranks, join=False)
    finally:
        del os.environ[PARENT_VARIABLE]
    return list(context.processes)


def torchrun_command(
    plan: SupervisePlan, script_args: Sequence[str], log_dir: str | os.PathLike, ends: str | os.PathLike
) -> list[str]:
    """The argument list that starts the ranks of this node with torchrun's agent.

    script_args: the script and its arguments. ends: as for `TorchrunLauncher`. log_dir: where ranks report errors to
    torchrun; by default it creates a folder in the system's temporary one and leaves it there.
    --rdzv-backend=c10d is left out on purpose: with it the machine that happens to start first becomes rank 0,
    whatever node_rank says.
    """
    return [
        sys.executable,
        str(ROOT / "scripts" / "elastic_agent.py"),
        f"--ends={ends}",
        "--nnodes",
        str(plan.num_nodes),
        "--node-rank",
        str(plan.node_rank),
        "--nproc-per-node",
        str(plan.num_ranks),
        "--master-addr",
        plan.config.master_addr,
        "--master-port",
        str(plan.port),
        "--log-dir",
        str(log_dir),
        "--shutdown-timeout",
        str(SAVE_SECONDS),
        *script_args,
    ]


def kill_processes(pids: Iterable[int]) -> None:
    """Kill processes of this run."""
    for pid in pids:
        # On Windows there is no SIGKILL and SIGTERM kills; PermissionError means that the process is just ending.
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, getattr(signal, "SIGKILL", signal.SIGTERM))


@contextlib.contextmanager
def _ctrl_c_ignored() -> Iterator[None]:
    """Within the block this process ignores Ctrl-C; processes started here ignore it for good."""
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    _hand_on_to_new_processes(True)
    try:
        yield
    finally:
        _hand_on_to_new_processes(False)
        signal.signal(signal.SIGINT, before)


def _hand_on_to_new_processes(ignored: bool) -> None:
    """Set whether new processes ignore Ctrl-C on Windows; elsewhere they inherit that from this process."""
    if sys.platform == "win32":
        import ctypes

        ctypes.WinDLL("kernel32").SetConsoleCtrlHandler(None, ignored)
