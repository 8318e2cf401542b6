"""The loss of samples that are never trained on, with fixed noise and timesteps.

Two measurements therefore differ only because of the weights, whereas a training loss mostly shows which timesteps were
drawn.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch

from modules.data.draws import torch_seed
from modules.distributed.seeding import seed_device
from modules.layers.evaluation_mode import evaluation_mode

if TYPE_CHECKING:
    from modules.data.Batch import Batch
    from modules.data.epoch_plan import MicroBatch
    from modules.data.SampleSource import SampleSource
    from modules.distributed.Runtime import Runtime
    from modules.methods.Method import Loss


@dataclass(frozen=True, eq=False)
class ValidationLoss:
    """The mean loss of the validation samples, each at `num_timesteps` quantiles of the training timesteps.

    micro_batches: this rank's part of the samples; ranks may have different numbers of them, or none.
    placeholder: runs, without being counted, where all ranks must make the same number of passes.
    """

    source: SampleSource
    micro_batches: list[MicroBatch]
    placeholder: MicroBatch
    num_timesteps: int
    runtime: Runtime

    @torch.no_grad()
    def measure(self, loss: Loss) -> float:
        """The mean over samples and timesteps with the current weights; the same on all ranks.

        loss: the bare module, not wrapped in DDP, because ranks have different numbers of batches.
        """
        micro_batches = self.micro_batches
        if self.runtime.shards:
            most = max(self.runtime.gather(len(micro_batches), "validating"))
            micro_batches = micro_batches + [self.placeholder] * (most - len(micro_batches))
        num_counted = len(self.micro_batches) * self.num_timesteps
        loss_sum, count = torch.zeros((), dtype=torch.float64, device=self.runtime.device), 0
        with evaluation_mode(loss):
            for number, batch in enumerate(self._batches(micro_batches)):
                seed_device(torch_seed(self.source.seed, number, "validation"), self.runtime.device)
                batch_sum, batch_count, _ = loss(batch.to(self.runtime.device))
                if number < num_counted:
                    loss_sum += batch_sum.double()
                    count += batch_count
                self.runtime.heartbeat.beat()
        sums = self.runtime.gather([loss_sum.item(), count], "validating")
        return sum(rank_sum for rank_sum, _ in sums) / sum(rank_count for _, rank_count in sums)

    def _batches(self, micro_batches: list[MicroBatch]) -> Iterator[Batch]:
        """The batches, each repeated at every timestep."""
        for micro_batch in micro_batches:
            batch = self.source.batch(micro_batch, epoch=0)
            batch = replace(batch, weight=torch.ones_like(batch.weight))
            for number in range(self.num_timesteps):
                u = self.source.timesteps.at((number + 0.5) / self.num_timesteps, batch.noise.shape[1:])
                yield replace(batch, u=torch.full_like(batch.u, u))
