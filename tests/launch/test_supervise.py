"""What the supervising process does before it starts the ranks."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from modules.config.errors import UserError
from modules.config.files import config_from_values, load_config
from modules.config.TrainConfig import TrainConfig
from modules.launch import demo, supervise
from modules.launch.node_check import check_nodes
from modules.launch.plan import SupervisePlan, plan_launch
from modules.launch.supervise import supervise_training
from modules.machine.Machine import Machine
from modules.session.atomic import is_temporary
from modules.session.FolderCommands import STARTED_VARIABLE, send_command
from modules.session.RunFolder import RunFolder
from modules.session.signals import signals_answered, stop_signals
from tests.support.backup_files import write_backup
from tests.support.ports import free_port


@pytest.fixture
def config(tmp_path, monkeypatch):
    """The settings of node 0 of two."""
    monkeypatch.setenv(STARTED_VARIABLE, "")  # modified by a start: restored after the test
    machines = {"enable_multi_gpu": True, "num_nodes": 2, "world_size": 1, "master_addr": "127.0.0.1"}
    settings = {"model": {"base": "base"}, "concepts": [{"path": "pictures"}], "distributed_backend": "gloo"}
    folders = {"workspace_dir": str(tmp_path / "run"), "initial_port": str(free_port())}
    return config_from_values({**settings, **machines, **folders})


def planned(config: TrainConfig, num_ranks: int, **options: Any) -> SupervisePlan:
    """The plan for a number of ranks on this machine, by spawn unless `options` say otherwise."""
    config = replace(config, world_size=num_ranks, use_torchrun=False)
    plan = plan_launch(config, os.environ, Machine(cores=2), stop_signals=stop_signals())
    assert isinstance(plan, SupervisePlan)
    return replace(plan, **options)


posix_only = pytest.mark.skipif(os.name != "posix", reason="Windows knows neither SIGHUP nor SLURM's signal")


@pytest.mark.parametrize("by", ["a command", pytest.param("a closed terminal", marks=posix_only)])
def test_a_run_that_waits_for_other_machines_can_be_stopped(by, config):
    folder = RunFolder(config.workspace_dir)

    def stop_when_it_waits() -> None:
        path = folder.supervisor_event_path
        while not path.exists() or '"waiting for node 1 (' not in path.read_text(encoding="utf-8"):
            time.sleep(0.01)
        if by == "a command":
            send_command(folder, "stop")
        else:
            os.kill(os.getpid(), signal.SIGHUP)

    threading.Thread(target=stop_when_it_waits, daemon=True).start()
    assert supervise_training(planned(config, 1)) == 130
    assert json.loads(folder.exit_path.read_bytes())["status"] == "stopped"
    assert list(folder.commands_dir.iterdir()) == []


def test_what_one_machine_refuses_before_the_meeting_ends_the_others_too(config, tmp_path):
    (tmp_path / "run" / "models").mkdir(parents=True)
    (tmp_path / "run" / "models" / "model.safetensors").touch()
    told: list[str] = []

    def meet() -> None:
        try:
            check_nodes(replace(config, node_rank=1), lambda text: None)
        except UserError as error:
            told.append(str(error))

    other = threading.Thread(target=meet, daemon=True)
    other.start()
    with pytest.raises(UserError, match="holds a run already") as refused:
        supervise_training(planned(config, 1))
    other.join(60)
    assert told == [f"Node 0 can't train: {refused.value}"]


@pytest.fixture
def windows_without_gloo(monkeypatch):
    def refuse():
        raise RuntimeError("makeDeviceForHostname(): unsupported gloo device\nC++ CapturedTraceback")

    monkeypatch.setattr("torch.distributed.ProcessGroupGloo.create_default_device", refuse)
    for module in (supervise, demo):
        monkeypatch.setattr(module, "sys", SimpleNamespace(platform="win32", stderr=sys.stderr))


def test_where_gloo_does_not_work_ranks_are_refused_before_they_start(windows_without_gloo, config):
    reason = r"distributed_backend gloo: the gloo backend does not work .+: unsupported gloo device\); switch enable"
    with pytest.raises(UserError, match=reason):
        supervise_training(planned(replace(config, num_nodes=1), 2))


def test_where_gloo_does_not_work_the_demo_trains_alone_and_says_so(windows_without_gloo, config, monkeypatch, capsys):
    started = []
    monkeypatch.setattr(demo, "start_training", lambda config: started.append(config.enable_multi_gpu) or 1)
    demo.run_demo(config)
    assert started == [False]
    assert "One process trains alone: the gloo backend does not work" in capsys.readouterr().out


def test_a_name_that_is_no_text_stops_no_log(config):
    folder = RunFolder(config.workspace_dir)
    folder.create()
    with contextlib.ExitStack() as stack:
        supervise._callbacks(folder, stack).on_status("Reading \udcff.png")
    assert "Reading \\udcff.png" in folder.supervisor_log_path.read_text(encoding="utf-8")


@pytest.mark.parametrize("wanted", [True, False])
def test_the_process_above_the_ranks_keeps_the_machine_awake_if_that_is_wanted(wanted, config, monkeypatch):
    awake = []

    @contextlib.contextmanager
    def kept_awake(tell):
        awake.append(True)
        yield
        awake.clear()

    class Supervisor:
        def __init__(self, *arguments, **options):
            pass

        def run(self):
            return 0 if awake else 1

    monkeypatch.setattr(supervise, "kept_awake", kept_awake)
    monkeypatch.setattr(supervise, "Supervisor", Supervisor)
    alone = replace(config, num_nodes=1, keep_awake=wanted)
    assert supervise_training(planned(alone, 2)) == (0 if wanted else 1)
    assert not awake


def test_two_runs_that_are_started_at_the_same_time_meet_at_two_ports(config, tmp_path, monkeypatch):
    alone = replace(config, num_nodes=1)
    ports = []

    class Supervisor:
        """A fake supervisor that starts its ranks twice; another run starts in between."""

        def __init__(self, folder, make_launcher, callbacks, **options):
            self._make_launcher = make_launcher

        def run(self):
            ports.append(self._make_launcher(0, False))
            if len(ports) == 1:
                supervise_training(planned(replace(alone, workspace_dir=str(tmp_path / "other")), 2))
            ports.append(self._make_launcher(1, False))
            return 0

    monkeypatch.setattr(supervise, "Supervisor", Supervisor)
    monkeypatch.setattr(supervise, "SpawnLauncher", lambda function, arguments, *others: arguments[0].port)
    supervise_training(planned(alone, 2))
    first, other, other_again, first_again = ports
    assert first == first_again == int(alone.initial_port)
    assert other == other_again > first
    log = RunFolder(tmp_path / "other").supervisor_log_path.read_text()
    assert f"Port {first} is busy: using {other}." in log


@posix_only
def test_a_signal_that_comes_before_there_is_a_supervisor_is_kept_for_it(config, monkeypatch):
    answered = []

    class Supervisor:
        def __init__(self, folder, make_launcher, callbacks, **options):
            pass

        def run(self):
            with signals_answered({signal.SIGHUP: lambda number, frame: answered.append(number)}):
                return 130

    clear_exit = RunFolder.clear_exit

    def close_terminal(folder: RunFolder) -> None:
        clear_exit(folder)
        signal.raise_signal(signal.SIGHUP)

    monkeypatch.setattr(supervise, "Supervisor", Supervisor)
    monkeypatch.setattr(RunFolder, "clear_exit", close_terminal)
    assert supervise_training(planned(replace(config, num_nodes=1), 2)) == 130
    assert answered == [signal.SIGHUP]


@posix_only
def test_a_run_whose_ranks_have_backed_up_for_the_jobs_next_turn_asks_slurm_for_it(config, monkeypatch):
    before = {number: signal.getsignal(number) for number in stop_signals()}

    class Supervisor:
        def __init__(self, folder, make_launcher, callbacks, **options):
            self.run = lambda: 75

    monkeypatch.setattr(supervise, "Supervisor", Supervisor)
    monkeypatch.setattr("modules.launch.run.requeue", lambda: "Job 4711 is queued again.")
    try:
        assert supervise_training(planned(replace(config, num_nodes=1), 2)) == 75
        assert signal.getsignal(signal.SIGTERM) == signal.SIG_IGN  # the signal that SLURM sends next
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    record = RunFolder(config.workspace_dir).read_exit()
    assert (record["status"], record["text"]) == ("stopped", "Job 4711 is queued again.")


def test_a_run_begins_when_its_starter_says(config, monkeypatch):
    """Later commands are for this run: the window may have sent a stop while libraries were being imported."""
    starts = []

    class Supervisor:
        def __init__(self, folder, make_launcher, callbacks, **options):
            self.run = lambda: make_launcher(0, False) or 0

    monkeypatch.setenv(STARTED_VARIABLE, "1700000000.5")
    monkeypatch.setattr(supervise, "Supervisor", Supervisor)
    monkeypatch.setattr(supervise, "SpawnLauncher", lambda function, arguments, *others: starts.append(arguments[1]))
    supervise_training(planned(replace(config, num_nodes=1), 2))
    assert starts == [1700000000.5]


def test_only_a_good_backup_is_one_to_start_again_from(config, monkeypatch):
    found = []

    class Supervisor:
        def __init__(self, folder, make_launcher, callbacks, has_backup, **options):
            self.run = lambda: found.append(has_backup()) or 0

    monkeypatch.setattr(supervise, "Supervisor", Supervisor)
    backup = write_backup(RunFolder(config.workspace_dir).backup_dir, 5)
    for _ in range(2):
        supervise_training(planned(replace(config, num_nodes=1), 2, resume=True))
        (backup / "optimizer.safetensors").unlink(missing_ok=True)
    assert found == [True, False]


def test_what_torchrun_is_started_with_lies_in_the_run_folder_and_goes_with_the_run(config, monkeypatch):
    """If the start is killed, the folder remains under a temporary name, which the next start removes."""
    folder, seen = RunFolder(config.workspace_dir), []

    class Supervisor:
        def __init__(self, folder, make_launcher, callbacks, **options):
            self._make_launcher = make_launcher

        def run(self):
            command = self._make_launcher(0, False)
            settings, logs = (Path(command[command.index(name) + 1]) for name in ("--config", "--log-dir"))
            assert load_config(settings).initial_port == config.initial_port
            seen.extend((settings.parent, logs))
            return 0

    monkeypatch.setattr(supervise, "Supervisor", Supervisor)
    monkeypatch.setattr(supervise, "TorchrunLauncher", lambda command, num_ranks, ends: command)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    assert supervise_training(planned(replace(config, num_nodes=1), 2, launcher="torchrun")) == 0
    assert {path.parent for path in seen} == {folder.path}
    assert all(is_temporary(path) and not path.exists() for path in seen)
