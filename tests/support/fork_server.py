"""Processes that have imported torch, diffusers and the trainer when they start: forked from one that did it once.

A start of Python spends five seconds on these imports, most trainings of the tests one.
"""

from __future__ import annotations

import multiprocessing
import os
import runpy
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
PRELOADED = "tests.support.preloaded"


def start_forked(target: Callable[..., None], *arguments: Any, daemon: bool = True) -> BaseProcess:
    """A new process that calls `target`, a function at the top of a module, with `arguments`.

    Its environment is that of the first that was started here. daemon: it ends with this process, and starts none.
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([PRELOADED])
    process = context.Process(target=target, args=arguments, daemon=daemon)
    with pytest.MonkeyPatch.context() as patch:  # of the process that all are forked from, where this one starts it
        patch.setenv("OMP_NUM_THREADS", "1")
        patch.setenv("CUDA_VISIBLE_DEVICES", "")
        patch.chdir(ROOT)  # it imports from the folder that it is started in
        process.start()
    return process


class ForkedScript:
    """A script of Chorus in a process of its own, in a session of its own; with the methods of subprocess.Popen.

    arguments: the script and its own. environment: all of it. output: the file for stdout and stderr. cwd: the folder
    that it runs in, by default that of Chorus.
    Ranks that the script spawns are forked from it too; what else it starts, it starts as ever.
    """

    def __init__(self, arguments: Sequence[str], environment: Mapping[str, str], output: Path, cwd: Path = ROOT):
        self._process = start_forked(_run_script, list(arguments), dict(environment), output, cwd, daemon=False)
        self.pid = self._process.pid
        self.kill = self._process.kill
        self.terminate = self._process.terminate

    def poll(self) -> int | None:
        return self._process.exitcode

    def wait(self, timeout: float | None = None) -> int:
        self._process.join(timeout)
        if self._process.exitcode is None:
            raise subprocess.TimeoutExpired(str(self._process), timeout)
        return self._process.exitcode


def _run_script(arguments: list[str], environment: dict[str, str], output: Path, cwd: Path) -> None:
    import torch

    os.setsid()
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(cwd)
    with output.open("ab") as file:
        for descriptor in (1, 2):
            os.dup2(file.fileno(), descriptor)
    torch.multiprocessing.spawn = partial(torch.multiprocessing.start_processes, start_method="fork")
    sys.argv = arguments
    runpy.run_path(arguments[0], run_name="__main__")


def pids_of_session(session: int) -> list[int]:
    """The processes of a session on this machine, but for those that have ended and nobody has waited for."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, _, _, its_session, *_ = path.read_text().rpartition(")")[2].split()
        except OSError:  # it has ended just now
            continue
        if int(its_session) == session and state != "Z":
            found.append(int(path.parent.name))
    return found
