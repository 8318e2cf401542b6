"""How a run is started, and what is refused before that."""

from __future__ import annotations

import io
import os
import sys

import pytest

from modules.config.ConceptConfig import ConceptConfig
from modules.config.errors import UserError
from modules.config.files import config_from_values
from modules.distributed.Heartbeat import LIMIT_VARIABLE
from modules.launch import start
from modules.launch.check_plan import check_plan
from modules.launch.lifeline import LIFELINE_VARIABLE
from modules.launch.plan import plan_launch
from modules.launch.start import start_training
from modules.machine.Machine import Machine
from tests.support.ports import free_port

REFUSAL = "CHORUS_HEARTBEAT_SECONDS is 'train=60': it must be a number of seconds above 0"


@pytest.fixture
def config(tmp_path):
    return config_from_values({"workspace_dir": str(tmp_path / "run"), "initial_port": str(free_port())})


@pytest.fixture
def started(monkeypatch):
    """What was started despite a refusal."""
    ways = []
    for name in ("supervise_training", "join_training", "run_training"):
        monkeypatch.setattr(start, name, lambda *arguments, name=name: ways.append(name))
    return ways


@pytest.fixture
def unchecked(monkeypatch):
    """Disables the checks, so that settings without a model and images are accepted."""
    monkeypatch.setattr(start, "check_plan", lambda plan: (None, []))


@pytest.fixture
def wrong_limit(monkeypatch):
    monkeypatch.setenv(LIMIT_VARIABLE, "train=60")


