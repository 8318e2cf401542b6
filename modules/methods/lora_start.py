"""Starts training from an existing LoRA: reads and checks the file, and adds its adapters to the modules."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, cast

from modules.config.errors import UserError
from modules.weights.errors import WeightsError
from modules.weights.inspect import lora_family
from modules.weights.lora_files import ADAPTER
from modules.weights.lora_layers import Layers, LoraLayer, read_layers

if TYPE_CHECKING:
    from torch import nn

    from modules.config.TrainConfig import TrainConfig
    from modules.families.Family import Family
    from modules.weights.libraries import Model


def read_start(family: Family, config: TrainConfig, trained: Collection[str]) -> Layers:
    """The adapters in the file lora.start_from, by component; empty if the setting is empty.

    trained: the components that train.
    Raises UserError if the file can't be read, was made for another family, or has adapters for a component that does
    not train, which would be missing from the saved LoRA.
    """
    if not config.lora.start_from:
        return {}
    path = Path(os.path.expanduser(config.lora.start_from))
    try:
        made_for = lora_family(path)
        if made_for not in (None, family.name):
            raise UserError(
                f"lora.start_from '{path}' is a LoRA for {made_for}: set family to {made_for}, or choose one for "
                f"{family.name}."
            )
        layers = read_layers(path, family)
        for expert in family.denoisers[1:]:  # in separate files, as save_lora writes them
            file = path.with_name(f"{path.stem}_{expert}{path.suffix}")
            layers |= read_layers(file, family) if file.is_file() else {}
    except WeightsError as error:
        raise UserError(f"lora.start_from {error}") from error
    for component, adapters in layers.items():
        part = "denoiser" if component in family.denoisers else "text_encoder"
        if component not in trained:
            raise UserError(
                f"lora.start_from '{path}' has a LoRA for the {component}, which does not train: turn on {part}.train, "
                "or choose another file."
            )
        if len({layer.magnitude is None for layer in adapters.values()}) > 1:
            raise UserError(
                f"lora.start_from '{path}': only some layers of the {component} use DoRA; choose another file."
            )
    return layers


def add_started_adapter(module: Model, component: str, layers: Mapping[str, LoraLayer], config: TrainConfig) -> None:
    """Adds the adapters of a file to a module, with the file's ranks, alphas and layers and the configured dropout.

    layers: by path, as in a diffusers LoRA file. Raises UserError if a layer does not fit the module.
    """
    import torch
    from peft import LoraConfig

    named = {_path_in_module(module, path): layer for path, layer in layers.items()}
    for path, layer in named.items():
        _check_fits(module, component, path, layer, config.lora.start_from)
    rank = Counter(layer.rank for layer in named.values()).most_common(1)[0][0]
    alpha = Counter(layer.alpha for layer in named.values()).most_common(1)[0][0]
    has_magnitude = any(layer.magnitude is not None for layer in named.values())
    module.add_adapter(
        LoraConfig(
            r=rank,
            lora_alpha=cast("int", alpha),  # declared so, but any number is fine
            rank_pattern={path: layer.rank for path, layer in named.items() if layer.rank != rank},
            alpha_pattern={path: layer.alpha for path, layer in named.items() if layer.alpha != alpha},
            lora_dropout=config.lora.dropout,
            target_modules=list(named),
            use_dora=has_magnitude,
        )
    )
    with torch.no_grad():
        for path, layer in named.items():
            adapted = module.get_submodule(path)
            values = {"lora_A": layer.down, "lora_B": layer.up}
            if layer.magnitude is not None:
                values["lora_magnitude_vector"] = layer.magnitude
            for name, value in values.items():
                parameter = getattr(adapted, name)[ADAPTER].weight
                # at least float32: the model's dtype may be less precise than the file
                dtype = torch.promote_types(parameter.dtype, torch.float32)
                parameter.data = value.reshape(parameter.shape).to(parameter.device, dtype)


def _check_fits(module: nn.Module, component: str, path: str, layer: LoraLayer, file: str) -> None:
    """Raises UserError for a layer that the module lacks or that has another shape; peft would ignore it silently."""
    shape = _weight_shape(dict(module.named_modules()).get(path))
    if shape is None or layer.down.shape[1:] != shape[1:] or layer.up.shape[0] != shape[0]:
        raise UserError(
            f"lora.start_from '{file}' was made for a different model: its layer '{path}' does not fit the "
            f"{component} of this one; choose a LoRA made for the same base model."
        )


def _weight_shape(layer: nn.Module | None) -> tuple[int, ...] | None:
    """The shape of a layer's weight before quantization; None without a weight."""
    from torch import nn

    if isinstance(layer, nn.Linear):
        return layer.out_features, layer.in_features
    weight = getattr(layer, "weight", None)
    return None if weight is None else tuple(weight.shape)


def _path_in_module(module: nn.Module, path: str) -> str:
    # transformers 5 dropped the `text_model.` level of some encoders; files still have it
    return path if hasattr(module, "text_model") else path.removeprefix("text_model.")
