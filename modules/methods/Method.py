"""What a method is: which components train, with which loss, and what file comes out."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Literal, Protocol

from torch import Tensor, nn

if TYPE_CHECKING:
    from modules.config.PartConfig import PartConfig
    from modules.config.TrainConfig import TrainConfig
    from modules.data.Batch import Batch
    from modules.families.Family import Family
    from modules.weights.BaseModel import BaseModel


class Method(Protocol):
    """One way to train a family's model.

    inputs: what batches hold: cached latents (with noise and text), or pixels.
    """

    inputs: Literal["latents", "pixels"]

    def components(self, family: Family, config: TrainConfig) -> dict[str, PartConfig]:
        """The components that train, with their own settings: learning rate, weight decay, end."""

    def attach(self, base: BaseModel, config: TrainConfig) -> None:
        """Makes the components, already in memory, ready to train: what trains requires a gradient, nothing else."""

    def loss(self, base: BaseModel, config: TrainConfig) -> Loss:
        """The module whose forward is the loss; what trains is registered in it."""

    def check_output(self, base: BaseModel, config: TrainConfig) -> None:
        """Raises WeightsError where a format that is asked for has no names for the model's layers; after `attach`."""

    def save(
        self, base: BaseModel, config: TrainConfig, folder: Path, name: str, metadata: dict[str, str]
    ) -> list[Path]:
        """Writes the trained model for other programs; returns the files and folders made."""

    def saved_bytes(self, base: BaseModel, config: TrainConfig) -> int:
        """About how much `save` writes."""


class Loss(nn.Module):
    """The loss of a batch as a module, so that a data-parallel wrapper sees every parameter that trains.

    Its children are the trained components by name; frozen ones are reached through `base`, unregistered.
    unused_parameters: whether a step may leave some of what trains without a gradient, as the family says.
    """

    def __init__(self, base: BaseModel, trained: list[str]):
        super().__init__()
        self.base = base
        for name in trained:
            self.add_module(name, base.module(name))
        self.unused_parameters = any(name in base.family.partly_idle for name in trained)

    def forward(self, batch: Batch) -> tuple[Tensor, int, dict[str, Tensor]]:
        """(loss summed over the batch, its number of samples, further sums by name)."""
        raise NotImplementedError
