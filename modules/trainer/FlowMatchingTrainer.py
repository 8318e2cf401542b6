"""The trainer of flow-matching models, for programs that start their ranks themselves."""

from __future__ import annotations

from typing import TYPE_CHECKING

from modules.config.flow_matching import check_flow
from modules.distributed.setup_distributed import setup_distributed
from modules.trainer.DistributedTrainer import DistributedTrainer

if TYPE_CHECKING:
    from modules.config.TrainConfig import TrainConfig
    from modules.session.TrainCallbacks import TrainCallbacks
    from modules.session.TrainCommands import TrainCommands


class FlowMatchingTrainer(DistributedTrainer):
    """A DistributedTrainer that accepts flow-matching families only, and joins the ranks under the caller's numbers.

        local_rank, rank, world_size = setup_distributed(config)
        trainer = FlowMatchingTrainer(config, rank, world_size)
        trainer.run()
        cleanup_distributed()

    Training is that of GenericTrainer: the losses don't depend on how the ranks were started.
    Raises ConfigError for a family that is not trained by flow matching, and ValueError if `rank` or `world_size`
    contradicts the launcher.
    """

    def __init__(
        self,
        config: TrainConfig,
        rank: int = 0,
        world_size: int = 1,
        callbacks: TrainCallbacks | None = None,
        commands: TrainCommands | None = None,
        resume: bool = False,
    ):
        check_flow(config)
        local_rank, *joined = setup_distributed(config, tell=None)
        if joined != [rank, world_size]:
            raise ValueError(
                f"rank {rank} of {world_size}, but the launcher has started rank {joined[0]} of {joined[1]}"
            )
        super().__init__(config, callbacks, commands, local_rank, resume)

    @property
    def is_distributed(self) -> bool:
        """Whether more than one rank trains."""
        return self.runtime.world_size > 1

    def run(self) -> None:
        """Trains from start to end: the model, and the backup if wanted, are written."""
        self.start()
        self.train()
        self.end()
