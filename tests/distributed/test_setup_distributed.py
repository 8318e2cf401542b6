from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from modules.config.errors import ConfigError
from modules.config.TrainConfig import TrainConfig
from modules.distributed import rendezvous
from modules.distributed import setup_distributed as module
from modules.distributed.environments import SlurmEnvironment, SpawnEnvironment, TorchrunEnvironment, spawn_variables
from modules.distributed.errors import RanksError
from modules.distributed.rendezvous import Meeting
from modules.distributed.Runtime import Runtime
from modules.distributed.setup_distributed import (
    create_runtime,
    rank_device,
    setup_distributed,
    threads_of_rank,
)
from modules.session.introduction import is_fact
from tests.support.fork_server import ForkedScript
from tests.support.ports import free_port
from tests.support.waiting import PATIENCE_SECONDS

ROOT = Path(__file__).parents[2]
CPU = torch.device("cpu")


def environment(rank: int, world_size: int, kind=SpawnEnvironment, local_world_size: int | None = None):
    local = local_world_size or world_size
    return kind(
        rank=rank,
        local_rank=rank % local,
        world_size=world_size,
        local_world_size=local,
        node_rank=rank // local,
        num_nodes=world_size // local,
        master_addr="127.0.0.1",
        master_port=12355,
        run_id="run/attempt_0",
        attempt=0,
    )


# --- rendezvous -------------------------------------------------------------------------------------------------------


@pytest.fixture
def server():
    return dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)


@pytest.fixture
def meet(server):
    """Makes ranks, given as (rank, world size), join with gloo or their own backend; returns the errors."""

    def run(*ranks: tuple[int, int], seconds: float = 60.0, backends: dict[int, str] | None = None) -> list[str]:
        says = [""] * len(ranks)

        def join(number: int) -> None:
            rank, world_size = ranks[number]
            store = dist.PrefixStore("run", dist.TCPStore("127.0.0.1", server.port, is_master=False))
            try:
                backend = (backends or {}).get(rank, "gloo")
                rendezvous.meet(store, environment(rank, world_size), CPU, backend, seconds)
            except RanksError as error:
                says[number] = str(error)

        on_threads(join, len(ranks))
        return says

    return run


def test_matching_ranks_join(meet):
    assert meet((0, 3), (1, 3), (2, 3)) == ["", "", ""]


TWICE = "Rank 1 was started twice: give every machine its own node_rank, and end the processes of any earlier run."


def test_a_rank_that_was_started_twice_is_refused(meet):
    says = meet((0, 2), (1, 2), (1, 2))
    assert says[0] == ""
    assert sorted(says[1:]) == ["", TWICE]


def test_a_rank_that_was_started_twice_is_refused_for_that_when_the_others_have_joined(meet, monkeypatch):
    monkeypatch.setattr("modules.distributed.node_secret.FILE_SECONDS", 1)
    assert meet((0, 2), (1, 2)) == ["", ""]
    assert meet((1, 2)) == [TWICE]


def test_different_world_sizes_are_refused_with_both_values(meet):
    first, second = meet((0, 2), (1, 3))
    assert first == second  # the refused rank has told the other
    assert first in (
        "Rank 0 was started for 2 ranks and others for 3: start every machine with the same world_size and num_nodes.",
        "Rank 1 was started for 3 ranks and others for 2: start every machine with the same world_size and num_nodes.",
    )


def test_different_backends_are_refused_at_once(meet):
    first, second = meet((0, 2), (1, 2), backends={0: "nccl", 1: "gloo"})
    assert first == second
    remedy = "set distributed_backend to gloo, or check why its machine has different devices."
    assert first in (
        f"Rank 0 would use nccl and others gloo: {remedy}",
        f"Rank 1 would use gloo and others nccl: {remedy}",
    )


def test_missing_ranks_are_named(meet):
    assert (
        meet((0, 4), (2, 4), seconds=1.5)
        == ["Of 4 ranks, 1, 3 did not join within 1.5 s: check their logs, and num_nodes, node_rank and master_addr."]
        * 2
    )


