"""scripts/train.py on two ranks, by each launcher: real processes, a tiny model, CPUs.

Forked where the claim is about what ranks and those above them do, see FORKED in conftest.py. Started as users do it,
they are in test_odd_folder.py, by spawn, in test_examples.py, by accelerate, and in trainer/test_two_hosts.py, by the
torchrun of Chorus.
"""

from __future__ import annotations

import base64
import contextlib
import os
import pickle
import re
import shutil
import signal
import socket
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import psutil
import pytest
import torch.distributed as dist
import yaml

from modules.session.atomic import is_temporary
from modules.session.manifest import check_manifest
from tests.scripts.conftest import SIZES, STEPS
from tests.support.ports import free_port
from tests.support.run_processes import pid_that_has_open
from tests.support.StartedRun import StartedRun

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="these tests send signals and read /proc")

SAME_CURVE = 1e-5  # relative: float32 in batches of other sizes, for which a processor may have other kernels
# From a rank's end to the record that names it, and to the end of the others: on a busy machine, but by what happened
# and not by the ten minutes after which a silent rank counts as one that hangs.
SHOWN_SECONDS = GONE_SECONDS = 60.0
LIMIT = {"CHORUS_HEARTBEAT_SECONDS": "training=6"}  # a step takes a fiftieth of that

slow = pytest.mark.slow
OF_RANKS = ("forked spawn", "forked own torchrun", "forked torchrun", "forked accelerate", "slurm")


@pytest.fixture(scope="module")
def finished(open_run, tmp_path_factory) -> Callable[[str], StartedRun]:
    """A function that gives a run by `launcher` that has ended; one is enough for all claims about it."""
    runs: dict[str, StartedRun] = {}
    arguments = {"forked own torchrun": ["--single_gpu_data_loading"]}

    def get(launcher: str) -> StartedRun:
        if launcher not in runs:
            changes = {"variables": {"TMPDIR": str(tmp_path_factory.mktemp("temporary"))}}
            if launcher in ("forked spawn", "forked own torchrun"):
                changes["cache_dir"] = str(tmp_path_factory.mktemp("cache"))
            with socket.create_server(("127.0.0.1", free_port())) as busy:
                if launcher == "forked spawn":
                    changes["initial_port"] = str(busy.getsockname()[1])
                    changes["distributed_backend"] = "nccl"
                runs[launcher] = open_run(launcher, *arguments.get(launcher, ()), **changes)
                runs[launcher].wait()
        return runs[launcher]

    return get


def assert_refused(run: StartedRun, *parts: str) -> None:
    """One sentence, and nothing started."""
    assert run.wait() == [2], run.output
    (sentence,) = run.output.strip().splitlines()
    for part in parts:
        assert part in sentence
    assert run.events(0, "status") == []


def assert_failed(run: StartedRun, rank: int) -> dict:
    """The run has ended as one whose rank `rank` has failed at its third step; exit.json, which was quick to say so."""
    codes = run.wait()
    record = run.record()
    assert record.get("status") == "failed", run.output
    assert record["rank"] == rank
    if len(codes) == 1:
        assert codes == [1]
    else:  # nobody is above the ranks
        assert codes[1 - rank] > 0
    last_steps = [event["time"] for number in range(2) for event in run.events(number, "step")]
    assert record["time"] - max(last_steps) < SHOWN_SECONDS
    run.wait_until_gone(GONE_SECONDS)
    return record


# --- the same training ------------------------------------------------------------------------------------------------


