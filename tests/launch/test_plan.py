"""How a run starts, as a table of settings, environments and machines."""

import dataclasses
import signal

import pytest

from modules.config.errors import UserError
from modules.config.files import config_from_values
from modules.launch.lifeline import LIFELINE_VARIABLE
from modules.launch.plan import LONE_PROCESS, ONE_DEVICE, LaunchPlan, plan_launch
from modules.machine.devices import Gpu
from modules.machine.Machine import Machine
from modules.session.signals import STOP_SIGNALS
from modules.session.slurm import REQUEUE_SIGNALS

CPU = Machine(cores=2, system="linux")
FOUR = Machine(tuple(Gpu(index, "L4", f"GPU-{index}", 24 << 30, index) for index in range(4)), cores=16, system="linux")
WINDOWS = dataclasses.replace(FOUR, system="win32")
MULTI = {"enable_multi_gpu": True}
TORCHRUN = {
    "RANK": "3", "LOCAL_RANK": "1", "WORLD_SIZE": "4", "LOCAL_WORLD_SIZE": "2", "GROUP_RANK": "1",
    "GROUP_WORLD_SIZE": "2", "MASTER_ADDR": "10.0.0.1", "MASTER_PORT": "12355", "TORCHELASTIC_USE_AGENT_STORE": "True",
}  # fmt: skip
SLURM = {
    "SLURM_PROCID": "1", "SLURM_STEP_ID": "0", "SLURM_STEP_NUM_TASKS": "2", "SLURM_STEP_NUM_NODES": "1",
    "SLURM_NODEID": "0", "SLURM_LOCALID": "1", "SLURM_STEP_TASKS_PER_NODE": "2", "SLURM_JOB_ID": "7",
}  # fmt: skip
ONE_TASK = {**SLURM, "SLURM_PROCID": "0", "SLURM_STEP_NUM_TASKS": "1", "SLURM_STEP_TASKS_PER_NODE": "1"}
AGAIN = {"SLURM_RESTART_COUNT": "1"}
ACCELERATE = {"ACCELERATE_MIXED_PRECISION": "no"}


def plan(settings=None, environ=None, machine=CPU, **options) -> LaunchPlan:
    return plan_launch(config_from_values(settings or {}), environ or {}, machine, **options)


@pytest.mark.parametrize(
    ("settings", "environ", "machine", "expected"),
    [
        ({}, {}, CPU, "in this process, on the CPU"),
        ({"device_indexes": [2]}, {}, FOUR, "in this process, on GPU 2"),
        (MULTI, {}, CPU, "2 processes (torchrun, gloo, port 12355)"),
        (MULTI, {}, FOUR, "4 processes (torchrun, nccl, port 12355)"),
        (MULTI, {}, WINDOWS, "4 processes (spawn, gloo, port 12355)"),
        ({**MULTI, "use_torchrun": False, "initial_port": "23456"}, {}, FOUR, "4 processes (spawn, nccl, port 23456)"),
        ({**MULTI, "world_size": 1, "num_nodes": 1}, {}, CPU, "in this process, on the CPU"),
        ({**MULTI, "world_size": 1}, {}, FOUR, "in this process, on GPU 0"),
        (
            {**MULTI, "num_nodes": 2, "node_rank": 1, "master_addr": "10.0.0.1"},
            {},
            FOUR,
            "4 processes on each of 2 machines (torchrun, nccl, port 12355)",
        ),
        (MULTI, TORCHRUN, FOUR, "as rank 3 of 4, started by torchrun"),
        ({}, TORCHRUN | ACCELERATE, CPU, "as rank 3 of 4, started by accelerate"),
        ({}, SLURM, CPU, "as rank 1 of 2, started by slurm"),
        (MULTI, ONE_TASK, FOUR, "4 processes (torchrun, nccl, port 12355)"),
        (MULTI, {**TORCHRUN, "RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "LOCAL_WORLD_SIZE": "1",
                 "GROUP_RANK": "0", "GROUP_WORLD_SIZE": "1"}, FOUR, "in this process, on GPU 0"),
    ],
)  # fmt: skip
def test_who_starts_what(settings, environ, machine, expected):
    assert plan(settings, environ, machine).describe() == expected


