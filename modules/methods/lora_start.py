"""Starts training from an existing LoRA: reads and checks the file, and adds its adapters to the modules."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, cast

from modules.config.errors import UserError
from modules.weights.errors import WeightsError
from modules.weights.lora_family import check_family
from modules.weights.lora_files import ADAPTER
from modules.weights.lora_layers import LoraLayer
from modules.weights.lora_reading import read_layers
from modules.weights.LoraSource import LoraSource
from modules.weights.lycoris_files import (
    LycorisLayer,
    add_lycoris,
    is_lycoris,
    path_in_module,
    read_lycoris,
    read_norms,
    weight_shape,
)

if TYPE_CHECKING:
    from torch import nn

    from modules.config.TrainConfig import TrainConfig
    from modules.families.Family import Family
    from modules.weights.libraries import Model


@dataclass(frozen=True)
class LoraStart:
    """The adapters that a LoRA file has for one component. layers, norms: by path, as in a diffusers LoRA file."""

    layers: Mapping[str, LoraLayer]
    norms: Mapping[str, LycorisLayer] = field(default_factory=dict)

    def add_to(self, module: Model, component: str, config: TrainConfig) -> None:
        """Adds them with the file's ranks, alphas and layers. Raises UserError if a layer does not fit."""
        add_started_adapter(module, component, self.layers, config)
        if self.norms:
            LycorisStart(self.norms).add_to(module, component, config)


@dataclass(frozen=True)
class LycorisStart:
    """The same of adapters in LyCORIS's format."""

    layers: Mapping[str, LycorisLayer]

    def add_to(self, module: Model, component: str, config: TrainConfig) -> None:
        import torch

        named = {path_in_module(module, path): layer for path, layer in self.layers.items()}
        try:
            # at least float32: the model's dtype may be less precise than the file
            dtype = torch.promote_types(getattr(torch, config.model.weight_dtype), torch.float32)
            if config.lora.composes_weights:
                check_composable(module, [path for path, layer in named.items() if layer.kind != "norm"], config)
            add_lycoris(module, named, ADAPTER, dtype)
        except (ValueError, AttributeError) as error:
            raise UserError(
                f"lora.start_from '{config.lora.start_from}' was made for a different model ({error} the {component} "
                "of this one); choose a file made for the same base model."
            ) from error


def check_composable(module: Model, targets: Sequence[str], config: TrainConfig) -> None:
    """Raises UserError if a target layer of a LoHa or LoKr has a weight in 4 bits, whose shape PEFT can't tell."""
    for path in targets:
        layer = dict(module.named_modules()).get(path)
        weight, shape = getattr(layer, "weight", None), weight_shape(layer)
        if weight is not None and shape is not None and tuple(weight.shape) != shape:
            raise UserError(
                f"lora.adapter {config.lora.adapter}: the layer {path} is quantized to 4 bits, and only lora can be "
                "added to such layers; use a base model in 8 bits or more."
            )


def read_start(
    family: Family,
    config: TrainConfig,
    trained: Collection[str],
    note: Callable[[str], None] = lambda text: None,
) -> dict[str, LoraStart | LycorisStart]:
    """The adapters in the file lora.start_from, by component; empty if the setting is empty.

    trained: the components that train. note: as in `read_layers`.
    Raises UserError if the file can't be read, was made for another family, or has adapters for a component that does
    not train, which would be missing from the saved LoRA.
    """
    if not config.lora.start_from:
        return {}
    path = Path(os.path.expanduser(config.lora.start_from))
    wanted = config.lora.adapter
    try:
        first = LoraSource(path)
        check_family(first, family)
        is_other = is_lycoris(first.shapes)
        if first.norms and not config.lora.train_norms:
            raise UserError(
                f"lora.start_from '{path}' changes norm layers: switch lora.train_norms on, or choose another file."
            )
        files = [path]
        for expert in family.denoisers[1:]:  # in separate files, as they are saved
            file = path.with_name(f"{path.stem}_{expert}{path.suffix}")
            files += [file] if file.is_file() else []
        starts: dict[str, LoraStart | LycorisStart] = {}
        for file in files:
            if is_other:
                starts |= {name: LycorisStart(layers) for name, layers in read_lycoris(file, family).items()}
            else:
                norms = read_norms(file, family)
                read = read_layers(file, family, but_norms=True, note=note)
                starts |= {name: LoraStart(read.get(name, {}), norms.get(name, {})) for name in {**read, **norms}}
    except WeightsError as error:
        raise UserError(f"lora.start_from {error}") from error
    for component, start in starts.items():
        part = "denoiser" if component in family.denoisers else "text_encoder"
        if component not in trained:
            raise UserError(
                f"lora.start_from '{path}' has a LoRA for the {component}, which does not train: turn on {part}.train, "
                "or choose another file."
            )
        kinds = {getattr(layer, "kind", "lora") for layer in start.layers.values()} - {"norm"}
        if not kinds:
            raise UserError(
                f"lora.start_from '{path}' holds only norm layers for the {component}, and no {wanted}: choose another "
                "file."
            )
        if kinds != {wanted}:
            held = " and ".join(sorted(kinds))
            raise UserError(f"lora.start_from '{path}' holds {held}: set lora.adapter to it, or choose another file.")
        if len({getattr(layer, "magnitude", None) is None for layer in start.layers.values()}) > 1:
            raise UserError(
                f"lora.start_from '{path}': only some layers of the {component} use DoRA; choose another file."
            )
    return starts


def add_started_adapter(module: Model, component: str, layers: Mapping[str, LoraLayer], config: TrainConfig) -> None:
    """Adds the adapters of a file to a module, with the file's ranks, alphas and layers and the configured dropout.

    layers: by path, as in a diffusers LoRA file. Raises UserError if a layer does not fit the module.
    """
    import torch
    from peft import LoraConfig

    named = {path_in_module(module, path): layer for path, layer in layers.items()}
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
    shape = weight_shape(dict(module.named_modules()).get(path))
    if shape is None or layer.down.shape[1:] != shape[1:] or layer.up.shape[0] != shape[0]:
        raise UserError(
            f"lora.start_from '{file}' was made for a different model: its layer '{path}' does not fit the "
            f"{component} of this one; choose a LoRA made for the same base model."
        )
