"""LoRA (Hu et al. 2021, arXiv 2106.09685) by peft: small adapters beside the layers of the chosen parts."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import nn

from modules.config.errors import UserError
from modules.methods.DenoisingLoss import DenoisingLoss
from modules.methods.parts import prepare_for_training, trained_in, trained_parts
from modules.weights.lora_files import save_lora

if TYPE_CHECKING:
    from modules.config.TrainConfig import TrainConfig
    from modules.families.Family import Family
    from modules.weights.BaseModel import BaseModel


class Lora:
    inputs = "latents"

    def components(self, family: Family, config: TrainConfig) -> dict[str, float | None]:
        return trained_parts(family, config, set(family.lora_targets))

    def attach(self, base: BaseModel, config: TrainConfig) -> None:
        from peft import LoraConfig

        for name in trained_in(self, base, config):
            module = base.module(name)
            module.requires_grad_(False)
            module.add_adapter(
                LoraConfig(
                    r=config.lora.rank,
                    lora_alpha=config.lora.alpha,
                    lora_dropout=config.lora.dropout,
                    target_modules=target_modules(base.family, name, module, config.lora.targets),
                    init_lora_weights="gaussian",
                )
            )
            _keep_precise(module)
            prepare_for_training(module, config.model.gradient_checkpointing)

    def loss(self, base: BaseModel, config: TrainConfig) -> DenoisingLoss:
        return DenoisingLoss(base, list(trained_in(self, base, config)))

    def save(
        self, base: BaseModel, config: TrainConfig, folder: Path, name: str, metadata: dict[str, str]
    ) -> list[Path]:
        adapted = {part: base.module(part) for part in trained_in(self, base, config)}
        dtype = getattr(torch, config.output.dtype)
        formats = config.output.format if base.family.single_file else "diffusers"
        return save_lora(folder / name, adapted, type(base.pipe), formats, dtype, metadata)


def target_modules(family: Family, component: str, module: nn.Module, targets: str) -> list[str]:
    """The layers of a component that get an adapter, as full names.

    targets: "attention" (its projections), "attention_mlp" (and the feed-forward layers), "linear" (every linear layer
    of the blocks), "linear_conv" (and every convolution of the blocks).
    """
    kinds = {"linear": (nn.Linear,), "linear_conv": (nn.Linear, nn.Conv2d)}
    blocks = family.lora_blocks[component]
    in_blocks = {name: layer for name, layer in module.named_modules() if name.startswith(blocks)}
    if targets in kinds:
        names = [name for name, layer in in_blocks.items() if isinstance(layer, kinds[targets])]
    else:
        endings = family.lora_targets[component] + (family.lora_mlp[component] if targets == "attention_mlp" else ())
        names = [name for name in in_blocks if any(f".{name}".endswith(f".{ending}") for ending in endings)]
    if not names:
        raise UserError(f"lora.targets {targets!r}: the {component} of this model has no such layers; use linear.")
    return names


def _keep_precise(module: nn.Module) -> None:
    # adapters are small: in float32 their updates are not lost to rounding when the model is in bf16
    for param in module.parameters():
        if param.requires_grad and param.dtype in (torch.bfloat16, torch.float16):
            param.data = param.data.float()
