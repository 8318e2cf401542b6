"""LoRA and the other kinds of adapters: small trained weights for layers of the selected components.

Also supports the scaling of rsLoRA (Kalajdzievski 2023, arXiv 2312.03732). The kinds are in `modules/weights/adapters`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import nn

from modules.config.adapters import facts_of_adapter
from modules.config.errors import UserError
from modules.layers.LoraLinear import fuse_lora
from modules.methods.adapter_dropout import add_dropout
from modules.methods.DenoisingLoss import DenoisingLoss
from modules.methods.kohya_metadata import expert_metadata, kohya_metadata
from modules.methods.layers import (
    check_layer_ranks,
    check_patterns,
    layer_ranks,
    matching_layers,
    norm_layers,
    preset_layers,
)
from modules.methods.lora_start import check_composable, fitting_starts, read_start
from modules.methods.max_norm import MaxNorm
from modules.methods.Method import Method
from modules.methods.parts import part_path, prepare_for_training, trained_in, trained_parts
from modules.weights.adapters.kinds import ADAPTER, adapter_kind
from modules.weights.lora_files import AdaptedModel, LoraFormat, check_lora, kohya_bytes, save_lora
from modules.weights.lora_layers import LoraMetadata
from modules.weights.lycoris_files import file_tensors, lycoris_layers, save_lycoris
from modules.weights.norm_layers import add_norm_adapters

if TYPE_CHECKING:
    from torch import Tensor

    from modules.config.LoraConfig import LoraConfig
    from modules.config.PartConfig import PartConfig
    from modules.config.TrainConfig import TrainConfig
    from modules.families.Family import Family
    from modules.methods.layers import Preset
    from modules.weights.BaseModel import BaseModel
    from modules.weights.libraries import Model
    from modules.weights.lycoris_files import LycorisLayers

MAGNITUDE = "lora_magnitude_vector"  # peft's name for the magnitude that DoRA trains


class Lora(Method):
    name = "lora"

    def components(self, family: Family, config: TrainConfig) -> dict[str, PartConfig]:
        return trained_parts(family, config, set(self.trainable(family)))

    def layer_presets(self, parts: Mapping[str, PartConfig], config: TrainConfig) -> dict[str, Preset]:
        # a LoRA that training starts from determines the layers
        return {} if config.lora.start_from else dict.fromkeys(parts, config.lora.targets)

    def adapted_parts(self, family: Family, config: TrainConfig) -> dict[str, PartConfig]:
        """The components that get adapters; a method may train something else in others."""
        return self.components(family, config)

    def bundle(self, base: BaseModel, config: TrainConfig) -> dict[str, Tensor]:
        """Further tensors for the file in kohya's format."""
        return {}

    def check_base(self, base: BaseModel, config: TrainConfig) -> list[str]:
        warnings: list[str] = []
        if start := read_start(base.family, config.lora, self._adapted_in(base, config)):
            fitting_starts(start, {name: base.meta_module(name) for name in start}, config.lora, warnings.append)
        return warnings

    def attach(self, base: BaseModel, config: TrainConfig) -> None:
        parts = self._adapted_in(base, config)
        start = read_start(base.family, config.lora, parts)
        start = fitting_starts(start, {name: base.module(name) for name in start}, config.lora) if start else start
        candidates = _candidates(base, set(parts) - set(start), config.lora.targets)
        check_patterns(base.family, parts, candidates)
        check_layer_ranks(config.lora.layer_ranks, candidates)
        for name, part in parts.items():
            module = base.module(name)
            module.requires_grad_(False)
            norms = norm_layers(base.family, name, module, part) if config.lora.train_norms else []
            if name in start:
                start[name].add_to(module, name, config)
            else:
                _add_adapter(base.family, name, module, part, config.lora)
            if norms:
                add_norm_adapters(module, norms, ADAPTER)
            _upcast_trained(module)
            _match_gradient_strides(module, config.model.channels_last)
            add_dropout(module, config.lora)
            fuse_lora(module)
            prepare_for_training(module, config.model.gradient_checkpointing)

    def reads_weights(self, config: TrainConfig) -> bool:
        return config.lora.dora or bool(config.lora.start_from)  # magnitudes start at the norms of the weights

    def loss(self, base: BaseModel, config: TrainConfig) -> DenoisingLoss:
        return DenoisingLoss(base, list(trained_in(self, base, config)), config)

    def rate_factor(self, parameter: str, config: TrainConfig) -> float:
        # LoRA+ (Hayou et al. 2024, arXiv 2402.12354)
        return config.lora.plus_ratio if ".lora_B." in parameter else 1.0

    def norm_limit(self, base: BaseModel, config: TrainConfig) -> MaxNorm | None:
        limit = config.lora.max_norm
        return None if limit is None else MaxNorm(self._adapted(base, config).values(), limit)

    def check_output(self, base: BaseModel, config: TrainConfig) -> None:
        formats = self._formats(base, config)
        if formats == "lycoris":
            file_tensors(self._lycoris_layers(base, config), base.family)
        else:
            check_lora(self._adapted_model(base, config), formats)

    def save(
        self, base: BaseModel, config: TrainConfig, folder: Path, name: str, metadata: dict[str, str]
    ) -> list[Path]:
        dtype = getattr(torch, config.output.dtype)
        common = {**metadata, **kohya_metadata(base, config, metadata.get("steps"))}
        written = LoraMetadata(common, expert_metadata(base, config.model))
        formats = self._formats(base, config)
        if formats == "lycoris":
            layers = self._lycoris_layers(base, config)
            return save_lycoris(folder / name, layers, base.family, dtype, written)
        bundle = self.bundle(base, config) if formats != "diffusers" else {}
        if config.lora.train_norms:  # beside a LoRA, the only adapters of the other kinds
            bundle |= file_tensors(self._lycoris_layers(base, config), base.family, dtype)
        return save_lora(folder / name, self._adapted_model(base, config), formats, dtype, written, bundle)

    def saved_bytes(self, base: BaseModel, config: TrainConfig) -> int:
        adapters = (param for module in self._adapted(base, config).values() for param in module.parameters())
        numbers = sum(param.numel() for param in adapters if param.requires_grad)
        num_files = self.num_formats(base, config)
        bundled = 0
        if self._formats(base, config) not in ("diffusers", "lycoris"):
            bundled = sum(tensor.nbytes for tensor in self.bundle(base, config).values())
            if base.family.layer_names:
                # fused layers are larger than their parts
                dtype = getattr(torch, config.output.dtype)
                bundled += kohya_bytes(self._adapted_model(base, config), dtype)
                num_files -= 1
        return num_files * numbers * getattr(torch, config.output.dtype).itemsize + bundled

    def _formats(self, base: BaseModel, config: TrainConfig) -> LoraFormat | Literal["lycoris"]:
        """Those that the family has, and that can hold the adapters: with `layer_names` no DoRA, nor text encoders."""
        if facts_of_adapter(config.lora).is_in_lycoris_files:
            return "lycoris"
        if config.lora.train_norms:
            return "single_file"  # which the settings made sure of
        family, parts = base.family, self._adapted_in(base, config)
        fits = family.layer_names and not config.lora.dora and all(name in family.layer_names for name in parts)
        return config.output.format if family.kohya_prefixes or fits else "diffusers"

    def num_formats(self, base: BaseModel, config: TrainConfig) -> int:
        """How many files hold the same adapters."""
        return 2 if self._formats(base, config) == "both" else 1

    def _adapted(self, base: BaseModel, config: TrainConfig) -> dict[str, Model]:
        return {part: base.module(part) for part in self._adapted_in(base, config)}

    def _adapted_model(self, base: BaseModel, config: TrainConfig) -> AdaptedModel:
        first, *others = base.family.denoisers
        # diffusers loads the LoRAs of the others from separate files under the name of the first
        return AdaptedModel(self._adapted(base, config), type(base.pipe), dict.fromkeys(others, first))

    def _adapted_in(self, base: BaseModel, config: TrainConfig) -> dict[str, PartConfig]:
        chosen = self.adapted_parts(base.family, config)
        return {name: part for name, part in trained_in(self, base, config).items() if name in chosen}

    def _lycoris_layers(self, base: BaseModel, config: TrainConfig) -> LycorisLayers:
        return {part: lycoris_layers(module, ADAPTER) for part, module in self._adapted(base, config).items()}


