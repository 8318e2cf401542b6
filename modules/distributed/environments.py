"""Detects which launcher started this process as one of several ranks: Chorus itself, torchrun, accelerate or SLURM.

Each launcher sets its own environment variables; each class here reads those of one launcher. `spawn_variables` writes
those that `SpawnEnvironment` reads.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, TypedDict

from modules.config.errors import UserError
from modules.session.slurm import is_task

Env = Mapping[str, str]

LAUNCH_VARIABLE = "CHORUS_LAUNCH"
RUN_ID_VARIABLE = "CHORUS_RUN_ID"
ATTEMPT_VARIABLE = "CHORUS_ATTEMPT"
FAULT_VARIABLE = "CHORUS_FAULT"  # for tests (modules/trainer/faults.py)

_LOOPBACK = "127.0.0.1"
_ACCELERATE_MARK = "ACCELERATE_MIXED_PRECISION"  # always set by `accelerate launch`
_SLURM_PORTS = range(20000, 40000)


@dataclass(frozen=True)
class RankEnvironment:
    """What the launcher says about this process and the other ranks.

    rank counts over all nodes, local_rank on this node. master_addr and master_port: the address of the store.
    has_store: whether the launcher hosts the store; otherwise, rank 0 does.
    run_id: a prefix for keys in the store, the same on all ranks and different for each run and each restart.
    attempt: how often the launcher has restarted the ranks.
    """

    name: ClassVar[str]

    rank: int
    local_rank: int
    world_size: int
    local_world_size: int
    node_rank: int
    num_nodes: int
    master_addr: str
    master_port: int
    run_id: str
    attempt: int
    has_store: bool = False

    @staticmethod
    def is_active(env: Env) -> bool:
        """Whether this launcher started the process."""
        raise NotImplementedError

    @classmethod
    def read(cls, env: Env) -> RankEnvironment:
        """Raises UserError for a variable that is missing or invalid."""
        raise NotImplementedError


def find_environment(env: Env = os.environ) -> RankEnvironment | None:
    """The environment of the launcher that started this process; None for a process that is not a rank.

    Raises UserError for a variable that is missing or invalid.
    """
    for launcher in (SpawnEnvironment, AccelerateEnvironment, TorchrunEnvironment, SlurmEnvironment):
        if launcher.is_active(env):
            return launcher.read(env)
    return None


def is_accelerate_launch(env: Env = os.environ) -> bool:
    """Whether `accelerate launch` started this process or its parent."""
    return _ACCELERATE_MARK in env


def is_single_accelerate_process(env: Env = os.environ) -> bool:
    """Whether `accelerate launch` started only one process, as it silently does for distributed_type MULTI_CPU."""
    return is_accelerate_launch(env) and find_environment(env) is None


def spawn_variables(
    local_rank: int,
    num_ranks: int,
    port: int,
    run_id: str,
    *,
    attempt: int = 0,
    num_nodes: int = 1,
    node_rank: int = 0,
    master_addr: str = _LOOPBACK,
) -> dict[str, str]:
    """The environment variables for a rank that Chorus starts itself.

    num_ranks: on this node. run_id: the same on all nodes, different for each run. master_addr: of several nodes.
    """
    return {
        LAUNCH_VARIABLE: SpawnEnvironment.name,
        RUN_ID_VARIABLE: run_id,
        ATTEMPT_VARIABLE: str(attempt),
        "RANK": str(node_rank * num_ranks + local_rank),
        "LOCAL_RANK": str(local_rank),
        "WORLD_SIZE": str(num_nodes * num_ranks),
        "LOCAL_WORLD_SIZE": str(num_ranks),
        "GROUP_RANK": str(node_rank),
        "GROUP_WORLD_SIZE": str(num_nodes),
        # on one node, the loopback address is enough; "localhost" could also mean ::1
        "MASTER_ADDR": master_addr if num_nodes > 1 else _LOOPBACK,
        "MASTER_PORT": str(port),
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",  # the order in which machine/devices.py lists the GPUs
    }


class SpawnEnvironment(RankEnvironment):
    """Chorus's own processes, one per GPU."""

    name = "spawn"

    @staticmethod
    def is_active(env: Env) -> bool:
        return env.get(LAUNCH_VARIABLE) == SpawnEnvironment.name

    @classmethod
    def read(cls, env: Env) -> SpawnEnvironment:
        attempt = _number(env, ATTEMPT_VARIABLE, 0, default=0)
        return cls(**_read_ranks(env), run_id=f"{_text(env, RUN_ID_VARIABLE)}/attempt_{attempt}", attempt=attempt)


