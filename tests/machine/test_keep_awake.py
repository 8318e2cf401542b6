from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from modules.machine import keep_awake
from modules.machine.keep_awake import kept_awake
from modules.session.atomic import is_alive
from tests.support.waiting import PATIENCE_SECONDS, wait_until

ROOT = Path(__file__).parents[2]
SAID = ["Keeping this machine awake until the run ends"]
posix_only = pytest.mark.skipif(os.name != "posix", reason="a shell script stands in for the system's program")


@pytest.fixture
def helper(tmp_path, monkeypatch):
    """A function that puts a fake program on the PATH, which records its arguments and runs its command."""

    def make(name: str, code: str = 'while [ "${1#-}" != "$1" ]; do shift; done; "$@"') -> Path:
        (tmp_path / name).write_text(f'#!/bin/sh\necho $$ "$@" > "{tmp_path}/started"\n{code}\n')
        (tmp_path / name).chmod(0o755)
        monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
        return tmp_path / "started"

    return make


@posix_only
@pytest.mark.parametrize(
    ("platform", "name", "options"),
    [("linux", "systemd-inhibit", "--what=idle:sleep"), ("darwin", "caffeinate", "-i")],
)
def test_the_systems_program_runs_as_long_as_the_run(platform, name, options, helper, monkeypatch):
    monkeypatch.setattr(keep_awake, "sys", SimpleNamespace(platform=platform))
    started, told = helper(name), []
    with kept_awake(told.append):
        pid, used = started.read_text().split()[:2]
        assert (told, used) == (SAID, options)
        assert is_alive(int(pid))
    assert not is_alive(int(pid))


@posix_only
@pytest.mark.skipif(sys.platform != "linux", reason="the stand-in is that of Linux")
def test_it_ends_with_a_run_that_is_killed(helper):
    started = helper("systemd-inhibit")
    code = "from modules.machine.keep_awake import kept_awake as k; import os\nwith k(print): os.kill(os.getpid(), 9)"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, timeout=PATIENCE_SECONDS)
    assert done.returncode == -signal.SIGKILL
    wait_until(lambda: not is_alive(int(started.read_text().split()[0])), 30)


@posix_only
@pytest.mark.parametrize(
    ("platform", "code"), [("linux", "exit 1"), ("win32", "unused"), ("freebsd14", "unused"), ("WSL", "unused")]
)
def test_where_it_is_not_possible_nothing_is_promised(platform, code, helper, monkeypatch):
    helper("systemd-inhibit", code)
    monkeypatch.setattr(keep_awake, "sys", SimpleNamespace(platform={"WSL": "linux"}.get(platform, platform)))
    monkeypatch.setattr(keep_awake, "in_wsl", lambda: platform == "WSL")
    monkeypatch.setattr(
        ctypes, "WinDLL", lambda name: SimpleNamespace(SetThreadExecutionState=lambda flags: 0), raising=False
    )
    told = []
    with kept_awake(told.append):
        assert told == []


@posix_only
def test_a_system_without_such_a_program_is_left_alone(monkeypatch):
    monkeypatch.setattr(keep_awake, "_HELPERS", {sys.platform: ("no-such-program",)})
    told = []
    with kept_awake(told.append):
        assert told == []


def test_on_windows_the_thread_asks_for_it_and_takes_it_back(monkeypatch):
    asked, told = [], []

    def set_state(flags: int) -> int:
        asked.append(flags)
        return 0x80000000

    monkeypatch.setattr(keep_awake, "sys", SimpleNamespace(platform="win32"))
    monkeypatch.setattr(
        ctypes, "WinDLL", lambda name: SimpleNamespace(SetThreadExecutionState=set_state), raising=False
    )
    with kept_awake(told.append):
        assert (asked, told) == ([0x80000001], SAID)
    assert asked == [0x80000001, 0x80000000]
