"""Processes that have imported torch, diffusers and the trainer when they start: forked from one that did it once.

A start of Python spends five seconds on these imports, most trainings of the tests one. What such a process starts by
Python, as torchrun its ranks, is forked from it in turn.
"""

from __future__ import annotations

import contextlib
import gc
import multiprocessing
import os
import runpy
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from multiprocessing import forkserver, resource_tracker, util
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import IO, Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
PRELOADED = "tests.support.preloaded"
SHARED = "TESTS_FORK_SERVER"  # in the environment: the address of the process that all are forked from, "@" for NUL
# It imports nothing before the first process is asked for: many tests need none.
SERVER = """
import select
if {listener} in select.select([{listener}, {alive}], [], [])[0]:
    from multiprocessing.forkserver import main
    main({listener}, {alive}, [{preloaded!r}])
"""

_kept: list[Any] = []  # until this process ends


def share_server(output: IO[bytes]) -> None:
    """Has this process and all that it starts, such as the workers of xdist, fork from one process.

    output: for what is forked, unless it has another one. The process ends with this one. Call it before anything is
    forked, and at most once.
    """
    if sys.platform != "linux":
        return  # elsewhere a socket needs a place in a file system
    alive, keeps_alive = os.pipe()
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind("")
        listener.listen(64)
        os.environ[SHARED] = "@" + listener.getsockname()[1:].decode()
        code = SERVER.format(listener=listener.fileno(), alive=alive, preloaded=PRELOADED)
        with _environment_of_server():
            streams = {"stdin": subprocess.DEVNULL, "stdout": output, "stderr": output}
            server = subprocess.Popen([sys.executable, "-c", code], pass_fds=(listener.fileno(), alive), **streams)
    os.close(alive)
    _kept.extend((server, keeps_alive))


def _use_shared_server() -> None:
    """Where there is one: multiprocessing asks it, and starts none."""
    server = forkserver._forkserver
    if SHARED in os.environ and server._forkserver_pid is None and "ensure_running" not in vars(server):
        server._forkserver_address = "\0" + os.environ[SHARED][1:]
        server._forkserver_alive_fd = os.open(os.devnull, os.O_RDONLY)  # that of another process keeps it alive
        server.ensure_running = resource_tracker.ensure_running


@contextlib.contextmanager
def _environment_of_server() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OMP_NUM_THREADS", "1")
        patch.setenv("CUDA_VISIBLE_DEVICES", "")
        patch.chdir(ROOT)  # it imports from the folder that it is started in
        yield