@pytest.fixture
def be_rank(monkeypatch):
    """A function that makes this process one of two ranks that a launcher has started."""
    monkeypatch.setattr(start, "REFUSAL_SECONDS", 0.0)

    def be(rank: int, **variables: str) -> None:
        ranks = {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500"}
        for name, value in {**ranks, "RANK": str(rank), "LOCAL_RANK": str(rank), **variables}.items():
            monkeypatch.setenv(name, value)

    return be


@pytest.mark.parametrize("by_torchrun", [False, True])
@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize(
    ("setting", "value", "sentence"),
    [
        ("base", "/no/such/model", "model.base '/no/such/model': no such folder or file"),
        ("cache_dir", "/dev/null", "cache_dir '/dev/null' can't be used: /dev/null is a file"),
        ("workspace_dir", "/dev/null/run", "workspace_dir '/dev/null/run' can't be used"),
        ("resolution", 30, "data.resolution 30"),
    ],
)
def test_what_the_dry_run_refuses_no_start_begins(setting, value, sentence, ranks, by_torchrun, config, started):
    config.enable_multi_gpu, config.world_size, config.use_torchrun = ranks > 1, ranks, by_torchrun
    config.concepts, config.distributed_backend = [ConceptConfig(path="pictures")], "gloo"
    config.model.base = "org/model"
    setattr({"base": config.model, "resolution": config.data}.get(setting, config), setting, value)
    for begin in (
        lambda: start_training(config),
        lambda: start_training(config, supervise=True),
        lambda: check_plan(plan_launch(config, {}, Machine(cores=2))),
    ):
        with pytest.raises(UserError) as refused:
            begin()
        assert str(refused.value).startswith(sentence)
    assert started == []


def test_ranks_of_a_launcher_are_refused_before_they_meet_and_the_first_says_why(config, started, be_rank):
    config.concepts, config.cache_dir = [ConceptConfig(path="pictures")], os.devnull
    config.model.base = "org/model"
    be_rank(0)
    with pytest.raises(UserError, match="cache_dir"):
        start_training(config)
    be_rank(1)
    with pytest.raises(SystemExit) as end:
        start_training(config)
    assert (end.value.code, started) == (2, [])


@pytest.mark.parametrize(
    "variables",
    [
        {LIFELINE_VARIABLE: "127.0.0.1:1:token"},
        {"LOCAL_WORLD_SIZE": "1", "LOCAL_RANK": "0", "GROUP_WORLD_SIZE": "2", "GROUP_RANK": "1"},
    ],
    ids=["a supervisor has checked", "others would wait for a machine that refuses alone"],
)
def test_a_rank_checks_only_what_nobody_has_checked_and_all_refuse_alike(variables, config, started, be_rank):
    config.cache_dir = os.devnull
    be_rank(1, **variables)
    start_training(config)
    assert started == ["join_training"]


def test_one_of_several_machines_leaves_the_run_folder_to_the_first(config, tmp_path):
    (tmp_path / "run" / "models" / "model").mkdir(parents=True)
    config.enable_multi_gpu, config.num_nodes, config.node_rank = True, 2, 0
    with pytest.raises(UserError, match="holds a run already"):
        check_plan(plan_launch(config, {}, Machine()))
    config.node_rank = 1
    with pytest.raises(UserError, match=r"model\.base is empty"):
        check_plan(plan_launch(config, {}, Machine()))


def test_a_logger_that_can_not_work_is_refused_only_on_the_machine_that_logs(config, monkeypatch):
    monkeypatch.setattr("modules.loggers.access.find_spec", lambda name: None)
    config.mlflow.enabled, config.enable_multi_gpu, config.num_nodes, config.node_rank = True, True, 2, 0
    with pytest.raises(UserError, match="mlflow is not installed here; run `pip install mlflow`, or turn it off"):
        check_plan(plan_launch(config, {}, Machine()))
    config.node_rank = 1
    with pytest.raises(UserError, match=r"model\.base is empty"):
        check_plan(plan_launch(config, {}, Machine()))


@pytest.mark.parametrize("by_torchrun", [False, True])
@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.usefixtures("wrong_limit")
def test_a_wrong_limit_of_heartbeats_is_refused_by_who_would_watch_the_ranks(ranks, by_torchrun, config, started):
    config.enable_multi_gpu, config.world_size, config.use_torchrun = ranks > 1, ranks, by_torchrun
    for supervise in (False, True):
        with pytest.raises(UserError, match=REFUSAL):
            start_training(config, supervise=supervise)
    assert started == []


@pytest.mark.parametrize("watched", [{}, {LIFELINE_VARIABLE: "127.0.0.1:1:token"}])
@pytest.mark.usefixtures("wrong_limit")
def test_of_the_ranks_that_a_launcher_has_started_the_first_one_refuses_it_for_all(watched, config, started, be_rank):
    for rank in (0, 1):
        be_rank(rank, **watched)
        with pytest.raises((UserError, SystemExit)) as end:
            start_training(config)
        assert str(end.value).startswith(REFUSAL) if rank == 0 else end.value.code == 2
    assert started == []


@pytest.mark.parametrize(("platform", "by_torchrun"), [("linux", True), ("win32", False)])
@pytest.mark.usefixtures("unchecked")
def test_torchrun_is_left_alone_on_windows_whatever_the_setting(platform, by_torchrun, config, monkeypatch):
    ways = []
    monkeypatch.setattr(start, "supervise_training", lambda plan, waiting: ways.append(plan.launcher == "torchrun"))
    monkeypatch.setattr(start, "read_machine", lambda: Machine(cores=2, system=platform))
    config.enable_multi_gpu, config.world_size = True, 2
    start_training(config)
    assert ways == [by_torchrun]


@pytest.mark.usefixtures("wrong_limit")
def test_a_dry_run_refuses_it_too(config):
    with pytest.raises(UserError, match=REFUSAL):
        check_plan(plan_launch(config, {}, Machine()))


@pytest.mark.skipif(os.name != "posix", reason="a console of Windows ends its processes when it is closed")
@pytest.mark.usefixtures("unchecked")
def test_a_terminal_that_was_closed_keeps_no_run_from_starting(config, started, monkeypatch):
    class ClosedTerminal(io.RawIOBase):
        def writable(self) -> bool:
            return True

        def write(self, data) -> int:
            raise OSError(5, "Input/output error")

    stream = io.TextIOWrapper(io.BufferedWriter(ClosedTerminal()), line_buffering=True)
    for name in ("stderr", "__stderr__"):
        monkeypatch.setattr(sys, name, stream)
    config.enable_multi_gpu, config.world_size = True, 1  # which is told there
    start_training(config)
    assert started == ["run_training"]
    sys.stderr.detach()
