"""Ranks that are spawned, and import their libraries, before there is a run for them."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from modules.config.own_file import open_own
from modules.launch.launchers import spawn_ranks
from modules.session.signals import HANGUP_SIGNALS, NOTICE_SIGNALS, signals_blocked

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

OWN_VARIABLES = "CHORUS_"  # what their names begin with: no library reads these


@dataclass(frozen=True)
class _Order:
    """What a rank is to do. variables: for its environment. log: the file for its stdout and stderr."""

    target: Callable[..., None]
    arguments: tuple[Any, ...]
    variables: dict[str, str]
    log: Path | None


class WaitingRanks:
    """`num_ranks` ranks that call `prepare`, as `import_for_run`, initialize no device, and wait for `take`.

    They end with this process. Must be created in the main thread, as `spawn_ranks` asks.
    log: the file to which ranks that are taken write their stdout and stderr; None: where this process wrote when they
    were spawned.
    """

    def __init__(self, num_ranks: int, prepare: Callable[[], object]):
        from torch import multiprocessing

        self.log: Path | None = None
        self._environment = dict(os.environ)
        pipes = [multiprocessing.Pipe(duplex=False) for _ in range(num_ranks)]
        self._senders = [sender for _, sender in pipes]
        receivers = [receiver for receiver, _ in pipes]
        with signals_blocked((*HANGUP_SIGNALS, *NOTICE_SIGNALS)):  # as in the supervisor
            self._processes = spawn_ranks(_wait, (receivers, prepare), num_ranks)
        for receiver in receivers:
            receiver.close()

    def take(self, num_ranks: int, target: Callable[..., None], arguments: Sequence[Any]) -> list[Any]:
        """Let them run `target(local_rank, *arguments)`, and return their processes.

        They are ended, and the result is empty, if they are not `num_ranks`, if one of them has ended, or if they were
        spawned in another environment, which libraries may have read on import. They can be taken once.
        """
        processes, self._processes = self._processes, []
        senders, self._senders = self._senders, []
        variables = self._changed_variables()
        can_run = len(processes) == num_ranks and all(process.exitcode is None for process in processes)
        if can_run and variables is not None:
            order = _Order(target, tuple(arguments), variables, self.log)
            try:
                for sender in senders:
                    sender.send(order)
                    sender.close()
            except OSError:  # it has just ended
                pass
            else:
                return processes
        _end(processes)
        return []

    def end(self) -> None:
        """End those that were not taken."""
        processes, self._processes = self._processes, []
        _end(processes)

    def _changed_variables(self) -> dict[str, str] | None:
        """The variables that this process has set since; None if others than those of Chorus have changed."""
        now, before = dict(os.environ), self._environment
        changed = {name for name in now.keys() | before.keys() if now.get(name) != before.get(name)}
        if any(not name.startswith(OWN_VARIABLES) or name not in now for name in changed):
            return None
        return {name: now[name] for name in changed}


def _end(processes: Sequence[Any]) -> None:
    for process in processes:
        process.kill()
    for process in processes:
        process.join()


def _wait(local_rank: int, receivers: Sequence[Connection], prepare: Callable[[], object]) -> None:
    """The main function of each rank."""
    for number, receiver in enumerate(receivers):
        if number != local_rank:
            receiver.close()
    prepare()
    try:
        order = receivers[local_rank].recv()
    except (EOFError, OSError):  # the process that would have sent one is gone
        os._exit(0)
    os.environ.update(order.variables)
    if order.log is not None:
        write_output_to(order.log)
    order.target(local_rank, *order.arguments)


def import_for_run(family: str) -> None:
    """Import what a rank needs up to its first step.

    family: the one that will probably be trained; another one only takes longer.
    """
    from modules.families.registry import FAMILIES
    from modules.layers.quiet_imports import quiet_libraries
    from modules.weights.libraries import gc_paused, import_pipeline

    quiet_libraries()
    with gc_paused(for_good=True), gpus_left_alone():
        # ruff: noqa: F401 - for those who import them later
        from modules.launch.supervise import run_spawned_rank
        from modules.trainer.DistributedTrainer import DistributedTrainer

        with contextlib.suppress(ImportError):  # it is optional, and a run that needs it says so
            import torch.utils.tensorboard

        if family in FAMILIES:
            import_pipeline(FAMILIES[family].pipeline)


@contextlib.contextmanager
def gpus_left_alone() -> Iterator[None]:
    """Context in which torch asks NVML how many GPUs there are, as libraries do when they are imported.

    CUDA would keep the devices open as long as the process waits, and have read CUDA_VISIBLE_DEVICES for good.
    """
    name = "PYTORCH_NVML_BASED_CUDA_CHECK"
    before = os.environ.get(name)
    os.environ[name] = "1"
    try:
        yield
    finally:
        del os.environ[name]
        if before is not None:
            os.environ[name] = before


def write_output_to(log: Path) -> None:
    """From now on, stdout and stderr of this process, and of those that it starts, are appended to `log`.

    Raises OSError if it can't be opened.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    with open_own(log, "ab") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