def test_without_a_token_the_ranks_of_a_machine_share_a_secret_that_is_in_no_key_of_the_store(
    server, monkeypatch, tmp_path
):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))  # without the files of other runs
    monkeypatch.setattr(rendezvous, "node_secret", node_secret := Kept(rendezvous.node_secret))
    clients = [dist.TCPStore("127.0.0.1", server.port, is_master=False) for _ in range(2)]
    found: list[Meeting | None] = [None, None]

    def join(rank: int) -> None:
        found[rank] = rendezvous.meet(clients[rank], environment(rank, 2), CPU, "gloo", 60.0)

    on_threads(join, 2)
    first, second = found
    assert first.has_secret
    assert (first.key, first.ranks) == (second.key, second.ranks)
    first.store.set("a", 1)
    assert second.store.wait_for("a", 300.0) == 1  # by another connection, for which nobody waits
    assert len(set(node_secret.values)) == 1
    stored = b"".join(server.get(key) for key in server.list_keys())
    assert not any(secret in stored for secret in (*node_secret.values, first.key))
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("tokens", [("a" * 32, "b" * 32), ("a" * 32, "")])
def test_machines_with_different_tokens_are_told_so(tokens, server, monkeypatch):
    given = threading.local()
    monkeypatch.setattr(rendezvous, "token_of", lambda: given.token.encode())
    says = ["", ""]

    def join(rank: int) -> None:
        given.token = tokens[rank]
        store = dist.TCPStore("127.0.0.1", server.port, is_master=False)
        with pytest.raises(RanksError) as refusal:
            rendezvous.meet(store, environment(rank, 2, local_world_size=1), CPU, "gloo", 60.0)
        says[rank] = str(refusal.value)

    on_threads(join, 2)
    remedy = "or someone else writes to the store: give all machines the same CHORUS_TOKEN, from the same file."
    assert says == [f"Rank {1 - rank} does not have the token of rank {rank}, {remedy}" for rank in range(2)]


def test_what_a_run_with_the_same_token_has_said_is_not_valid_in_the_next(monkeypatch):
    monkeypatch.setenv("CHORUS_TOKEN", "c" * 32)
    keys = []
    for _ in range(2):
        store = dist.HashStore()
        keys.append(rendezvous.meet(store, environment(0, 1), CPU, "gloo", 60.0).key)
    assert keys[0] != keys[1]


class Kept:
    """`node_secret`, which keeps the secrets it has given."""

    def __init__(self, make):
        self.values: list[bytes] = []
        self._make = make

    @contextlib.contextmanager
    def __call__(self, *arguments):
        with self._make(*arguments) as secret:
            self.values.append(secret)
            yield secret


def on_threads(body: Callable[[int], None], count: int) -> None:
    threads = [threading.Thread(target=body, args=(number,), daemon=True) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE_SECONDS)
        assert not thread.is_alive()


# --- devices ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def gpus(monkeypatch):
    """Returns a function that sets the number of GPUs."""
    return lambda count: monkeypatch.setattr(torch.cuda, "device_count", lambda: count)


def test_gpus_are_assigned_in_order_or_as_chosen(gpus):
    gpus(4)
    assert [rank_device([], environment(rank, 4), "nccl").index for rank in range(4)] == [0, 1, 2, 3]
    assert [rank_device([3, 1], environment(rank, 2), "nccl").index for rank in range(2)] == [3, 1]


def test_each_machine_assigns_its_gpus_from_the_first(gpus):
    gpus(2)
    devices = [rank_device([], environment(rank, 4, local_world_size=2), "nccl") for rank in range(4)]
    assert [device.index for device in devices] == [0, 1, 0, 1]


def test_only_gloo_ranks_share_a_gpu(gpus):
    gpus(2)
    assert [rank_device([], environment(rank, 4), "gloo").index for rank in range(4)] == [0, 1, 0, 1]
    with pytest.raises(ConfigError, match=r"world_size 4: 2 GPUs are there or chosen.* use 2, or distributed_backend"):
        rank_device([], environment(0, 4), "nccl")


def test_a_slurm_task_that_sees_one_gpu_uses_it(gpus):
    gpus(1)
    assert rank_device([], environment(3, 4, SlurmEnvironment), "nccl") == torch.device("cuda", 0)


def test_a_rank_that_sees_one_gpu_uses_it_with_any_launcher(gpus):
    gpus(1)
    visible = {"CUDA_VISIBLE_DEVICES": "3"}
    assert rank_device([], environment(3, 4, TorchrunEnvironment), "nccl", visible) == torch.device("cuda", 0)
    with pytest.raises(ConfigError, match="world_size 4: 1 GPU is there"):
        rank_device([], environment(3, 4, TorchrunEnvironment), "nccl", env={})


def test_ranks_without_a_gpu_use_the_cpu(gpus):
    gpus(0)
    assert rank_device([], environment(1, 2), "gloo") == CPU


@pytest.mark.parametrize(
    ("kind", "cores", "on_node", "threads"),
    [
        (SpawnEnvironment, 64, None, 16),
        (SpawnEnvironment, 2, None, 1),
        (SlurmEnvironment, 64, None, 16),
        (SlurmEnvironment, 64, "64", 16),
        (SlurmEnvironment, 16, "64", 16),  # --cpus-per-task 16: the cores belong to this task
    ],
)
def test_the_ranks_of_a_machine_share_its_cores(kind, cores, on_node, threads):
    env = {} if on_node is None else {"SLURM_CPUS_ON_NODE": on_node}
    assert threads_of_rank(environment(1, 4, kind), cores, env) == threads