class TestLaunchers:
    @pytest.mark.parametrize("launcher", OF_RANKS)
    def test_every_launcher_gives_the_losses_of_one_process(self, launcher, finished):
        expected = finished("alone").losses()
        assert list(expected) == list(range(1, STEPS + 1)), finished("alone").output
        run = finished(launcher)
        assert set(run.wait()) == {0}, run.output
        assert run.record()["status"] == "finished"
        assert "Number of processes: 2" in run.output
        for rank in range(2):
            assert run.losses(rank) == pytest.approx(expected, rel=SAME_CURVE)
            assert len(run.events(rank, "finished")) == 1

    def test_a_busy_port_is_told_and_another_one_is_taken(self, finished):
        assert "is busy: using" in finished("forked spawn").output

    def test_nccl_without_a_gpu_trains_by_gloo_and_says_so_once(self, finished):
        assert finished("forked spawn").output.count("distributed_backend nccl: there is no NVIDIA GPU here") == 1

    def test_each_rank_caches_its_share_of_the_pictures(self, finished):
        shares = cached_latents(finished("forked spawn"))
        assert sorted(shares) == [len(SIZES) // 2, len(SIZES) - len(SIZES) // 2]

    def test_single_gpu_data_loading_lets_rank_0_cache_all(self, finished):
        assert cached_latents(finished("forked own torchrun")) == [len(SIZES), 0]

    @pytest.mark.parametrize("launcher", OF_RANKS)
    def test_a_store_that_is_open_to_the_network_is_told_once(self, launcher, finished):
        is_open = launcher in ("forked torchrun", "forked accelerate")
        assert finished(launcher).output.count("of all network interfaces, where others can disturb") == is_open

    @pytest.mark.parametrize("launcher", ["forked spawn", "forked own torchrun"])
    def test_nothing_but_the_run_itself_is_left(self, launcher, finished):
        run = finished(launcher)
        run.wait_until_gone(GONE_SECONDS)
        assert os.listdir(run.variables["TMPDIR"]) == []
        assert not [path for path in run.folder.rglob("*") if is_temporary(path)]


def test_a_finished_run_that_is_resumed_on_two_ranks_ends_with_nothing_to_do(open_run, finished, tmp_path):
    folder = shutil.copytree(finished("alone").folder, tmp_path / "run")
    models = sorted((folder / "models").iterdir())
    run = open_run("forked spawn", "--resume", folder=folder)
    assert run.wait() == [0], run.output
    assert run.output.count("Nothing is left to do") == 1
    assert sorted((folder / "models").iterdir()) == models


def cached_latents(run: StartedRun) -> list[int]:
    cache_dir = yaml.safe_load((run.folder / "config.yaml").read_text(encoding="utf-8"))["cache_dir"]
    folders = [f"{cache_dir}/rank-{rank}/latents" for rank in range(2)]
    return [sum(len(files) for *_, files in os.walk(folder)) for folder in folders]


# --- refusals ---------------------------------------------------------------------------------------------------------


class TestRefusals:
    def test_a_gpu_that_is_not_there_is_refused(self, open_run):
        assert_refused(open_run("forked own torchrun", "--devices", "5"), "device_indexes [5]", "there is no GPU here")

    def test_a_busy_port_is_refused_where_other_machines_know_it(self, open_run):
        port = free_port()
        with socket.create_server(("", port)):
            settings = {"initial_port": str(port), "num_nodes": 2, "master_addr": "192.0.2.1"}
            assert_refused(open_run("forked spawn", **settings), f"initial_port {port} is busy")

    @pytest.mark.parametrize("launcher", ["forked spawn", "forked own torchrun", "slurm"])
    def test_a_folder_that_holds_a_run_is_refused_once_and_left_alone(self, launcher, open_run, finished):
        earlier = finished("alone")
        paths = [path for path in sorted(earlier.folder.rglob("*")) if path.is_file()]
        before = [path.read_bytes() for path in paths]
        run = open_run(launcher, folder=earlier.folder)
        assert set(run.wait()) == {2}, run.output
        assert run.output.count("holds a run already: resume it") == 1
        assert "Traceback" not in run.output
        assert [path for path in sorted(earlier.folder.rglob("*")) if path.is_file()] == paths
        assert [path.read_bytes() for path in paths] == before


# --- faults -----------------------------------------------------------------------------------------------------------


class FaultsOf:
    """What a run does when a rank fails: what is the launcher's own."""

    launcher: str
    names_the_signal = True  # own torchrun's too: see the restart below, and tests/distributed/test_supervisor.py

    def assert_killed(self, record: dict, rank: int) -> None:
        if self.names_the_signal:
            assert record["signal"] == "SIGKILL"
            assert f"Rank {rank} was killed by SIGKILL" in record["text"]
        else:
            assert record["kind"] == "lost"
            assert f"Rank {rank} ended without saying why" in record["text"]

    def test_a_rank_that_is_killed_is_named(self, open_run):
        self.assert_killed(assert_failed(open_run(self.launcher, fault="kill@1:3"), 1), 1)

    def test_an_exception_is_shown_with_its_rank_and_traceback(self, open_run):
        record = assert_failed(open_run(self.launcher, fault="raise@1:3"), 1)
        assert record["kind"] == "error"
        assert record["text"] == "RuntimeError: injected fault"
        assert "in _fail" in record["traceback"]
        assert record["phase"] == "training"


class WatchedFaultsOf(FaultsOf):
    """And what is that of the watch over the ranks: a supervisor's, or that of the ranks themselves."""

    def test_rank_0_that_is_killed_is_named(self, open_run):
        self.assert_killed(assert_failed(open_run(self.launcher, fault="kill@0:3"), 0), 0)

    def test_a_clean_exit_in_the_middle_is_a_failure(self, open_run):
        assert_failed(open_run(self.launcher, fault="exit@1:3"), 1)

    def test_a_rank_that_is_stopped_is_named_as_one_that_hangs(self, open_run):
        assert_failed_by_hanging(open_run(self.launcher, fault="stop@1:3", variables=LIMIT), 1)

    def test_a_rank_that_hangs_is_named_with_its_stacks(self, open_run):
        run = open_run(self.launcher, fault="sleep@1:3", variables=LIMIT)
        assert_failed_by_hanging(run, 1)
        assert "faults.py" in (run.folder / "log" / "rank-1.stacks").read_text(encoding="utf-8")


def assert_failed_by_hanging(run: StartedRun, rank: int) -> None:
    assert 0 not in run.wait()
    record = run.record()
    assert (record.get("status"), record.get("rank"), record.get("kind")) == ("failed", rank, "hung"), run.output
    assert f"Rank {rank} has not moved" in record["text"]
    run.wait_until_gone(GONE_SECONDS)


class TestFaultsUnderSpawn(WatchedFaultsOf):
    launcher = "forked spawn"

    def test_full_memory_comes_with_a_hint(self, open_run):
        assert "lower batch_size" in assert_failed(open_run(self.launcher, fault="oom@0:3"), 0)["text"]


class TestFaultsUnderSlurm(WatchedFaultsOf):
    """The ranks watch each other, as under torchrun and accelerate."""

    launcher = "slurm"
    names_the_signal = False  # that is srun's to say


class TestFaultsUnderTorchrun(FaultsOf):
    """The watch is that under SLURM; but torchrun ends the other ranks by itself, in the same moment."""

    launcher = "forked torchrun"
    names_the_signal = False  # that is torchrun's to say, to the terminal


@pytest.mark.parametrize("launcher", ["forked spawn", "forked own torchrun"])
def test_a_restart_goes_on_from_the_last_backup_as_if_nothing_had_happened(launcher, open_run, finished):
    backup = {"every": 2, "unit": "steps"}
    run = open_run(launcher, fault="kill@1:5", max_restarts=1, backup=backup)
    assert run.wait() == [0], run.output
    assert run.record()["status"] == "finished"
    assert "Starting again from the last backup (1 of 1)" in run.output
    assert run.losses() == pytest.approx(finished("alone").losses(), rel=SAME_CURVE)


def test_a_restart_without_a_backup_starts_over_beside_the_models_that_were_saved(open_run, finished):
    output = {"format": "diffusers", "every": 2, "unit": "steps"}
    run = open_run("forked spawn", fault="kill@1:5", max_restarts=1, output=output)
    assert run.wait() == [0], run.output
    assert "Starting again from the beginning (1 of 1)" in run.output
    assert run.losses() == pytest.approx(finished("alone").losses(), rel=SAME_CURVE)


# --- ends from outside ------------------------------------------------------------------------------------------------


class TestEnds:
    """Of runs that would go on for long."""

    @pytest.fixture
    def long_run(self, open_run):
        def start(launcher: str) -> StartedRun:
            run = open_run(launcher, max_steps=100_000)
            run.wait_for_step(3)
            return run

        return start

    def test_a_second_start_is_refused_and_ctrl_c_backs_up_and_saves(self, long_run, open_run):
        run = long_run("forked spawn")
        second = open_run("alone", "--resume", folder=run.folder)
        assert second.wait() == [2], second.output
        assert "is in use by another run" in second.output
        os.killpg(run.processes[0].pid, signal.SIGINT)
        assert run.wait() == [130], run.output
        assert_stopped(run)

    @pytest.mark.parametrize(
        ("launcher", "number"), [("forked own torchrun", signal.SIGINT), ("forked torchrun", signal.SIGHUP)]
    )
    def test_ctrl_c_and_a_closed_terminal_back_up_and_save(self, launcher, number, long_run):
        run = long_run(launcher)
        os.killpg(run.processes[0].pid, number)
        codes = run.wait()
        if launcher == "forked own torchrun":  # torchrun itself turns its own end by a signal into a failure
            assert codes == [130], run.output
        assert_stopped(run)

    @pytest.mark.parametrize("launcher", ["forked spawn", "alone"])
    def test_sigterm_and_sighup_to_all_processes_are_one_stop_with_a_backup(self, launcher, long_run):
        run = long_run(launcher)
        for number in (signal.SIGTERM, signal.SIGHUP):  # as systemd ends what is left of a session
            os.killpg(run.processes[0].pid, number)
        assert run.wait() == [130], run.output
        assert_stopped(run, num_ranks=1 if launcher == "alone" else 2)

    @slow
    def test_ctrl_c_before_the_ranks_are_there_is_heard(self, open_run):
        run = open_run("own torchrun", max_steps=100_000)
        run.wait_for(lambda: run.pids(RANK="0"))  # it has only begun to import its libraries
        os.killpg(run.processes[0].pid, signal.SIGINT)
        assert run.wait() == [130], run.output
        run.wait_until_gone(GONE_SECONDS)

    def test_sigterm_to_one_rank_stops_all_with_a_backup(self, long_run):
        run = long_run("forked torchrun")
        os.kill(pid_that_has_open(run.folder / "events" / "rank-1.jsonl", run.pids()), signal.SIGTERM)
        assert run.wait() == [0], run.output
        assert_stopped(run)

    def test_scancel_stops_with_a_backup(self, long_run):
        run = long_run("slurm")
        for process in run.processes:
            process.terminate()
        assert run.wait() == [0, 0], run.output
        assert_stopped(run)

    @pytest.mark.parametrize("launcher", ["forked own torchrun", "slurm"])
    def test_a_stranger_who_overwrites_all_of_the_store_runs_no_code_and_a_stop_still_saves(
        self, launcher, long_run, tmp_path
    ):
        run = long_run(launcher)
        canary = tmp_path / "canary"
        port = int(run.port or yaml.safe_load((run.folder.parent / "settings.yaml").read_text())["initial_port"])
        assert port in {port for pid in run.pids() for port in listening_ports(pid)}
        store = dist.TCPStore("127.0.0.1", port, is_master=False)
        keys = store.list_keys()
        values = [store.get(key) for key in keys]
        for path in (run.folder, run.folder.parent, tmp_path):
            assert not [value for value in values if str(path).encode() in value]
        for number, key in enumerate([*keys, *keys, *keys, *next_keys(keys)]):
            store.set(key, bombs(canary)[number % 3])
        overwritten_at = max(run.losses())
        run.wait_for_step(overwritten_at + 20)
        for process in run.processes:
            process.terminate()
        run.wait()
        assert_stopped(run)
        assert not canary.exists()
        assert "Traceback" not in run.output

    @pytest.mark.parametrize("launcher", ["forked spawn", "forked own torchrun", "forked torchrun"])
    def test_no_rank_is_left_behind_by_a_launcher_that_is_killed(self, launcher, long_run):
        run = long_run(launcher)
        run.processes[0].kill()
        run.wait_until_gone(GONE_SECONDS)
        if launcher == "forked torchrun":  # where nobody of ours is above the ranks, they say it themselves
            assert run.record()["text"] == "The process that started the ranks is gone, so they have ended."


def listening_ports(pid: int) -> list[int]:
    with contextlib.suppress(psutil.NoSuchProcess):
        sockets = psutil.Process(pid).net_connections("tcp")
        return [socket.laddr.port for socket in sockets if socket.status == psutil.CONN_LISTEN]
    return []


def next_keys(keys: Sequence[str]) -> list[str]:
    """Where the ranks will exchange values, and say what happens at the end."""
    found = set()
    for key in keys:
        if match := re.fullmatch(r"(.*/)exchange/(\d+)/\d+", key):
            numbers = range(int(match[2]) + 1, int(match[2]) + 20)
            found |= {f"{match[1]}exchange/{number}/{rank}" for number in numbers for rank in range(2)}
            found |= {f"{match[1]}{name}" for name in ("stop", "start", "left/0", "left/1", "posted/backup/0")}
    assert found
    return sorted(found)


class Bomb:
    """Its pickle runs a command."""

    def __init__(self, canary: Path):
        self._canary = canary

    def __reduce__(self):
        return os.mkdir, (str(self._canary),)


def bombs(canary: Path) -> list[bytes]:
    pickled = pickle.dumps(Bomb(canary))
    return [pickled, base64.b64encode(pickled), b'{"no": "end of the json"']


def assert_stopped(run: StartedRun, num_ranks: int = 2) -> None:
    """After a step that all ranks have done, with a backup and a model of it."""
    assert run.record()["status"] == "stopped", run.output
    steps = [run.events(rank, "step")[-1]["step"] for rank in range(num_ranks)]
    assert len(set(steps)) == 1
    (backup,) = (run.folder / "backup").glob("step-*")
    assert backup.name == f"step-{steps[0]:09d}"
    assert check_manifest(backup) is None
    assert list((run.folder / "models").iterdir())
    run.wait_until_gone(GONE_SECONDS)


def test_ranks_that_can_not_join_leave_one_device_to_train_alone_and_say_so(open_run):
    variables = {"GLOO_SOCKET_IFNAME": "no_such_interface"}
    run = open_run("forked spawn", variables=variables, batch_size_mode="per_device")
    assert run.wait() == [0], run.output
    assert run.record()["status"] == "finished"
    assert len(run.losses()) == STEPS
    alone = "One device trains alone instead, with 4 samples per step instead of 8 and learning rate 1e-3 instead of "
    assert alone + "1.414e-3." in run.output
