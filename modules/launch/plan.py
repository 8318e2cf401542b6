"""Decides how this process starts a run, from the settings, the environment and the machine alone."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal, TypeAlias

from modules.config.counted import counted
from modules.config.describe import settings_by_path
from modules.config.installation import shipped_file
from modules.distributed.environments import RankEnvironment, find_environment, is_accelerate_launch
from modules.launch.accelerate import apply_accelerate_options
from modules.launch.lifeline import LIFELINE_VARIABLE
from modules.machine.run_shape import RunShape, run_shape, uses_torchrun
from modules.session.signals import HANGUP_SIGNALS, NOTICE_SIGNALS, STOP_SIGNALS
from modules.session.slurm import requeue_signals, was_requeued

if TYPE_CHECKING:
    from modules.config.TrainConfig import TrainConfig
    from modules.machine.backend import Backend
    from modules.machine.Machine import Machine

Signals: TypeAlias = tuple[int, ...]

ONE_DEVICE = "enable_multi_gpu is on, but there is only one device, so it trains alone."
LONE_PROCESS = (
    "accelerate has started one process, as it does for distributed_type MULTI_CPU: use MULTI_GPU, also on CPUs, as "
    f"{shipped_file('accelerate_config.yaml')} does."
)


@dataclass(frozen=True, kw_only=True)
class _Plan:
    """What every plan says.

    config: the settings that hold, with the options of accelerate and the ranks that a launcher has started.
    resume: from the newest backup.
    stop_signals: signals that ask to save and end; requeue_signals: signals that announce the end of a job's time.
    notes: settings that follow an option of accelerate. warnings: anything unusual. One sentence each.
    """

    config: TrainConfig
    resume: bool
    stop_signals: Signals
    requeue_signals: Signals
    notes: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class _OwnPlan(_Plan):
    """No launcher has started ranks. machine: the one that this process runs on; shape: of the run there."""

    machine: Machine
    shape: RunShape

    @property
    def world_size(self) -> int:
        """Ranks over all machines."""
        return self.shape.num_ranks


@dataclass(frozen=True, kw_only=True)
class HerePlan(_OwnPlan):
    """Train in this process, on one device."""

    def describe(self) -> str:
        """A phrase for the user."""
        gpus = self.shape.gpus
        return f"in this process, on {f'GPU {gpus[0].index}' if gpus else 'the CPU'}"


@dataclass(frozen=True, kw_only=True)
class SupervisePlan(_OwnPlan):
    """Start the ranks of this machine and watch them.

    launcher: what starts them. node_rank: 0 with multi-GPU off, whatever the setting.
    port: where the ranks meet. max_restarts: after crashes.
    """

    launcher: Literal["spawn", "torchrun"]
    node_rank: int
    port: int
    max_restarts: int

    @property
    def num_ranks(self) -> int:
        """Ranks on this machine."""
        return self.shape.ranks_per_node

    @property
    def backend(self) -> Backend | None:
        """None for a single rank."""
        return None if self.world_size == 1 else self.shape.backend

    @property
    def num_nodes(self) -> int:
        return self.shape.num_nodes

    @property
    def leads(self) -> bool:
        """Whether the run folder is this machine's; the others may share its disk, so they leave the folder to it."""
        return self.node_rank == 0

    def describe(self) -> str:
        """A phrase for the user, such as "2 processes (spawn, gloo, port 12355)"."""
        each = "" if self.num_nodes == 1 else f" on each of {self.num_nodes} machines"
        processes = f"{counted(self.num_ranks, 'process', 'processes')}{each}"
        how = self.launcher if self.backend is None else f"{self.launcher}, {self.backend}, port {self.port}"
        return f"{processes} ({how})"

    def alone(self) -> SupervisePlan:
        """The same run on one device, in a single spawned rank."""
        config = replace(self.config, enable_multi_gpu=False)
        return replace(self, config=config, shape=run_shape(config, self.machine), launcher="spawn")


@dataclass(frozen=True, kw_only=True)
class JoinPlan(_Plan):
    """Train as the rank that `environment` describes, one of several that a launcher has started.

    is_supervised: whether a supervisor of Chorus watches the launcher.
    """

    environment: RankEnvironment
    is_supervised: bool

    @property
    def world_size(self) -> int:
        """Ranks over all machines."""
        return self.environment.world_size

    def describe(self) -> str:
        """A phrase for the user."""
        return f"as rank {self.environment.rank} of {self.world_size}, started by {self.environment.name}"


