"""How a run starts from this process: decided here, from settings, environment and machine alone."""

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

ONE_DEVICE = "enable_multi_gpu is on, but there is one device, which trains alone."
LONE_PROCESS = (
    "accelerate has started one process, as it does for distributed_type MULTI_CPU: use MULTI_GPU, also on CPUs, as "
    "resources/accelerate_config.yaml does."
)


@dataclass(frozen=True)
class LaunchPlan:
    """How a run starts from this process.

    start: "here": it trains alone in this process; "spawn" and "torchrun": this process starts its ranks and watches
        them; "join": this process is one of the ranks that a launcher has started.
    num_ranks: on this machine. num_nodes, node_rank: as they hold; the settings' are of no account with multi-GPU off.
    devices: indexes of the GPUs that train here, as machine/devices.py lists them; empty: the CPU.
    backend: None where one rank trains alone. port: where the ranks meet that this process starts; None for others.
    resume: from the newest backup. max_restarts: after a crash.
    stop_signals: what asks this process, or its rank, to save and end; requeue_signals: what announces the end of a
        job's time.
    environment: what the launcher of this process says, where there is one.
    warnings: what is unusual about it, a sentence each.
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
        """For people, such as "2 processes by spawn, gloo, port 12355"."""
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
    """resume: wanted by the person. supervise: this process starts ranks by spawn whatever else is said, as the window
    wants it. stop_signals: what this process has not been started to ignore.

    Raises UserError for what the launcher says that can't be, and for devices that the machine does not have.
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
        # torchrun passes on that its terminal was closed, and ends its ranks 30 s later, even if nohup has started it
        stop_signals=(*STOP_SIGNALS, *HANGUP_SIGNALS) if environment.has_store else stop_signals,
        # another launcher, which may run inside a job of SLURM too, would not survive that signal itself
        requeue_signals=requeue_signals(environ) if is_supervised or environment.name == "slurm" else (),
        environment=environment,
        warnings=warnings,
    )