@pytest.mark.parametrize("settings", [{}, MULTI])
def test_the_window_has_every_run_started_by_spawn_whoever_has_started_the_window(settings):
    of_window = plan(settings, TORCHRUN | AGAIN, CPU, supervise=True)
    assert (of_window.launcher, of_window.resume) == ("spawn", False)
    assert of_window.num_ranks == (2 if settings else 1)


@pytest.mark.parametrize(
    ("environ", "expected"),
    [({}, False), (AGAIN, True), (TORCHRUN, False), ({**TORCHRUN, "TORCHELASTIC_RESTART_COUNT": "1"}, True)],
)
def test_a_job_or_ranks_that_are_started_again_go_on_from_the_backup(environ, expected):
    assert plan({}, environ).resume is expected
    assert plan({}, environ, resume=True).resume


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"max_restarts": 2}, 0),
        ({**MULTI, "max_restarts": 2}, 2),
        ({**MULTI, "max_restarts": 2, "num_nodes": 2, "master_addr": "10.0.0.1"}, 0),
    ],
)
def test_only_a_supervisor_of_all_ranks_starts_them_again(settings, expected):
    assert plan(settings, supervise=True).max_restarts == expected


@pytest.mark.skipif(not REQUEUE_SIGNALS, reason="Windows has neither SIGHUP nor SIGUSR1")
@pytest.mark.parametrize(
    ("environ", "hears_hangup", "hears_requeue"),
    [
        ({}, False, False),
        # torchrun forwards SIGHUP despite nohup, and kills its ranks 30 s later
        (TORCHRUN, True, False),
        # the launcher itself would not survive SLURM's signal
        (TORCHRUN | SLURM, True, False),
        (SLURM, False, True),
        (TORCHRUN | SLURM | {LIFELINE_VARIABLE: "127.0.0.1:1:token"}, True, True),
        (ONE_TASK, False, True),
    ],
)
def test_under_nohup_each_process_answers_the_signals_that_it_can(environ, hears_hangup, hears_requeue):
    made = plan({}, environ, stop_signals=STOP_SIGNALS)
    assert set(STOP_SIGNALS) <= set(made.stop_signals)
    assert (signal.SIGHUP in made.stop_signals) is hears_hangup
    assert (made.requeue_signals == REQUEUE_SIGNALS) is hears_requeue


@pytest.mark.parametrize(
    ("settings", "environ", "expected"),
    [
        ({}, {}, ()),
        (MULTI, {}, ()),
        ({**MULTI, "world_size": 1}, {}, (ONE_DEVICE,)),
        ({}, ACCELERATE, (LONE_PROCESS,)),
        ({**MULTI, "world_size": 2}, {**TORCHRUN, "RANK": "0", "LOCAL_RANK": "0", "GROUP_RANK": "0"}, ()),
        (
            {**MULTI, "world_size": 8},
            {**TORCHRUN, "RANK": "0", "LOCAL_RANK": "0", "GROUP_RANK": "0"},
            ("world_size 8, but torchrun has started 2 ranks on this machine: these train.",),
        ),
        ({**MULTI, "world_size": 8}, TORCHRUN, ()),
    ],
)
def test_what_is_unusual_about_it_is_said_once(settings, environ, expected):
    assert plan(settings, environ).warnings == expected


def test_devices_that_are_not_there_and_a_launcher_that_makes_no_sense_are_refused():
    with pytest.raises(UserError, match="only 0 to 3 exist"):
        plan({**MULTI, "device_indexes": [9]}, {}, FOUR)
    with pytest.raises(UserError, match="RANK is '9'"):
        plan({}, {**TORCHRUN, "RANK": "9"})