METHOD = Lora()


def target_modules(
    family: Family, component: str, module: nn.Module, targets: Preset, part: PartConfig | None = None
) -> list[str]:
    """The layers of a component that get an adapter, as full names.

    targets: "attention" (its projections), "attention_mlp" (and the feed-forward layers), "linear" (every linear layer
    of the blocks), "linear_conv" (and every convolution of the blocks). part: its patterns leave some of them.
    """
    names = preset_layers(family, component, module, targets)
    if not names:
        raise UserError.at(
            "lora.targets", f"{targets!r}: the {component} of this model has no such layers; use linear."
        )
    return matching_layers(names, part_path(family, component), part, component) if part else names


def _candidates(base: BaseModel, components: Collection[str], targets: Preset) -> dict[str, list[str]]:
    return {name: target_modules(base.family, name, base.module(name), targets) for name in sorted(components)}


def _add_adapter(family: Family, component: str, module: Model, part: PartConfig, settings: LoraConfig) -> None:
    targets = target_modules(family, component, module, settings.targets, part)
    check_composable(module, targets, settings)
    adapter_kind(settings.adapter).add_new(module, targets, settings, _patterns(module, targets, settings))


def _patterns(module: nn.Module, targets: Collection[str], settings: LoraConfig) -> dict[str, Any]:
    """PEFT's patterns of rank and alpha: for the layers of `layer_ranks`, and for the convolutions that LoCon's
    `conv_dim` means, larger than 1 x 1."""
    layers = [(name, module.get_submodule(name)) for name in targets]
    large = [name for name, layer in layers if isinstance(layer, nn.Conv2d) and layer.kernel_size != (1, 1)]
    values = {"rank_pattern": settings.conv_rank, "alpha_pattern": settings.conv_alpha}
    found = {pattern: dict.fromkeys(large, value) for pattern, value in values.items() if value is not None}
    if ranks := layer_ranks(targets, settings.layer_ranks):
        found["rank_pattern"] = {**found.get("rank_pattern", {}), **ranks}
    return found


def _upcast_trained(module: nn.Module) -> None:
    # adapters are small, so float32 costs little and keeps their updates from being lost to bf16 rounding
    for param in module.parameters():
        if param.requires_grad and param.dtype in (torch.bfloat16, torch.float16):
            param.data = param.data.float()


def _match_gradient_strides(module: nn.Module, channels_last: bool) -> None:
    """Gives the LoRAs of convolutions the strides of their gradients, which follow the activations.

    DistributedDataParallel warns about gradients with other strides and copies them one by one.
    """
    loras = {name: param for name, param in module.named_parameters() if ".lora_" in name}
    trained = {name: param for name, param in loras.items() if param.requires_grad and param.dim() == 4}
    has_dora = any(MAGNITUDE in name for name in trained)
    for name, param in trained.items():
        is_pointwise = param.shape[2:] == (1, 1)
        if MAGNITUDE in name:  # peft creates it by transposing
            param.data = param.data.clone(memory_format=torch.contiguous_format)
        elif channels_last and (is_pointwise or not has_dora):  # DoRA takes flat views of larger kernels
            param.data = param.data.clone(memory_format=torch.channels_last)