LaunchPlan: TypeAlias = HerePlan | SupervisePlan | JoinPlan


def plan_launch(
    config: TrainConfig,
    environ: Mapping[str, str],
    machine: Machine,
    *,
    resume: bool = False,
    supervise: bool = False,
    given: Collection[str] | None = None,
    arguments: Sequence[str] = (),
    stop_signals: Signals = (*STOP_SIGNALS, *HANGUP_SIGNALS, *NOTICE_SIGNALS),
) -> LaunchPlan:
    """Decide how this process starts the run.

    resume: as the user asked. supervise: always start the ranks by spawn, as the window needs it. given: paths of the
    settings that the user has set, which accelerate must not contradict; None: all of them. arguments: of accelerate's
    command line. stop_signals: those that this process was not started to ignore.

    Raises UserError for contradictory variables of a launcher, for options of accelerate that Chorus can't follow, and
    for devices that the machine does not have.
    """
    environment = None if supervise else find_environment(environ)
    notes: list[str] = []
    if is_accelerate_launch(environ) and not supervise:
        given = settings_by_path() if given is None else given
        config, notes = apply_accelerate_options(config, given, bool(machine.gpus), environ, arguments)
    if not supervise:
        resume = resume or was_requeued(environ) or (environment is not None and environment.attempt > 0)
    if environment is not None and environment.world_size > 1:
        is_supervised = LIFELINE_VARIABLE in environ
        if environment.has_store:
            # torchrun forwards SIGHUP and kills its ranks 30 s later, even when started with nohup
            stop_signals = (*STOP_SIGNALS, *HANGUP_SIGNALS, *(() if requeue_signals(environ) else NOTICE_SIGNALS))
        return JoinPlan(
            config=_with_found_ranks(config, environment),
            resume=resume,
            stop_signals=stop_signals,
            # any other launcher, even inside a SLURM job, would itself be ended by that signal
            requeue_signals=requeue_signals(environ) if is_supervised or environment.name == "slurm" else (),
            notes=tuple(notes),
            warnings=_other_ranks(config, environment),
            environment=environment,
            is_supervised=is_supervised,
        )
    warnings = []
    if environment is not None:
        config = _with_found_ranks(config, environment)
    elif is_accelerate_launch(environ) and not supervise:
        warnings.append(LONE_PROCESS)
    shape = run_shape(config, machine)
    is_alone = shape.num_ranks == 1
    if is_alone and not supervise:
        return HerePlan(
            config=config,
            resume=resume,
            stop_signals=stop_signals,
            requeue_signals=requeue_signals(environ),
            notes=tuple(notes),
            warnings=(*warnings, ONE_DEVICE) if config.enable_multi_gpu else tuple(warnings),
            machine=machine,
            shape=shape,
        )
    return SupervisePlan(
        config=config,
        resume=resume,
        stop_signals=stop_signals,
        requeue_signals=requeue_signals(environ),
        notes=tuple(notes),
        warnings=tuple(warnings),
        machine=machine,
        shape=shape,
        launcher="torchrun" if uses_torchrun(config, machine.system) and not supervise else "spawn",
        node_rank=config.node_rank if config.enable_multi_gpu else 0,
        port=int(config.initial_port),
        max_restarts=config.max_restarts if config.enable_multi_gpu and shape.num_nodes == 1 else 0,
    )


def _with_found_ranks(config: TrainConfig, environment: RankEnvironment) -> TrainConfig:
    """`config` with the ranks that the launcher has actually started."""
    return replace(
        config,
        enable_multi_gpu=environment.world_size > 1,
        world_size=environment.local_world_size,
        num_nodes=environment.num_nodes,
        node_rank=environment.node_rank,
        master_addr=environment.master_addr,
    )


def _other_ranks(config: TrainConfig, environment: RankEnvironment) -> tuple[str, ...]:
    """A warning if the launcher has started another number of ranks than the settings name. Rank 0 gives it."""
    if config.world_size in (None, environment.local_world_size) or environment.rank != 0:
        return ()
    return (
        f"world_size {config.world_size}, but {environment.name} has started {environment.local_world_size} ranks "
        "on this machine: these train.",
    )
