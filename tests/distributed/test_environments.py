from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from modules.config.errors import UserError
from modules.distributed.environments import (
    RankEnvironment,
    find_environment,
    is_single_accelerate_process,
    spawn_variables,
)

ROOT = Path(__file__).parents[2]

# The variables that torch 2.13's torchrun sets for the second of two ranks, and those that accelerate 1.15 adds.
TORCHRUN = {
    "RANK": "1",
    "LOCAL_RANK": "1",
    "WORLD_SIZE": "2",
    "LOCAL_WORLD_SIZE": "2",
    "GROUP_RANK": "0",
    "GROUP_WORLD_SIZE": "1",
    "MASTER_ADDR": "127.0.0.1",
    "MASTER_PORT": "29500",
    "TORCHELASTIC_RESTART_COUNT": "0",
    "TORCHELASTIC_MAX_RESTARTS": "0",
    "TORCHELASTIC_RUN_ID": "none",
    "TORCHELASTIC_USE_AGENT_STORE": "True",
}
ACCELERATE = {"ACCELERATE_MIXED_PRECISION": "no", "ACCELERATE_DYNAMO_BACKEND": "NO"}
# Rank 5 of seven on four nodes, 2 + 2 + 2 + 1.
SLURM = {
    "SLURM_JOB_ID": "4711",
    "SLURM_STEP_ID": "0",
    "SLURM_PROCID": "5",
    "SLURM_LOCALID": "1",
    "SLURM_NODEID": "2",
    "SLURM_STEP_NUM_TASKS": "7",
    "SLURM_STEP_NUM_NODES": "4",
    "SLURM_STEP_TASKS_PER_NODE": "2(x3),1",
    "SLURM_STEP_NODELIST": "n[03-05,9]",
}


def without(env: dict[str, str], *names: str) -> dict[str, str]:
    return {name: value for name, value in env.items() if name not in names}


def ranks(environment: RankEnvironment) -> tuple[int, ...]:
    e = environment
    return e.rank, e.local_rank, e.world_size, e.local_world_size, e.node_rank, e.num_nodes


def test_a_process_without_a_launcher_has_no_environment():
    assert find_environment({}) is None
    assert find_environment({"MASTER_ADDR": "localhost", "MASTER_PORT": "29500", "RANK": "0"}) is None


def test_spawn_reads_what_spawn_variables_wrote():
    machines = {"num_nodes": 3, "node_rank": 2, "master_addr": "10.0.0.7"}
    env = spawn_variables(1, num_ranks=4, port=12356, run_id="r7", attempt=2, **machines)
    found = find_environment(env)
    assert found.name == "spawn"
    assert ranks(found) == (9, 1, 12, 4, 2, 3)
    assert (found.master_addr, found.master_port) == ("10.0.0.7", 12356)
    assert (found.run_id, found.attempt, found.has_store) == ("r7/attempt_2", 2, False)


def test_spawn_on_one_node_uses_the_loopback_address():
    left_over = "10.0.0.7"  # from a run on several nodes
    env = spawn_variables(0, num_ranks=2, port=12355, run_id="r", master_addr=left_over)
    assert find_environment(env).master_addr == "127.0.0.1"


def test_spawned_ranks_number_gpus_in_listed_order():
    assert spawn_variables(0, 2, 12355, "r")["CUDA_DEVICE_ORDER"] == "PCI_BUS_ID"


def test_torchrun():
    found = find_environment(TORCHRUN | {"TORCHELASTIC_RESTART_COUNT": "3"})
    assert found.name == "torchrun"
    assert ranks(found) == (1, 1, 2, 2, 0, 1)
    assert (found.master_addr, found.master_port) == ("127.0.0.1", 29500)
    assert (found.run_id, found.attempt, found.has_store) == ("none/attempt_3", 3, True)


def test_torchrun_nodes_may_have_different_sizes():
    env = TORCHRUN | {"RANK": "3", "LOCAL_RANK": "0", "WORLD_SIZE": "4", "LOCAL_WORLD_SIZE": "1"}
    env |= {"GROUP_RANK": "1", "GROUP_WORLD_SIZE": "2"}
    assert ranks(find_environment(env)) == (3, 0, 4, 1, 1, 2)


def test_wrappers_that_set_only_the_variables_of_torch_count_as_torchrun():
    names = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
    env = {name: TORCHRUN[name] for name in names}
    found = find_environment(env)
    assert (found.name, found.has_store, found.attempt) == ("torchrun", False, 0)
    assert ranks(found) == (1, 1, 2, 2, 0, 1)
    two_nodes = env | {"RANK": "6", "LOCAL_RANK": "2", "WORLD_SIZE": "8", "MASTER_ADDR": "n1", "LOCAL_WORLD_SIZE": "4"}
    assert ranks(find_environment(two_nodes)) == (6, 2, 8, 4, 1, 2)


