"""Full fine-tuning: trains the weights of the selected components, all of them or those of selected layers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, cast

import torch

from modules.config.errors import UserError
from modules.layers.block_casts import cast_by_block
from modules.methods.DenoisingLoss import DenoisingLoss
from modules.methods.layers import check_patterns, matching_layers, preset_layers
from modules.methods.parts import part_path, prepare_for_training, trained_in, trained_parts
from modules.methods.WholeModelMethod import WholeModelMethod

if TYPE_CHECKING:
    from torch import nn

    from modules.config.PartConfig import PartConfig
    from modules.config.TrainConfig import TrainConfig
    from modules.families.Family import Family
    from modules.methods.layers import Preset
    from modules.weights.BaseModel import BaseModel


class Full(WholeModelMethod):
    name = "full"

    def components(self, family: Family, config: TrainConfig) -> dict[str, PartConfig]:
        return trained_parts(family, config, set(self.trainable(family)))

    def layer_presets(self, parts: Mapping[str, PartConfig], config: TrainConfig) -> dict[str, Preset]:
        return {name: part.layers for name, part in parts.items()}

    def attach(self, base: BaseModel, config: TrainConfig) -> None:
        parts = trained_in(self, base, config)
        family = base.family
        check_patterns(family, parts, {n: preset_layers(family, n, base.module(n), p.layers) for n, p in parts.items()})
        for name, part in parts.items():
            module = base.module(name)
            for layer in trained_layers(base.family, name, module, part):
                for parameter in module.get_submodule(layer).parameters(recurse=False):
                    parameter.requires_grad_(True)
            for layer in base.family.frozen_layers.get(name, ()):
                module.get_submodule(layer).requires_grad_(False)
            if base.device.type == "cpu" and not all(param.requires_grad for param in module.parameters()):
                # on the CPU, torch 2.13 crashes in a trained channels-last GroupNorm that follows frozen layers
                # torch declares `to` without this argument
                cast("Callable[..., nn.Module]", module.to)(memory_format=torch.contiguous_format)
            if not config.optimizer.fused_backward:  # it frees each gradient before the next one is made
                cast_by_block(module)
            prepare_for_training(module, config.model.gradient_checkpointing)

    def reads_weights(self, config: TrainConfig) -> bool:
        return False

    def loss(self, base: BaseModel, config: TrainConfig) -> DenoisingLoss:
        return DenoisingLoss(base, list(trained_in(self, base, config)), config)


METHOD = Full()


def trained_layers(family: Family, component: str, module: nn.Module, part: PartConfig) -> list[str]:
    """Full names of the component's layers whose own parameters (not those of their children) are trained."""
    path = part_path(family, component)
    names = preset_layers(family, component, module, part.layers)
    if not names:
        raise UserError.at(
            f"{path}.layers", f"{part.layers!r}: the {component} of this model has no such layers; use all."
        )
    return matching_layers(names, path, part, component)