class TorchrunEnvironment(RankEnvironment):
    """torchrun, and wrappers of other launchers (mpirun, Kubernetes operators) that set the same variables."""

    name = "torchrun"

    @staticmethod
    def is_active(env: Env) -> bool:
        return "RANK" in env and "WORLD_SIZE" in env

    @classmethod
    def read(cls, env: Env) -> TorchrunEnvironment:
        # Each node's agent has its own count. With --master-addr, nodes fail together and their counts agree; with
        # --rdzv-backend=c10d, an agent does not count restarts that another agent caused.
        attempt = _number(env, "TORCHELASTIC_RESTART_COUNT", 0, default=0)
        return cls(
            **_read_ranks(env),
            run_id=f"{env.get('TORCHELASTIC_RUN_ID', 'none')}/attempt_{attempt}",
            attempt=attempt,
            has_store=env.get("TORCHELASTIC_USE_AGENT_STORE") == "True",
        )


class AccelerateEnvironment(TorchrunEnvironment):
    """`accelerate launch`, which runs torchrun's agent in its own process."""

    name = "accelerate"

    @staticmethod
    def is_active(env: Env) -> bool:
        return is_accelerate_launch(env) and TorchrunEnvironment.is_active(env)


class SlurmEnvironment(RankEnvironment):
    """The tasks of an srun step with more than one task.

    With a single task, the process starts its own ranks.
    """

    name = "slurm"

    @staticmethod
    def is_active(env: Env) -> bool:
        return is_task(env) and _number(env, _first_set(env, "SLURM_STEP_NUM_TASKS", "SLURM_NTASKS"), 1) > 1

    @classmethod
    def read(cls, env: Env) -> SlurmEnvironment:
        world_size = _number(env, _first_set(env, "SLURM_STEP_NUM_TASKS", "SLURM_NTASKS"), 1)
        num_nodes = _number(env, _first_set(env, "SLURM_STEP_NUM_NODES", "SLURM_NNODES"), 1, world_size)
        node_rank = _number(env, "SLURM_NODEID", 0, num_nodes - 1)
        local_world_size = _tasks_of_node(env, node_rank)
        attempt = _number(env, "SLURM_RESTART_COUNT", 0, default=0)
        return cls(
            rank=_number(env, "SLURM_PROCID", 0, world_size - 1),
            local_rank=_number(env, "SLURM_LOCALID", 0, local_world_size - 1),
            world_size=world_size,
            local_world_size=local_world_size,
            node_rank=node_rank,
            num_nodes=num_nodes,
            # on one node, the loopback address is enough, whatever the job script exports
            master_addr=_LOOPBACK if num_nodes == 1 else env.get("MASTER_ADDR") or _first_host(env),
            master_port=_number(env, "MASTER_PORT", 1, 65535, default=_slurm_port(env)),
            run_id=f"{_number(env, 'SLURM_JOB_ID', 1)}.{env['SLURM_STEP_ID']}/attempt_{attempt}",
            attempt=attempt,
        )


class _Ranks(TypedDict):
    """The fields of RankEnvironment that `_read_ranks` finds."""

    rank: int
    local_rank: int
    world_size: int
    local_world_size: int
    node_rank: int
    num_nodes: int
    master_addr: str
    master_port: int


