from __future__ import annotations

import ctypes
import signal
from types import SimpleNamespace

import pytest
from torch import multiprocessing

from modules.launch import launchers


@pytest.mark.parametrize("platform", ["linux", "win32"])
def test_a_ctrl_c_does_not_reach_ranks_that_are_being_started(platform, monkeypatch):
    seen = []

    def spawn(*arguments, **options):
        seen.append(signal.getsignal(signal.SIGINT))
        return SimpleNamespace(processes=[])

    kernel32 = SimpleNamespace(SetConsoleCtrlHandler=lambda handler, add: seen.append((handler, add)))
    monkeypatch.setattr(ctypes, "WinDLL", lambda name: kernel32, raising=False)
    monkeypatch.setattr(launchers, "sys", SimpleNamespace(platform=platform))
    monkeypatch.setattr(multiprocessing, "spawn", spawn)
    before = signal.getsignal(signal.SIGINT)
    launchers.SpawnLauncher(print, (), 2).start({})
    assert seen == ([(None, True), signal.SIG_IGN, (None, False)] if platform == "win32" else [signal.SIG_IGN])
    assert signal.getsignal(signal.SIGINT) is before
