"""Which parts of a model train, as the settings ask."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import nn

    from modules.config.TrainConfig import TrainConfig
    from modules.families.Family import Family


def trained_parts(family: Family, config: TrainConfig, trainable: set[str]) -> dict[str, float | None]:
    """Denoisers and text encoders that are switched on, among those that the method can train, with their rates."""
    parts = dict.fromkeys(family.denoisers, config.denoiser) | dict.fromkeys(family.text.encoders, config.text_encoder)
    return {name: part.learning_rate for name, part in parts.items() if part.train and name in trainable}


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