def _read_ranks(env: Env) -> _Ranks:
    """Reads the variables of torch's `env://` initialization and, if set, those that torchrun adds."""
    world_size = _number(env, "WORLD_SIZE", 1)
    master_addr = _text(env, "MASTER_ADDR")
    is_one_node = world_size == 1 or master_addr in ("localhost", _LOOPBACK, "::1")
    local_world_size = _number(env, "LOCAL_WORLD_SIZE", 1, world_size, default=world_size if is_one_node else None)
    rank = _number(env, "RANK", 0, world_size - 1)
    # without torchrun's GROUP_*: assume nodes of equal size, filled one after the other
    num_nodes = _number(env, "GROUP_WORLD_SIZE", 1, world_size, default=-(-world_size // local_world_size))
    return {
        "rank": rank,
        "local_rank": _number(env, "LOCAL_RANK", 0, local_world_size - 1),
        "world_size": world_size,
        "local_world_size": local_world_size,
        "node_rank": _number(env, "GROUP_RANK", 0, num_nodes - 1, default=rank // local_world_size),
        "num_nodes": num_nodes,
        "master_addr": master_addr,
        "master_port": _number(env, "MASTER_PORT", 1, 65535),
    }


def _tasks_of_node(env: Env, node_rank: int) -> int:
    """The number of tasks on a node, from a list such as "2(x3),1": two on each of three nodes, one on a fourth."""
    name = _first_set(env, "SLURM_STEP_TASKS_PER_NODE", "SLURM_TASKS_PER_NODE")
    text = _text(env, name)
    first_node = 0
    for part in text.split(","):
        match = re.fullmatch(r"([0-9]{1,9})(?:\(x([0-9]{1,9})\))?", part)
        if match is None or int(match[1]) < 1:
            raise _refusal(name, text, 'a list such as "2(x3),1"')
        first_node += int(match[2] or 1)
        if node_rank < first_node:
            return int(match[1])
    raise _refusal(name, text, f"a list of at least {node_rank + 1} nodes, as SLURM_NODEID is {node_rank}")


def _first_host(env: Env) -> str:
    """The host of rank 0, the first in a list such as "n[03-05,9],m1" (here n03)."""
    name = _first_set(env, "SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST")
    text = _text(env, name)
    match = re.match(r"(?:[^\[\],]|\[[^\[\]]*\])*", text)  # up to the first comma outside brackets
    first = match[0] if match else ""
    host = re.sub(r"\[([0-9]+)[^\[\]]*\]", r"\1", first)
    if not re.fullmatch(r"[A-Za-z0-9._-]+", host) or text[len(first) : len(first) + 1] not in ("", ","):
        raise _refusal(name, text, 'a list of hosts such as "n[03-05,9],m1"')
    return host


def _slurm_port(env: Env) -> int:
    """A port that other steps on the same node are unlikely to use; jobs of an array have different IDs, too."""
    step_stride = 7919  # not 1: step 1 of a job must not get the port of step 0 of the next job
    number = _number(env, "SLURM_JOB_ID", 1) + step_stride * int(env["SLURM_STEP_ID"])
    return _SLURM_PORTS[number % len(_SLURM_PORTS)]


def _first_set(env: Env, *names: str) -> str:
    """The first variable that is set; the last one if none is."""
    return next((name for name in names if env.get(name)), names[-1])


def _text(env: Env, name: str) -> str:
    if not env.get(name):
        raise UserError(f"{name} is not set, though a launcher's other variables are: set it, or use torchrun.")
    return env[name]


def _number(env: Env, name: str, smallest: int, largest: int | None = None, default: int | None = None) -> int:
    if default is not None and not env.get(name):
        return default
    text = _text(env, name)
    value = int(text) if re.fullmatch("[0-9]{1,18}", text) else -1
    if value < smallest or (largest is not None and value > largest):
        limits = f"of at least {smallest}" if largest is None else f"from {smallest} to {largest}"
        raise _refusal(name, text, f"a whole number {limits}")
    return value


def _refusal(name: str, text: str, rule: str) -> UserError:
    return UserError(f"{name} is {text[:60]!r}: it must be {rule}; leave it to the launcher, or correct it.")