# --- joining ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def alone(monkeypatch):
    """This process has no launcher and has not joined any ranks."""
    for name in ("CHORUS_LAUNCH", "RANK", "WORLD_SIZE", "SLURM_PROCID"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(module, "_membership", None)


def test_a_process_without_a_launcher_is_the_only_rank_and_opens_no_store(alone, monkeypatch):
    monkeypatch.setattr(dist, "init_process_group", None)  # a call would fail
    told = []
    assert setup_distributed(TrainConfig(), told.append, told.append) == (0, 0, 1)
    assert setup_distributed(TrainConfig(), told.append, told.append) == (0, 0, 1)
    assert module.is_main_process()
    assert type(create_runtime(TrainConfig())) is Runtime
    module.cleanup_distributed()
    assert told == []


def test_a_single_rank_opens_no_store_either(alone, monkeypatch):
    monkeypatch.setattr(dist, "init_process_group", None)
    for name, value in spawn_variables(0, 1, 12355, "run").items():
        monkeypatch.setenv(name, value)
    assert setup_distributed(TrainConfig()) == (0, 0, 1)


JOIN = """
import sys
sys.stdout = open(sys.argv[1], "w", encoding="utf-8")  # without what torch writes to stderr
from modules.config.errors import UserError
from modules.config.TrainConfig import TrainConfig
from modules.distributed import setup_distributed as ranks
import os
config = TrainConfig()
ranks.num_cores = lambda: 1
try:
    print(ranks.setup_distributed(config), ranks.is_main_process())
except UserError as error:
    print(type(error).__name__, error, flush=True)
    os._exit(2)
runtime = ranks.create_runtime(config)
runtime.barrier("joining")  # a rank that leaves at once would interrupt the other's joining
runtime.close()
ranks.cleanup_distributed()
"""


def join(folder: Path, *ranks: tuple[int, int], port: int, seconds: float = 100) -> list[str]:
    """What processes print that are started as these (local rank, ranks). folder: for their files."""
    variables = {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": "", "CHORUS_JOIN_SECONDS": str(seconds)}
    program = folder / "join.py"
    program.write_text(JOIN, encoding="utf-8")
    processes = {}
    for rank, num_ranks in ranks:
        env = {**os.environ, **variables, **spawn_variables(rank, num_ranks, port, "run")}
        printed = folder / f"{rank}.txt"
        processes[printed] = ForkedScript([str(program), str(printed)], env, folder / "stderr.txt")
    try:
        for process in processes.values():
            process.wait(PATIENCE_SECONDS)
    finally:
        for process in processes.values():
            process.kill()
            process.wait()
    return [printed.read_text(encoding="utf-8").strip() for printed in processes]


def test_two_processes_join_and_rank_0_describes_them_with_warnings(tmp_path):
    first, second = join(tmp_path, (0, 2), (1, 2), port=free_port())
    assert first.splitlines() == [
        "Distributed training: MULTI_CPU",
        "Number of processes: 2",
        "Mixed precision: no",
        "Process 0 using device: cpu",
        "Process 1 using device: cpu",
        "distributed_backend nccl: there is no NVIDIA GPU here, so the ranks use gloo; set it to auto or gloo.",
        "world_size 2: 2 ranks share 1 CPU core and wait for each other; use 1.",
        "(0, 0, 2) True",
    ]
    assert [is_fact(line) for line in first.splitlines()] == [True] * 5 + [False] * 3
    assert second == "(1, 1, 2) False"


def test_a_port_in_use_is_explained_in_one_sentence(tmp_path):
    port = free_port()
    with socket.create_server(("127.0.0.1", port)):
        (text,) = join(tmp_path, (0, 2), port=port, seconds=2)
    assert text.startswith(f"RanksError Rank 0 can't join the others at 127.0.0.1:{port} (")
    assert text.endswith("that no firewall blocks the port and no other program uses it.")


def test_a_missing_store_is_explained_in_one_sentence(tmp_path):
    port = free_port()
    (text,) = join(tmp_path, (1, 2), port=port, seconds=2)
    assert text.startswith(f"RanksError Rank 1 can't join the others at 127.0.0.1:{port} (")


# --- leaving ----------------------------------------------------------------------------------------------------------


def test_ranks_that_do_not_leave_end_cleanly_and_a_failed_one_ends_the_other():
    ways = ("nothing is called", "only cleanup", "the model is freed last", "rank 0 fails")
    script = str(ROOT / "tests" / "support" / "leaving_ranks.py")
    command = [sys.executable, "-W", "ignore::DeprecationWarning", script, *ways]  # forking with threads
    env = {**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=PATIENCE_SECONDS)
    assert done.stderr == ""
    assert json.loads(done.stdout) == {way: [1, 1] if way == "rank 0 fails" else [0, 0] for way in ways}
