"""Joins and leaves the ranks of a run: device, backend, store and process group."""

from __future__ import annotations

import atexit
import contextlib
import faulthandler
import os
import secrets
import socket
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist

from modules.config.counted import counted
from modules.config.errors import ConfigError, first_line
from modules.config.installation import command_name
from modules.config.methods import facts_of
from modules.distributed.DataParallelRuntime import DataParallelRuntime, DataParallelSettings
from modules.distributed.environments import RankEnvironment, find_environment
from modules.distributed.errors import RanksError
from modules.distributed.Heartbeat import Heartbeat
from modules.distributed.nccl_errors import explain_nccl_error, is_nccl_error
from modules.distributed.node_secret import node_secret
from modules.distributed.open_store import open_store_warning
from modules.distributed.rendezvous import Meeting, meet, torch_version
from modules.distributed.Runtime import Runtime, default_device
from modules.distributed.usable_gpus import require_usable_gpus, set_cuda_device
from modules.machine.backend import Backend, backend_warning, choose_backend, sharding_needs_nccl
from modules.machine.devices import list_gpus, mixed_gpus_warning, num_cores, slow_links_warning
from modules.machine.interfaces import gloo_interface_problem, interface_towards
from modules.machine.link_speeds import describe_links
from modules.machine.run_shape import crowded_warning
from modules.machine.strategy import Strategy, choose_strategy
from modules.session.introduction import device_line
from modules.session.out_of_memory import is_out_of_memory
from modules.session.run_token import TOKEN_VARIABLE

if TYPE_CHECKING:
    from modules.config.TrainConfig import TrainConfig
    from modules.distributed.SignedStore import SignedStore

LOOPBACK = "127.0.0.1"
JOIN_SECONDS = 300.0  # for all ranks to join, which includes their imports
COLLECTIVE_SECONDS = 1800.0  # timeout of a collective; heartbeats detect hung ranks much earlier
JOIN_VARIABLE = "CHORUS_JOIN_SECONDS"  # overrides JOIN_SECONDS
ADDRESS_SETTINGS = "master_addr and initial_port"  # by which a diffusion run chooses where ranks meet

Tell = Callable[[str], None]


@dataclass
class Membership:
    """The membership of this process in the ranks. runtimes: those created by `create_runtime`."""

    device: torch.device
    environment: RankEnvironment
    meeting: Meeting
    is_introduced: bool = False
    runtimes: list[Runtime] = field(default_factory=list)


@dataclass
class Alone:
    """A process that has found no other ranks."""

    device: torch.device


# one per process, like torch's default process group; None before `setup_distributed`
_membership: Membership | Alone | None = None


def setup_distributed(
    config: TrainConfig,
    tell: Tell | None = print,
    warn: Tell = print,
    address_settings: str = ADDRESS_SETTINGS,
) -> tuple[int, int, int]:
    """Joins the ranks that the launcher has started, and returns (local rank, rank, world size).

    Without a launcher, or with a single rank, returns (0, 0, 1) and creates no process group. A second call does not
    join again.
    tell: called on rank 0, once, with the lines that describe the ranks; None defers them to a later call. warn: called
    with warnings, such as about slow links. address_settings: by what the address is chosen, for the message.
    Raises UserError, with a one-sentence message, for unavailable devices or backends, and if the ranks can't join.
    """
    global _membership
    if _membership is None:
        environment = find_environment()
        if environment is None or environment.world_size == 1:
            _membership = Alone(default_device(config.device_indexes))
        else:
            _membership = _join(config, environment, address_settings)
    if isinstance(_membership, Alone):
        return 0, 0, 1
    if tell and not _membership.is_introduced:
        _membership.is_introduced = True
        _introduce(config, _membership, tell, warn)
    ranks = _membership.environment
    return ranks.local_rank, ranks.rank, ranks.world_size


def cleanup_distributed() -> None:
    """Leaves the ranks after a clean end and closes all open runtimes. A second call does nothing.

    Without this call, the process leaves the ranks at interpreter shutdown. After an error, exit with os._exit, because
    other ranks may hang.
    """
    global _membership
    if isinstance(_membership, Membership):
        _close_runtimes(_membership)
        dist.destroy_process_group()
    _membership = None


