"""What a rank gets from its parent process, `launch_distributed_training`."""

from __future__ import annotations

from dataclasses import dataclass, field

from modules.distributed.Heartbeat import Heartbeat
from modules.session.TrainCommands import TrainCommands


@dataclass
class RankContext:
    """heartbeat: shows the parent process that this rank is alive. commands: from the parent process, such as a stop.

    step: optimizer steps done. stopped: whether training was stopped on request before its last epoch.
    """

    heartbeat: Heartbeat = field(default_factory=Heartbeat)
    commands: TrainCommands = field(default_factory=TrainCommands)
    step: int = 0
    stopped: bool = False


_context = RankContext()  # one per process, like torch's default process group


def rank_context() -> RankContext:
    """The context of this process; a default one if another launcher started it."""
    return _context


def enter_rank(context: RankContext) -> None:
    """Sets the context of this process."""
    global _context
    _context = context
