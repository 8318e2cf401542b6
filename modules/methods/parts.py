"""Which parts of a model train, as the settings ask."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import nn

    from modules.config.TrainConfig import TrainConfig
    from modules.families.Family import Family
    from modules.methods.Method import Method
    from modules.weights.BaseModel import BaseModel


def trained_parts(family: Family, config: TrainConfig, trainable: set[str]) -> dict[str, float | None]:
    """Denoisers and text encoders that are switched on, among those that the method can train, with their rates."""
    parts = dict.fromkeys(family.denoisers, config.denoiser) | dict.fromkeys(family.text.encoders, config.text_encoder)
    return {name: part.learning_rate for name, part in parts.items() if part.train and name in trainable}


def trained_in(method: Method, base: BaseModel, config: TrainConfig) -> dict[str, float | None]:
    """The method's components that this base has: Stable Diffusion 3, for one, also comes without T5."""
    parts = method.components(base.family, config)
    return {name: rate for name, rate in parts.items() if name in base.component_names}


def prepare_for_training(module: nn.Module, gradient_checkpointing: bool) -> None:
    """Training mode, and activations recomputed in the backward pass where asked."""
    module.train()
    if gradient_checkpointing:
        # diffusers' and transformers' names for the same switch; both recompute without reentrant autograd, which
        # data parallelism needs
        if hasattr(module, "enable_gradient_checkpointing"):
            module.enable_gradient_checkpointing()
        elif hasattr(module, "activation_checkpointing_enable"):
            module.activation_checkpointing_enable(activation_checkpointing_kwargs={"use_reentrant": False})
        else:  # its name in the transformers for Python 3.10
            module.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
