"""One rank of a run: joins the process group, trains like a single device, leaves the group."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from modules.distributed.Heartbeat import Heartbeat
from modules.distributed.setup_distributed import cleanup_distributed, create_runtime, setup_distributed
from modules.trainer.GenericTrainer import GenericTrainer

if TYPE_CHECKING:
    from modules.config.TrainConfig import TrainConfig
    from modules.session.TrainCallbacks import TrainCallbacks
    from modules.session.TrainCommands import TrainCommands
    from modules.trainer.checks import CheckedStart


class DistributedTrainer(GenericTrainer):
    """The trainer of a rank started by a launcher, whose environment variables say which rank it is.

        trainer = DistributedTrainer(config, callbacks, commands, local_rank)
        trainer.start()
        trainer.train()
        trainer.end()
        trainer.leave()

    Raises UserError if the ranks can't join, and ValueError if `local_rank` contradicts the launcher.
    """

    def __init__(
        self,
        config: TrainConfig,
        callbacks: TrainCallbacks | None = None,
        commands: TrainCommands | None = None,
        local_rank: int = 0,
        resume: bool = False,
        heartbeat: Heartbeat | None = None,
        checked: CheckedStart | None = None,
    ):
        tell: dict[str, Any] = {"tell": callbacks.on_status, "warn": callbacks.on_warning} if callbacks else {}
        heartbeat = heartbeat or Heartbeat()
        with heartbeat.phase("joining"):
            joined, _, _ = setup_distributed(config, **tell)
        if joined != local_rank:
            raise ValueError(f"local rank {local_rank}, but the launcher has started this process as {joined}")
        super().__init__(config, callbacks, commands, create_runtime(config, heartbeat), resume, checked)

    def leave(self) -> None:
        """Leaves the process group, after the end of training or a stop that all ranks agreed on."""
        self.runtime.close()
        cleanup_distributed()