def start_forked(target: Callable[..., None], *arguments: Any, daemon: bool = True) -> BaseProcess:
    """A new process that calls `target`, a function at the top of a module, with `arguments`.

    Its environment is that of the first that was started here. daemon: it ends with this process, and starts none.
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([PRELOADED])
    process = context.Process(target=target, args=arguments, daemon=daemon)
    _use_shared_server()
    with _environment_of_server():  # where this process starts it
        process.start()
    return process


def call_forked(function: Callable[..., Any], *arguments: Any) -> Any:
    """What `function`, at the top of a module, returns in a process of its own.

    What it starts by Python is forked from that process. Raises EOFError where the function raises.
    """
    ours, theirs = multiprocessing.Pipe(duplex=False)
    process = start_forked(_call, theirs, function, arguments, daemon=False)
    theirs.close()
    with ours:
        result = ours.recv()
    process.join()
    return result


def _call(connection: Connection, function: Callable[..., Any], arguments: Sequence[Any]) -> None:
    subprocess.Popen.__init__ = _start_or_fork
    connection.send(function(*arguments))


class ForkedScript:
    """A script of Chorus in a process of its own, in a session of its own; with the methods of subprocess.Popen.

    arguments: those of Python: the script, or -m and a module, and its own. environment: all of it. output: the file
    for stdout and stderr. cwd: the folder that it runs in, by default that of Chorus. imports_anew: whether it imports
    the modules of Chorus itself, as it changes what they read at their import; then only libraries are there before.
    Ranks that it spawns and scripts that it starts by Python are forked from it; all else is started as ever.
    """

    def __init__(
        self,
        arguments: Sequence[str],
        environment: Mapping[str, str],
        output: Path,
        cwd: Path = ROOT,
        imports_anew: bool = False,
    ):
        options = (list(arguments), dict(environment), output, cwd, imports_anew)
        self._process = start_forked(_run_script, *options, daemon=False)
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


def _run_script(arguments: list[str], environment: dict[str, str], output: Path, cwd: Path, imports_anew: bool) -> None:
    import torch

    os.setsid()
    os.chdir(cwd)
    with output.open("ab") as file:
        for descriptor in (1, 2):
            os.dup2(file.fileno(), descriptor)
    torch.multiprocessing.spawn = partial(torch.multiprocessing.start_processes, start_method="fork")
    subprocess.Popen.__init__ = _start_or_fork
    if imports_anew:
        for name in [name for name in sys.modules if name.partition(".")[0] in ("modules", "scripts")]:
            del sys.modules[name]
    _run_as_python(arguments, environment)


def _run_as_python(arguments: Sequence[str], environment: Mapping[str, str]) -> None:
    """What `python *arguments` would do: run a script or, behind -m, a module."""
    os.environ.clear()
    os.environ.update(environment)
    tempfile.tempdir = None  # found anew where the environment says
    if arguments[0] == "-u":
        arguments = arguments[1:]
    if arguments[0] == "-m":
        sys.argv = list(arguments[1:])
        sys.path.insert(0, os.getcwd())
        sys.modules.pop(arguments[1], None)  # else runpy warns that it is there before it is run
        runpy.run_module(arguments[1], run_name="__main__", alter_sys=True)
    else:
        sys.argv = list(arguments)
        sys.path.insert(0, os.path.dirname(arguments[0]))
        runpy.run_path(arguments[0], run_name="__main__")


_start = subprocess.Popen.__init__


def _start_or_fork(process: subprocess.Popen, args: Any, **options: Any) -> None:
    """In place of subprocess.Popen's: where it would start a script by Python, this process is forked instead."""
    words = [args] if isinstance(args, str | os.PathLike) else [str(word) for word in args]
    if words[0] == sys.executable and words[1] != "-c":
        run = partial(_end_as_python, words[1:], options.get("env") or dict(os.environ))
        options["preexec_fn"] = run  # called when stdin, stdout, stderr, folder and session are as the options say
    _start(process, args, **options)


def _end_as_python(arguments: list[str], environment: dict[str, str]) -> None:
    """In the forked process: in place of another program, so with nothing of this one's but its imports."""
    gc.freeze()  # else files of the other process would be collected, and closed by numbers that are others' here
    gc.enable()
    os.closerange(3, os.sysconf("SC_OPEN_MAX"))
    resource_tracker._resource_tracker._fd = None
    for number in signal.valid_signals():
        if callable(signal.getsignal(number)):
            signal.signal(number, signal.SIG_DFL)
    if signal.getsignal(signal.SIGINT) is signal.SIG_DFL:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)  # as Python has it, and subprocess undoes for the program to start
    for number, name, mode in ((0, "stdin", "r"), (1, "stdout", "w"), (2, "stderr", "w")):
        # those of the other process may have been replaced, and closed
        stream = open(number, mode, 1, encoding="utf-8", closefd=False)  # noqa: SIM115 - to the end of the process
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)
    sys.stdout, sys.stderr = sys.__stdout__, sys.__stderr__  # where the other process has put something in their place
    util._close_stdin = lambda: None  # it is this process's own, not that of the one it was forked from
    process = multiprocessing.get_context("fork").Process(target=_run_as_python, args=(arguments, environment))
    os._exit(process._bootstrap())


def pids_that_write_to(output: Path) -> list[int]:
    """The processes of this machine whose stdout or stderr is this file."""
    found = set()
    for path in Path("/proc").glob("[0-9]*/fd/[12]"):
        with contextlib.suppress(OSError):  # it has ended just now, or is somebody else's
            if os.readlink(path) == str(output):
                found.add(int(path.parts[2]))
    return sorted(found)
