"""What a method is: which components train, with which loss, and what file comes out."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from torch import Tensor, nn

from modules.config.methods import METHODS, MethodFacts

if TYPE_CHECKING:
    from modules.config.PartConfig import PartConfig
    from modules.config.TrainConfig import TrainConfig
    from modules.data.Batch import Batch
    from modules.families.Family import Family
    from modules.methods.layers import Preset
    from modules.weights.BaseModel import BaseModel


class Method(ABC):
    """One way to train a family's model.

    name: as in the settings; modules/config/methods.py holds what others may know of it.
    """

    name: ClassVar[str]

    @property
    def facts(self) -> MethodFacts:
        return METHODS[self.name]

    def trainable(self, family: Family) -> Collection[str]:
        """The components of a family's models that the method can train; none where it can't train the family."""
        return self.facts.trainable(family)

    @abstractmethod
    def components(self, family: Family, config: TrainConfig) -> dict[str, PartConfig]:
        """The components that train, with their own settings: learning rate, weight decay, end."""

    def layer_presets(self, parts: Mapping[str, PartConfig], config: TrainConfig) -> dict[str, Preset]:
        """Component -> the kind of layers among which the patterns of its settings choose; none where they don't.

        parts: settings of the components that train.
        """
        return {}

    @abstractmethod
    def attach(self, base: BaseModel, config: TrainConfig) -> None:
        """Makes the components, already in memory, ready to train: what trains requires a gradient, nothing else."""

    @abstractmethod
    def loss(self, base: BaseModel, config: TrainConfig) -> Loss:
        """The module whose forward is the loss; what trains is registered in it."""

    @abstractmethod
    def check_output(self, base: BaseModel, config: TrainConfig) -> None:
        """Raises WeightsError where a format that is asked for has no names for the model's layers; after `attach`."""

    @abstractmethod
    def save(
        self, base: BaseModel, config: TrainConfig, folder: Path, name: str, metadata: dict[str, str]
    ) -> list[Path]:
        """Writes the trained model for other programs; returns the files and folders made."""

    @abstractmethod
    def saved_bytes(self, base: BaseModel, config: TrainConfig) -> int:
        """About how much `save` writes."""


class Loss(nn.Module):
    """The loss of a batch as a module, so that a data-parallel wrapper sees every parameter that trains.

    Its children are the trained components by name; frozen ones are reached through `base`, unregistered.
    unused_parameters: whether a step may leave some of what trains without a gradient, as the family says: weights that
        nothing reaches, or an expert that has none of the step's timesteps.
    """

    def __init__(self, base: BaseModel, trained: list[str]):
        super().__init__()
        self.base = base
        for name in trained:
            self.add_module(name, base.module(name))
        family = base.family
        idle = family.partly_unused if family.experts is None else (*family.partly_unused, *family.denoisers)
        self.unused_parameters = any(name in idle for name in trained)

    def forward(self, batch: Batch) -> tuple[Tensor, int, dict[str, Tensor]]:
        """(loss summed over the batch, its number of samples, further sums by name)."""
        raise NotImplementedError
