"""The interface of a training method: which components it trains, with which loss, and what it saves."""

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
    from modules.methods.max_norm import MaxNorm
    from modules.weights.BaseModel import BaseModel


class Method(ABC):
    """A way to train a model.

    name: as in the settings. modules/config/methods.py holds the facts about the method that other modules need.
    """

    name: ClassVar[str]

    @property
    def facts(self) -> MethodFacts:
        return METHODS[self.name]

    def trainable(self, family: Family) -> Collection[str]:
        """The components of a family that the method can train; empty if it does not support the family."""
        return self.facts.trainable(family)

    @abstractmethod
    def components(self, family: Family, config: TrainConfig) -> dict[str, PartConfig]:
        """The components to train, with their own settings such as learning rate and weight decay."""

    def layer_presets(self, parts: Mapping[str, PartConfig], config: TrainConfig) -> dict[str, Preset]:
        """Component -> the preset of layers that the patterns in its settings select from; empty without patterns.

        parts: the settings of the trained components.
        """
        return {}

    def check_base(self, base: BaseModel, config: TrainConfig) -> list[str]:
        """Checks files that the method's settings name against the model's layers, without loading its weights.

        Returns warnings of what is left out of them. Raises UserError if a file does not fit.
        """
        return []

    @abstractmethod
    def attach(self, base: BaseModel, config: TrainConfig) -> None:
        """Prepares the loaded components for training; afterwards exactly what trains requires gradients."""

    def reads_weights(self, config: TrainConfig) -> bool:
        """Whether `attach` needs the values of the components' weights."""
        return True

    @abstractmethod
    def loss(self, base: BaseModel, config: TrainConfig) -> Loss:
        """The module whose forward computes the loss, with the trained components as submodules."""

    def rate_factor(self, parameter: str, config: TrainConfig) -> float:
        """The factor of the learning rate of a trained parameter, from its name in the component."""
        return 1.0

    def norm_limit(self, base: BaseModel, config: TrainConfig) -> MaxNorm | None:
        """Scales the trained weights down to a limit after each step; None without a limit."""
        return None

    @abstractmethod
    def check_output(self, base: BaseModel, config: TrainConfig) -> None:
        """Raises WeightsError if an output format can't represent the trained layers. Called after `attach`."""

    @abstractmethod
    def save(
        self, base: BaseModel, config: TrainConfig, folder: Path, name: str, metadata: dict[str, str]
    ) -> list[Path]:
        """Saves the trained model for use in other programs; returns the files and folders written."""

    @abstractmethod
    def saved_bytes(self, base: BaseModel, config: TrainConfig) -> int:
        """The approximate number of bytes that `save` writes."""


class Loss(nn.Module):
    """The loss of a batch, as a module so that DistributedDataParallel sees all trained parameters.

    Its children are the trained components by name; frozen ones are accessed through `base` and not registered.
    unused_parameters: whether some trained parameters may get no gradient in a step, because the forward pass does not
        use them or no timestep of the step belongs to their expert.
    same_passes: whether every batch must make the same passes, also those that it does not need: ranks that share the
        weights make each pass together. Off unless set.
    """

    same_passes = False

    def __init__(self, base: BaseModel, trained: list[str]):
        super().__init__()
        self.base = base
        for name in trained:
            self.add_module(name, base.module(name))
        self.unused_parameters = may_be_unused(base.family, trained)

    def forward(self, batch: Batch) -> tuple[Tensor, int, dict[str, Tensor]]:
        """Returns (loss summed over the batch, number of samples, sums of metrics by name)."""
        raise NotImplementedError


def may_be_unused(family: Family, trained: Collection[str]) -> bool:
    """Whether a step may leave some parameters of the `trained` components without a gradient."""
    # one of several experts may have no timestep in a step; a single one that trains has all of them
    experts = [name for name in trained if family.experts and name in family.denoisers]
    return len(experts) > 1 or any(name in family.partly_unused for name in trained)
