"""Decides how this process starts a run, from the settings, the environment and the machine alone."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from modules.distributed.environments import RankEnvironment, find_environment, is_accelerate_launch
from modules.launch.lifeline import LIFELINE_VARIABLE
from modules.machine.backend import Backend, choose_backend
from modules.machine.run_shape import chosen_gpus, ranks_here, uses_torchrun
from modules.session.signals import HANGUP_SIGNALS, STOP_SIGNALS
from modules.session.slurm import requeue_signals, was_requeued

if TYPE_CHECKING:
    from modules.config.TrainConfig import TrainConfig
    from modules.machine.Machine import Machine

ONE_DEVICE = "enable_multi_gpu is on, but there is only one device, so it trains alone."
LONE_PROCESS = (
    "accelerate has started one process, as it does for distributed_type MULTI_CPU: use MULTI_GPU, also on CPUs, as "
    "resources/accelerate_config.yaml does."
)


@dataclass(frozen=True)
class LaunchPlan:
    """How this process starts a run.

    start: "here": train in this process; "spawn" and "torchrun": start the ranks and watch them; "join": this process
        is one of the ranks that a launcher has started.
        num_ranks: on this machine. num_nodes, node_rank: those in effect; with multi-GPU off the settings are ignored.
        devices: indexes of the GPUs that train on this machine, as machine/devices.py lists them; empty: the CPU.
        backend: None for a single rank. port: where the ranks that this process starts meet; None if it starts none.
        resume: from the newest backup. max_restarts: after crashes.
        stop_signals: signals that ask to save and end; requeue_signals: signals that announce the end of a job's time.
        environment: what the launcher of this process has set, if there is one.
        warnings: anything unusual, one sentence each.
    """

    start: Literal["here", "spawn", "torchrun", "join"]
    num_ranks: int
    num_nodes: int = 1
    node_rank: int = 0
    devices: tuple[int, ...] = ()
    backend: Backend | None = None
    port: int | None = None
    resume: bool = False
    max_restarts: int = 0
    stop_signals: tuple[int, ...] = ()
    requeue_signals: tuple[int, ...] = ()
    environment: RankEnvironment | None = None
    warnings: tuple[str, ...] = ()

    @property
    def world_size(self) -> int:
        """Ranks over all machines."""
        return self.environment.world_size if self.environment is not None else self.num_ranks * self.num_nodes

    def describe(self) -> str:
        """A phrase for the user, such as "2 processes by spawn, gloo, port 12355"."""
        if self.start == "here":
            return f"in this process, on {'the CPU' if not self.devices else f'GPU {self.devices[0]}'}"
        if self.start == "join":
            return f"as rank {self.environment.rank} of {self.world_size}, started by {self.environment.name}"
        each = "" if self.num_nodes == 1 else f" on each of {self.num_nodes} machines"
        processes = f"{self.num_ranks} process{'es' if self.num_ranks > 1 else ''}{each} by {self.start}"
        return processes if self.backend is None else f"{processes}, {self.backend}, port {self.port}"


def plan_launch(
    config: TrainConfig,
    environ: Mapping[str, str],
    machine: Machine,
    *,
    resume: bool = False,
    supervise: bool = False,
    stop_signals: tuple[int, ...] = (*STOP_SIGNALS, *HANGUP_SIGNALS),
) -> LaunchPlan:
    """Decide how this process starts the run.

    resume: as the user asked. supervise: always start the ranks by spawn, as the window needs it. stop_signals: those
    that this process was not started to ignore.

    Raises UserError for contradictory variables of a launcher and for devices that the machine does not have.
    """
    environment = None if supervise else find_environment(environ)
    if not supervise:
        resume = resume or was_requeued(environ) or (environment is not None and environment.attempt > 0)
    if environment is not None and environment.world_size > 1:
        return _join(config, environ, machine, environment, resume, stop_signals)
    several = config.enable_multi_gpu and environment is None
    num_ranks = 1 if environment is not None else ranks_here(config, machine.gpus, machine.cores)
    num_nodes = config.num_nodes if several else 1
    is_alone = num_ranks * num_nodes == 1
    is_single_accelerate_process = is_accelerate_launch(environ) and environment is None and not supervise
    warnings = [LONE_PROCESS] if is_single_accelerate_process else []
    if several and is_alone and not supervise:
        warnings.append(ONE_DEVICE)
    by_torchrun = uses_torchrun(config, machine.system)
    start = "spawn" if supervise else "here" if is_alone else "torchrun" if by_torchrun else "spawn"
    backend, _ = choose_backend(config.distributed_backend, bool(machine.gpus), machine.system != "win32")
    return LaunchPlan(
        start,
        num_ranks,
        num_nodes,
        node_rank=config.node_rank if several else 0,
        devices=tuple(gpu.index for gpu in chosen_gpus(config, machine.gpus))[:num_ranks],
        backend=None if is_alone else backend,
        port=None if start == "here" else int(config.initial_port),
        resume=resume,
        max_restarts=config.max_restarts if start != "here" and several and num_nodes == 1 else 0,
        stop_signals=stop_signals,
        requeue_signals=requeue_signals(environ),
        environment=environment,
        warnings=tuple(warnings),
    )


def _join(
    config: TrainConfig,
    environ: Mapping[str, str],
    machine: Machine,
    environment: RankEnvironment,
    resume: bool,
    stop_signals: tuple[int, ...],
) -> LaunchPlan:
    is_supervised = LIFELINE_VARIABLE in environ
    warnings = ()
    if config.world_size not in (None, environment.local_world_size) and environment.rank == 0:
        warnings = (
            f"world_size {config.world_size}, but {environment.name} has started {environment.local_world_size} ranks "
            "on this machine: these train.",
        )
    backend, _ = choose_backend(config.distributed_backend, bool(machine.gpus), machine.system != "win32")
    return LaunchPlan(
        "join",
        environment.local_world_size,
        environment.num_nodes,
        environment.node_rank,
        devices=tuple(config.device_indexes) if machine.gpus else (),
        backend=backend,
        resume=resume,
        # torchrun forwards SIGHUP and kills its ranks 30 s later, even when started with nohup
        stop_signals=(*STOP_SIGNALS, *HANGUP_SIGNALS) if environment.has_store else stop_signals,
        # any other launcher, even inside a SLURM job, would itself be ended by that signal
        requeue_signals=requeue_signals(environ) if is_supervised or environment.name == "slurm" else (),
        environment=environment,
        warnings=warnings,
    )