def abandon_distributed() -> None:
    """Leaves the ranks after an error, without waiting for them: the end of this process tells them.

    For an error that the program may catch, and then end as if nothing had happened.
    """
    global _membership
    _membership = None


def is_main_process() -> bool:
    """Whether this is rank 0, or the only one."""
    return not isinstance(_membership, Membership) or _membership.environment.rank == 0


def run_store() -> SignedStore:
    """The store shared by all ranks, for keys of this run only. Only after they have joined."""
    assert isinstance(_membership, Membership)
    return _membership.meeting.store


@contextlib.contextmanager
def machine_key() -> Iterator[bytes]:
    """A key that nobody but the ranks of this machine can know, all of which must enter the block.

    The first of them must not leave it before the others have entered. Only after they have joined.
    """
    assert isinstance(_membership, Membership)
    meeting, environment = _membership.meeting, _membership.environment
    if meeting.has_secret:
        yield meeting.key
    elif environment.local_world_size == 1:
        yield secrets.token_bytes(32)
    else:
        with node_secret(meeting.store, environment, JOIN_SECONDS) as key:
            yield key


def create_runtime(config: TrainConfig, heartbeat: Heartbeat | None = None, *, sync_batch_norm: bool = True) -> Runtime:
    """The runtime for the ranks joined by `setup_distributed`.

    sync_batch_norm: see DataParallelSettings.
    Raises ConfigError if the model can't be sharded with this backend.
    """
    membership = _membership or Alone(default_device(config.device_indexes))
    if isinstance(membership, Alone):
        return Runtime(membership.device, heartbeat)
    strategy, _ = _chosen_strategy(config, membership)
    sharing_ranks = config.sharding_group_size or membership.environment.local_world_size
    settings = DataParallelSettings(
        config.gradient_reduce_precision,
        config.ddp_bucket_size_mb,
        config.ddp_gradient_as_bucket_view,
        config.ddp_static_graph,
        sync_batch_norm,
        config.model.mixed_precision,
        sharing_ranks if strategy == "hsdp" else None,
        config.ddp_shard_optimizer,
        exchanges_after=config.model.cuda_graphs == "on" and facts_of(config).uses_denoiser,
    )
    # a separate prefix, because every runtime counts its exchanges from 0; all ranks create runtimes in the same order
    store = membership.meeting.store.within(f"runtime-{len(membership.runtimes)}")
    if strategy != "ddp" and membership.device.type == "cuda" and dist.get_backend() != "nccl":
        raise ConfigError(sharding_needs_nccl(strategy), "distributed_strategy")
    runtime_class = DataParallelRuntime
    if strategy != "ddp":
        from modules.distributed.ShardedRuntime import (
            ShardedRuntime,  # torch's FSDP takes as long to import as all else
        )

        runtime_class = ShardedRuntime
    runtime = runtime_class(membership.device, membership.environment, store, settings, heartbeat)
    membership.runtimes.append(runtime)
    return runtime


def gloo_problem() -> str:
    """Why gloo can't be used on this machine, as with some Windows builds of PyTorch; "" if it can."""
    try:
        dist.ProcessGroupGloo.create_default_device()
    except RuntimeError as error:
        return f"the gloo backend does not work with this PyTorch on this machine ({first_line(error)})"
    return ""


def rank_device(
    device_indexes: list[int], environment: RankEnvironment, backend: Backend, env: Mapping[str, str] = os.environ
) -> torch.device:
    """The device of this rank: GPUs are assigned in the order of local ranks. Only gloo ranks may share one.

    Some launchers make only its own GPU visible to each rank.
    """
    first = default_device(device_indexes)
    if first.type == "cpu":
        return first
    indexes = device_indexes or list(range(torch.cuda.device_count()))
    if len(indexes) == 1 and environment.name == "slurm":  # --gpus-per-task, possibly by cgroups
        return first
    if torch.cuda.device_count() == 1 and env.get("CUDA_VISIBLE_DEVICES"):  # set by wrappers of mpirun
        return first
    if environment.local_world_size > len(indexes) and backend == "nccl":
        raise ConfigError.at(
            "world_size",
            f"{environment.local_world_size}: {counted(len(indexes), 'GPU is', 'GPUs are')} there or "
            f"chosen, and with nccl each rank needs its own; use {len(indexes)}, or distributed_backend gloo.",
        )
    return torch.device("cuda", indexes[environment.local_rank % len(indexes)])