def test_the_local_world_size_of_several_machines_is_not_guessed():
    env = without(TORCHRUN | {"MASTER_ADDR": "n1"}, "LOCAL_WORLD_SIZE")
    with pytest.raises(UserError, match="LOCAL_WORLD_SIZE is not set"):
        find_environment(env)


def test_accelerate_is_detected_with_the_variables_of_torchrun():
    found = find_environment(TORCHRUN | ACCELERATE)
    assert found.name == "accelerate"
    assert ranks(found) == ranks(find_environment(TORCHRUN))
    assert found.has_store


def test_a_single_accelerate_process_is_not_a_rank_but_is_detected():
    assert find_environment(ACCELERATE) is None
    assert is_single_accelerate_process(ACCELERATE | {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500"})
    assert not is_single_accelerate_process(TORCHRUN | ACCELERATE)
    assert not is_single_accelerate_process({})


def test_slurm():
    found = find_environment(SLURM | {"SLURM_RESTART_COUNT": "1"})
    assert found.name == "slurm"
    assert ranks(found) == (5, 1, 7, 2, 2, 4)
    assert (found.run_id, found.attempt, found.has_store) == ("4711.0/attempt_1", 1, False)
    assert found.master_addr == "n03"
    last = SLURM | {"SLURM_PROCID": "6", "SLURM_NODEID": "3", "SLURM_LOCALID": "0"}
    assert ranks(find_environment(last)) == (6, 0, 7, 1, 3, 4)


def test_slurm_falls_back_to_the_variables_of_the_job():
    step = ("SLURM_STEP_NUM_TASKS", "SLURM_STEP_NUM_NODES", "SLURM_STEP_TASKS_PER_NODE", "SLURM_STEP_NODELIST")
    job = ("SLURM_NTASKS", "SLURM_NNODES", "SLURM_TASKS_PER_NODE", "SLURM_JOB_NODELIST")
    env = without(SLURM, *step) | {new: SLURM[old] for old, new in zip(step, job, strict=True)}
    assert find_environment(env) == find_environment(SLURM)


@pytest.mark.parametrize(
    "changes",
    [
        {"SLURM_STEP_ID": ""},
        {"SLURM_STEP_ID": "batch"},
        {"SLURM_STEP_ID": "4294967291"},  # the batch step
        {"SLURM_STEP_ID": "4294967290"},  # the interactive step
        {"SLURM_STEP_NUM_TASKS": "1", "SLURM_NTASKS": "8"},  # a shell started with srun --pty
    ],
)
def test_a_batch_script_or_shell_is_not_a_rank(changes):
    assert find_environment(SLURM | changes) is None


@pytest.mark.parametrize(
    ("hosts", "first"),
    [
        ("n[03-05,9],m1", "n03"),
        ("gpu-a.cluster,gpu-b.cluster", "gpu-a.cluster"),
        ("m1", "m1"),
        ("rack[2-3]-n[10,12]", "rack2-n10"),
        ("n[9]", "n9"),
    ],
)
def test_slurm_ranks_connect_to_the_first_host(hosts, first):
    assert find_environment(SLURM | {"SLURM_STEP_NODELIST": hosts}).master_addr == first


def test_slurm_on_one_node_uses_the_loopback_address():
    one = {"SLURM_STEP_NUM_TASKS": "6", "SLURM_STEP_NUM_NODES": "1", "SLURM_STEP_TASKS_PER_NODE": "6"}
    found = find_environment(SLURM | one | {"SLURM_NODEID": "0", "MASTER_ADDR": "n03"})
    assert (found.master_addr, found.num_nodes, found.local_world_size) == ("127.0.0.1", 1, 6)


def test_slurm_uses_an_exported_address_and_port():
    found = find_environment(SLURM | {"MASTER_ADDR": "n05", "MASTER_PORT": "29400"})
    assert (found.master_addr, found.master_port) == ("n05", 29400)


def test_slurm_jobs_and_steps_on_one_node_have_different_ports():
    # the jobs of an array have consecutive IDs
    ports = {
        find_environment(SLURM | {"SLURM_JOB_ID": str(job), "SLURM_STEP_ID": str(step)}).master_port
        for job in range(4711, 4811)
        for step in range(4)
    }
    assert len(ports) == 400
    assert min(ports) >= 20000
    assert max(ports) < 40000


def test_our_own_ranks_take_precedence_over_torchrun_and_torchrun_over_slurm():
    assert find_environment(SLURM | TORCHRUN).name == "torchrun"
    own = spawn_variables(0, 2, 12355, "r")
    assert find_environment(SLURM | TORCHRUN | ACCELERATE | own).name == "spawn"


@pytest.mark.parametrize(
    ("env", "name", "value", "rule"),
    [
        (TORCHRUN, "RANK", "2", "a whole number from 0 to 1"),
        (TORCHRUN, "RANK", "-1", "a whole number from 0 to 1"),
        (TORCHRUN, "RANK", "1.0", "a whole number from 0 to 1"),
        (TORCHRUN, "RANK", "٣", "a whole number"),
        (TORCHRUN, "WORLD_SIZE", "two", "a whole number of at least 1"),
        (TORCHRUN, "WORLD_SIZE", "9" * 5000, "a whole number"),
        (TORCHRUN, "LOCAL_WORLD_SIZE", "3", "a whole number from 1 to 2"),
        (TORCHRUN, "LOCAL_RANK", "2", "a whole number from 0 to 1"),
        (TORCHRUN, "GROUP_RANK", "1", "a whole number from 0 to 0"),
        (TORCHRUN, "MASTER_PORT", "65536", "a whole number from 1 to 65535"),
        (TORCHRUN, "TORCHELASTIC_RESTART_COUNT", "x", "a whole number"),
        (SLURM, "SLURM_PROCID", "7", "a whole number from 0 to 6"),
        (SLURM, "SLURM_LOCALID", "2", "a whole number from 0 to 1"),
        (SLURM, "SLURM_STEP_NUM_TASKS", "many", "a whole number"),
        (SLURM, "SLURM_STEP_TASKS_PER_NODE", "2(x3", "a list such as"),
        (SLURM, "SLURM_STEP_TASKS_PER_NODE", "2(x2)", "a list of at least 3 nodes"),
        (SLURM, "SLURM_STEP_NODELIST", "n[03-05", "a list of hosts"),
        (SLURM, "SLURM_STEP_NODELIST", "n03]", "a list of hosts"),
        (SLURM, "SLURM_STEP_NODELIST", "n[],m", "a list of hosts"),
        (SLURM, "SLURM_STEP_NODELIST", ",n03", "a list of hosts"),
        (SLURM, "SLURM_STEP_NODELIST", "n03;reboot", "a list of hosts"),
        (spawn_variables(0, 2, 12355, "r"), "CHORUS_ATTEMPT", "-1", "a whole number"),
    ],
)
def test_an_invalid_value_is_refused_with_the_name_of_its_variable(env, name, value, rule):
    with pytest.raises(UserError, match=rf"^{name} is '[^']*': it must be {rule}") as caught:
        find_environment(env | {name: value})
    assert len(str(caught.value)) < 300


@pytest.mark.parametrize(
    ("env", "name"),
    [
        (TORCHRUN, "LOCAL_RANK"),
        (TORCHRUN, "MASTER_ADDR"),
        (TORCHRUN, "MASTER_PORT"),
        (SLURM, "SLURM_JOB_ID"),
        (SLURM, "SLURM_LOCALID"),
        (spawn_variables(0, 2, 12355, "r"), "CHORUS_RUN_ID"),
    ],
)
def test_a_missing_value_is_named(env, name):
    with pytest.raises(UserError, match=f"^{name} is not set"):
        find_environment(without(env, name))


SHOW = """
import dataclasses, json, os, sys
from modules.distributed.environments import find_environment
found = find_environment()
path = os.path.join(sys.argv[1], f"{found.rank}.json")
with open(path, "w") as file:
    json.dump(dataclasses.asdict(found) | {"name": found.name, "torch": "torch" in sys.modules}, file)
"""


@pytest.mark.skipif(sys.platform == "win32", reason="torchrun needs libuv, which PyTorch's Windows builds lack")
@pytest.mark.parametrize(
    ("name", "launcher"),
    [
        ("accelerate", ["accelerate.commands.accelerate_cli", "launch", "--config_file"]),
        ("torchrun", ["torch.distributed.run", "--standalone", "--nproc-per-node=2"]),
    ],
)
def test_two_ranks_of_the_real_launcher_are_detected(name, launcher, tmp_path):
    """Takes about 4 s each. With a slightly wrong config file, accelerate silently starts a single process."""
    (tmp_path / "show.py").write_text(SHOW, encoding="utf-8")
    file = [str(ROOT / "resources" / "accelerate_config.yaml")] if name == "accelerate" else []
    command = [sys.executable, "-m", *launcher, *file, str(tmp_path / "show.py"), str(tmp_path)]
    ours = {key: os.environ[key] for key in os.environ if not key.startswith(("SLURM_", "ACCELERATE_", "CHORUS_"))}
    env = without(ours, *TORCHRUN) | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    subprocess.run(command, env=env, check=True, timeout=300, capture_output=True)
    found = [json.loads((tmp_path / f"{rank}.json").read_text(encoding="utf-8")) for rank in range(2)]
    assert [(one["name"], one["rank"], one["local_rank"], one["world_size"]) for one in found] == [
        (name, 0, 0, 2),
        (name, 1, 1, 2),
    ]
    assert all(one["has_store"] and one["num_nodes"] == 1 and not one["torch"] for one in found)
    assert len({one["run_id"] for one in found}) == 1
