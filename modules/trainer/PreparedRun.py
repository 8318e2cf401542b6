"""Everything a run needs for its first step."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from modules.config.steps import steps_until, total_steps
from modules.data.run_summary import step_warnings

if TYPE_CHECKING:
    from collections.abc import Iterator

    from modules.config.PartConfig import PartConfig
    from modules.config.SamplingConfig import SamplingConfig
    from modules.config.TrainConfig import TrainConfig
    from modules.data.epoch_plan import MicroBatch
    from modules.data.RunPlan import RunPlan
    from modules.data.SampleSource import SampleSource
    from modules.methods.Method import Loss
    from modules.sampling.SamplePrompts import SamplePrompts
    from modules.trainer.BackupStore import Backup
    from modules.weights.BaseModel import BaseModel
    from modules.weights.training_adapter import TrainingAdapter


@dataclass(frozen=True, eq=False)
class PreparedRun:
    """A run of `config` with everything loaded and cached; the same on every rank.

    base: the model, with its trained components in memory. parts: name of each trained component -> its settings.
    loss: the module to train; its forward computes the loss of a batch.
    source: makes the batches that `plan` lists. global_batch: samples per optimizer step over all ranks. accumulation:
    number of micro-batches into which a rank divides its samples of one shape.
    training_adapter: as in ModelConfig; None for a run without one.
    sampling: the settings of its samples, each with a prompt. sample_prompts: encodes these prompts once.
    data_digest: of the training images. learning_rate_factor: multiplies every learning rate.
    backup: the backup to resume from; None for a new run.
    compiled_first: the batches to compile the blocks with before the first step, as in CompiledSizes.
    """

    config: TrainConfig
    base: BaseModel
    parts: dict[str, PartConfig]
    loss: Loss
    training_adapter: TrainingAdapter | None
    source: SampleSource
    plan: RunPlan
    sampling: SamplingConfig
    sample_prompts: SamplePrompts
    data_digest: str
    global_batch: int
    accumulation: int
    learning_rate_factor: float
    backup: Backup | None
    compiled_first: tuple[MicroBatch, ...] = ()

    @property
    def total_steps(self) -> int:
        """Optimizer steps of the whole run."""
        return total_steps(self.config, self.plan.steps_per_epoch, self.backup.data if self.backup else None)

    def steps_until(self, epochs: float) -> int:
        """Optimizer steps from the start of the run until `epochs` have passed."""
        return steps_until(epochs, self.plan.steps_per_epoch, self.backup.data if self.backup else None)

    @property
    def step_warnings(self) -> Iterator[str]:
        """Warnings about the number of steps and the batch size."""
        return step_warnings(self.config, self.plan.num_samples, self.global_batch, self.total_steps)