def threads_of_rank(environment: RankEnvironment, cores: int, env: Mapping[str, str] = os.environ) -> int:
    """CPU threads that a rank may take. cores: those that this process may use."""
    on_node = env.get("SLURM_CPUS_ON_NODE", "")
    if environment.name == "slurm" and on_node.isdecimal() and cores < int(on_node):
        return cores  # srun has given each task cores of its own
    return max(1, cores // environment.local_world_size)


def _join(config: TrainConfig, environment: RankEnvironment, address_settings: str) -> Membership:
    require_usable_gpus()  # first: GPUs that can't be used would be taken for none
    backend, _ = _chosen_backend(config)
    device = rank_device(config.device_indexes, environment, backend)
    if device.type == "cuda":
        set_cuda_device(device)
    if "OMP_NUM_THREADS" not in os.environ:  # else every rank would take all cores, and they wait for each other
        torch.set_num_threads(threads_of_rank(environment, num_cores()))
    if sys.platform == "linux":
        is_one_node = environment.num_nodes == 1
        # gloo would use the host name, which may not resolve to a working address
        interface = "lo" if is_one_node else interface_towards(environment.master_addr)
        if interface:
            os.environ.setdefault("GLOO_SOCKET_IFNAME", interface)
        if is_one_node:
            # Else NCCL's ranks would find each other at an address of the network. Data still go over NVLink, PCIe or
            # shared memory. (github.com/NVIDIA/nccl/issues/965; "=": this interface, not all with this prefix)
            os.environ.setdefault("NCCL_SOCKET_IFNAME", "=lo")
    if backend == "gloo" and (problem := gloo_interface_problem(os.environ.get("GLOO_SOCKET_IFNAME", ""))):
        raise RanksError(f"Rank {environment.rank} can't join the others: {problem}; correct or unset it.")
    seconds = float(os.environ.get(JOIN_VARIABLE, JOIN_SECONDS))
    with _bounded(seconds), _explained(environment, address_settings):
        store = dist.PrefixStore(environment.run_id, _open_store(environment, seconds))
        meeting = meet(store, environment, device, backend, seconds)
        dist.init_process_group(
            backend,
            store=dist.PrefixStore("process_group", store),
            rank=environment.rank,
            world_size=environment.world_size,
            timeout=timedelta(seconds=COLLECTIVE_SECONDS),
            device_id=device if backend == "nccl" else None,
        )
    atexit.register(_leave_at_exit)
    return Membership(device, environment, meeting)


def _leave_at_exit() -> None:
    """Closes the runtimes of a program that ends without `cleanup_distributed`.

    The store ends with the process of rank 0, which therefore waits for ranks that still read from it. After an
    uncaught error it does not wait, so that the others notice at once. The process group is not destroyed here, because
    with NCCL that can block on a collective that never completes.
    """
    if isinstance(_membership, Membership) and not hasattr(sys, "last_type"):
        _close_runtimes(_membership)


def _close_runtimes(membership: Membership) -> None:
    for runtime in membership.runtimes:
        runtime.close()


def _open_store(environment: RankEnvironment, seconds: float) -> dist.Store:
    """The ranks' store, hosted by rank 0 or by torchrun's agent."""
    hosts = environment.rank == 0 and not environment.has_store
    is_local = environment.num_nodes == 1 and not environment.has_store
    listening = None
    if hosts and is_local and os.name == "posix":
        # torch's own socket would listen on all addresses, whatever master_addr is
        listening = socket.create_server((LOOPBACK, environment.master_port)).detach()
    return dist.TCPStore(
        LOOPBACK if is_local else environment.master_addr,
        environment.master_port,
        is_master=hosts,
        timeout=timedelta(seconds=seconds),
        wait_for_workers=False,
        master_listen_fd=listening,
        use_libuv=os.name == "posix",  # PyTorch's Windows builds don't include libuv
    )


def _introduce(config: TrainConfig, membership: Membership, tell: Tell, warn: Tell) -> None:
    """On rank 0, describes the ranks and warns of problems such as slow links."""
    environment, ranks = membership.environment, membership.meeting.ranks
    if environment.rank != 0:
        return
    kind = "GPU" if membership.device.type == "cuda" else "CPU"
    tell(f"Distributed training: MULTI_{kind}")
    tell(f"Number of processes: {environment.world_size}")
    tell(f"Mixed precision: {config.model.mixed_precision}")
    if config.distributed_strategy == "auto":
        strategy, reason = _chosen_strategy(config, membership)
        tell(f"Distributed strategy: {strategy}, because {reason}")
    several = environment.num_nodes > 1
    for rank, facts in enumerate(ranks):
        tell(device_line(rank, facts["device"], facts["host"] if several else ""))
    if warning := backend_warning(config.distributed_backend, *_chosen_backend(config)):
        warn(warning)
    has_own_cores = environment.name == "slurm"  # SLURM assigns cores to each task
    if kind == "CPU" and not has_own_cores and (warning := crowded_warning(environment.local_world_size, num_cores())):
        warn(warning)
    others = sorted({facts["torch"] for facts in ranks} - {torch_version()})
    if others:
        warn(
            f"PyTorch {torch_version()} trains together with {', '.join(others)}: install the same version everywhere."
        )
    if kind == "GPU":
        gpus = {gpu.index: gpu for gpu in list_gpus()}
        own = [int(facts["device"].split(":")[1]) for facts in ranks[: environment.local_world_size]]
        chosen = [gpus[index] for index in own if index in gpus]
        if links := describe_links(chosen):
            tell(f"GPU links: {links}")
        for warning in filter(None, (mixed_gpus_warning(chosen), slow_links_warning(chosen))):
            warn(warning)
    if warning := open_store_warning(environment):
        warn(warning)
    if several and not membership.meeting.has_secret:
        warn(
            f"{TOKEN_VARIABLE} is not set: whoever reaches the machines' ports can forge what they tell each other. "
            f"{command_name('multi_node')} and {command_name('slurm_job')} write commands that set it, and so does "
            "multi_node_commands for a program of your own."
        )
    if several:
        warn("Several machines train together: their gradients are neither authenticated nor encrypted.")


def _chosen_backend(config: TrainConfig) -> tuple[Backend, str]:
    return choose_backend(config.distributed_backend, torch.cuda.is_available(), dist.is_nccl_available())


def _chosen_strategy(config: TrainConfig, membership: Membership) -> tuple[Strategy, str]:
    """The strategy, the same on all ranks, and the reason for it."""
    environment = membership.environment
    sizes = [rank["memory_bytes"] for rank in membership.meeting.ranks]
    can_share = None not in sizes and dist.get_backend() == "nccl"
    started = replace(config, enable_multi_gpu=True, num_nodes=environment.num_nodes)
    return choose_strategy(started, environment.world_size, min(sizes) if can_share else None)


@contextlib.contextmanager
def _bounded(seconds: float) -> Iterator[None]:
    """Ends the process, with its stacks on stderr, if joining takes longer.

    torch's timeouts are not enough: a rank that connects to a different server at that port would wait for ever.
    """
    faulthandler.dump_traceback_later(seconds + 15, exit=True)
    try:
        yield
    finally:
        faulthandler.cancel_dump_traceback_later()


@contextlib.contextmanager
def _explained(environment: RankEnvironment, address_settings: str = ADDRESS_SETTINGS) -> Iterator[None]:
    where = f"{environment.master_addr}:{environment.master_port}"
    try:
        yield
    except (dist.DistError, OSError) as error:
        if is_out_of_memory(error):
            raise
        if is_nccl_error(error):
            raise RanksError(f"Rank {environment.rank}: {explain_nccl_error(error)}") from error
        raise RanksError(
            f"Rank {environment.rank} can't join the others at {where} ({first_line(error)}): check "
            f"{address_settings}, and that no firewall blocks the port and no other program uses it."
        ) from error
