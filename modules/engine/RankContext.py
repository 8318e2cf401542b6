"""What a rank that `launch_distributed_training` has started gets from the process above it."""

from __future__ import annotations

from dataclasses import dataclass, field

from modules.distributed.Heartbeat import Heartbeat
from modules.session.TrainCommands import TrainCommands


@dataclass
class RankContext:
    """heartbeat: tells the process above that this rank lives. commands: what that process asks for, such as a stop.

    step: optimizer steps done; stopped: whether the training has ended before its last epoch, as it was asked to.
    """

    heartbeat: Heartbeat = field(default_factory=Heartbeat)
    commands: TrainCommands = field(default_factory=TrainCommands)
    step: int = 0
    stopped: bool = False


_context = RankContext()  # one for a process, as torch's default process group is


def rank_context() -> RankContext:
    """That of this process; one that nobody watches where it was started otherwise."""
    return _context


def enter_rank(context: RankContext) -> None:
    """Makes `context` that of this process."""
    global _context
    _context = context
