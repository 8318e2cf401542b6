"""Which way a start takes, and what it refuses before it takes any."""

from __future__ import annotations

import io
import os
import sys
from types import SimpleNamespace

import pytest

from modules.config.errors import UserError
from modules.config.files import config_from_values
from modules.distributed.Heartbeat import LIMIT_VARIABLE
from modules.session import run_shape
from modules.trainer import start
from modules.trainer.checks import check_before_start
from modules.trainer.start import start_training
from tests.support.ports import free_port

REFUSAL = "CHORUS_HEARTBEAT_SECONDS is 'train=60': it must be a number of seconds above 0"


@pytest.fixture
def config(tmp_path):
    return config_from_values({"workspace_dir": str(tmp_path / "run"), "initial_port": str(free_port())})


@pytest.fixture
def started(monkeypatch):
    """What was started in spite of a refusal."""
    ways = []
    for name in ("supervise_training", "join_training", "run_training"):
        monkeypatch.setattr(start, name, lambda *arguments, name=name, **options: ways.append(name))
    monkeypatch.setenv(LIMIT_VARIABLE, "train=60")
    return ways


@pytest.mark.parametrize("by_torchrun", [False, True])
@pytest.mark.parametrize("ranks", [1, 2])
def test_a_wrong_limit_of_heartbeats_is_refused_by_who_would_watch_the_ranks(ranks, by_torchrun, config, started):
    config.enable_multi_gpu, config.world_size, config.use_torchrun = ranks > 1, ranks, by_torchrun
    for supervise in (False, True):
        with pytest.raises(UserError, match=REFUSAL):
            start_training(config, supervise=supervise)
    assert started == []


def test_of_the_ranks_that_a_launcher_has_started_the_first_one_refuses_it_for_all(config, started, monkeypatch):
    monkeypatch.setattr(start, "REFUSAL_SECONDS", 0.0)
    ranks = {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500"}
    for name, value in ranks.items():
        monkeypatch.setenv(name, value)
    for rank in ("0", "1"):
        monkeypatch.setenv("RANK", rank)
        monkeypatch.setenv("LOCAL_RANK", rank)
        with pytest.raises((UserError, SystemExit)) as end:
            start_training(config)
        assert str(end.value).startswith(REFUSAL) if rank == "0" else end.value.code == 2
    assert started == []


@pytest.mark.parametrize(("platform", "by_torchrun"), [("linux", True), ("win32", False)])
def test_torchrun_is_left_alone_on_windows_whatever_the_setting(platform, by_torchrun, config, monkeypatch):
    ways = []
    monkeypatch.setattr(start, "supervise_training", lambda *arguments, by_torchrun: ways.append(by_torchrun))
    monkeypatch.setattr(run_shape, "sys", SimpleNamespace(platform=platform))
    config.enable_multi_gpu, config.world_size = True, 2
    start_training(config)
    assert ways == [by_torchrun]


def test_a_dry_run_refuses_it_too(config, started):
    with pytest.raises(UserError, match=REFUSAL):
        check_before_start(config, 1)


@pytest.mark.skipif(os.name != "posix", reason="a console of Windows ends its processes when it is closed")
def test_a_terminal_that_was_closed_keeps_no_run_from_starting(config, started, monkeypatch):
    class ClosedTerminal(io.RawIOBase):
        def writable(self) -> bool:
            return True

        def write(self, data) -> int:
            raise OSError(5, "Input/output error")

    stream = io.TextIOWrapper(io.BufferedWriter(ClosedTerminal()), line_buffering=True)
    for name in ("stderr", "__stderr__"):
        monkeypatch.setattr(sys, name, stream)
    monkeypatch.delenv(LIMIT_VARIABLE)
    config.enable_multi_gpu, config.world_size = True, 1  # which is told there
    start_training(config)
    assert started == ["run_training"]
    sys.stderr.detach()
