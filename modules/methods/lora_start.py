"""Starts training from an existing LoRA: reads and checks the file, and adds its adapters to the modules."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from modules.config.adapters import facts_of_adapter
from modules.config.errors import UserError
from modules.weights.adapters.kinds import ADAPTER, LycorisLayer
from modules.weights.adapters.lora import KIND as LORA
from modules.weights.errors import WeightsError
from modules.weights.lora_family import check_family
from modules.weights.lora_fitting import fitting_layers, path_in_module, weight_shape
from modules.weights.lora_layers import LoraLayer
from modules.weights.lora_reading import read_layers
from modules.weights.LoraSource import LoraSource
from modules.weights.lycoris_files import add_lycoris, is_lycoris, read_lycoris, read_norms

if TYPE_CHECKING:
    from modules.config.LoraConfig import LoraConfig
    from modules.config.TrainConfig import TrainConfig
    from modules.families.Family import Family
    from modules.weights.libraries import Model


_Adapter = TypeVar("_Adapter")


@dataclass(frozen=True)
class LoraStart:
    """The adapters that a LoRA file has for one component. layers, norms: by path, as in a diffusers LoRA file."""

    layers: Mapping[str, LoraLayer]
    norms: Mapping[str, LycorisLayer] = field(default_factory=dict)

    @property
    def kinds(self) -> set[str]:
        """The kinds of the adapters, without norms."""
        return {LORA.name} if self.layers else set()

    @property
    def all_layers(self) -> Mapping[str, LoraLayer | LycorisLayer]:
        return {**self.layers, **self.norms}

    def add_to(self, module: Model, component: str, config: TrainConfig) -> None:
        """Adds them with the file's ranks, alphas and layers. Raises UserError if a norm does not fit."""
        LORA.add(module, self.layers, config.lora.dropout)
        if self.norms:
            LycorisStart(self.norms).add_to(module, component, config)

    def restricted(self, paths: Collection[str]) -> LoraStart:
        return LoraStart(_only(self.layers, paths), _only(self.norms, paths))


@dataclass(frozen=True)
class LycorisStart:
    """The same of adapters in LyCORIS's format, norms included."""

    layers: Mapping[str, LycorisLayer]

    @property
    def kinds(self) -> set[str]:
        return {layer.kind for layer in self.layers.values() if not layer.is_norm}

    @property
    def all_layers(self) -> Mapping[str, LycorisLayer]:
        return self.layers

    def restricted(self, paths: Collection[str]) -> LycorisStart:
        return LycorisStart(_only(self.layers, paths))

    def add_to(self, module: Model, component: str, config: TrainConfig) -> None:
        import torch

        named = {path_in_module(module, path): layer for path, layer in self.layers.items()}
        try:
            # at least float32: the model's dtype may be less precise than the file
            dtype = torch.promote_types(getattr(torch, config.model.weight_dtype), torch.float32)
            check_composable(module, [path for path, layer in named.items() if not layer.is_norm], config.lora)
            add_lycoris(module, named, ADAPTER, dtype)
        except (ValueError, AttributeError) as error:
            raise UserError.at(
                "lora.start_from",
                f"'{config.lora.start_from}' was made for a different model ({error} the {component} "
                "of this one); choose a file made for the same base model.",
            ) from error


Starts = dict[str, LoraStart | LycorisStart]  # by component


def _only(layers: Mapping[str, _Adapter], paths: Collection[str]) -> dict[str, _Adapter]:
    return {path: layer for path, layer in layers.items() if path in paths}


def check_composable(module: Model, targets: Sequence[str], lora: LoraConfig) -> None:
    """Raises UserError if adapters that compose weights are for one in 4 bits, whose shape PEFT can't tell."""
    modules = dict(module.named_modules())
    for path in targets if facts_of_adapter(lora).composes_weights else ():
        layer = modules.get(path)
        weight, shape = getattr(layer, "weight", None), weight_shape(layer)
        if weight is not None and shape is not None and tuple(weight.shape) != shape:
            raise UserError.at(
                "lora.adapter",
                f"{lora.adapter}: the layer {path} is quantized to 4 bits, which it can't be "
                "added to; use a base model in 8 bits or more, or another adapter.",
            )


def read_start(
    family: Family,
    lora: LoraConfig,
    trained: Collection[str],
    note: Callable[[str], None] = lambda text: None,
) -> Starts:
    """The adapters in the file lora.start_from, by component; empty if the setting is empty.

    trained: the components that train. note: told about what the file has for others, which is left out.
    Raises UserError if the file can't be read, was made for another family, or has nothing for what trains.
    """
    if not lora.start_from:
        return {}
    path = Path(os.path.expanduser(lora.start_from))
    try:
        first = LoraSource(path)
        check_family(first, family)
        is_other = is_lycoris(first.shapes)
        if first.norms and not lora.train_norms:
            raise UserError.at(
                "lora.start_from", f"'{path}' changes norm layers: switch lora.train_norms on, or choose another file."
            )
        beside = (path.with_name(f"{path.stem}_{expert}{path.suffix}") for expert in family.denoisers[1:])
        files = [first, *(LoraSource(file) for file in beside if file.is_file())]  # of experts, as they are saved
        starts: Starts = {}
        for file in files:
            if is_other:
                starts |= {name: LycorisStart(layers) for name, layers in read_lycoris(file, family).items()}
            else:
                norms = read_norms(file, family)
                read = read_layers(file, family, but_norms=True, note=note)
                starts |= {name: LoraStart(read.get(name, {}), norms.get(name, {})) for name in {**read, **norms}}
    except WeightsError as error:
        raise UserError.at("lora.start_from", str(error)) from error
    starts = _of_trained(starts, family, trained, path, note)
    for component, start in starts.items():
        if not start.kinds:
            raise UserError.at(
                "lora.start_from",
                f"'{path}' holds only norm layers for the {component}, and no {lora.adapter}: choose another file.",
            )
        if start.kinds != {lora.adapter}:
            held = " and ".join(sorted(start.kinds))
            raise UserError.at(
                "lora.start_from", f"'{path}' holds {held}: set lora.adapter to it, or choose another file."
            )
        if len({getattr(layer, "magnitude", None) is None for layer in start.layers.values()}) > 1:
            raise UserError.at(
                "lora.start_from", f"'{path}': only some layers of the {component} use DoRA; choose another file."
            )
    return starts


def _of_trained(
    starts: Starts, family: Family, trained: Collection[str], path: Path, note: Callable[[str], None]
) -> Starts:
    """What is for components that train. note: told about the others. Raises UserError if there is nothing."""
    idle = [component for component in starts if component not in trained]
    if not idle:
        return starts
    parts = dict.fromkeys("denoiser.train" if name in family.denoisers else "text_encoder.train" for name in idle)
    what = f"for parts that are not trained ({', '.join(sorted(idle))})"
    remedy = f"turn on {' and '.join(sorted(parts))}"
    if len(idle) == len(starts):
        raise UserError.at("lora.start_from", f"'{path}': is only {what}; {remedy}, or choose another file.")
    note(
        f"lora.start_from '{path}': what it has {what} is left out, and will be missing from the saved LoRA; {remedy} "
        "to continue it, too."
    )
    return {component: start for component, start in starts.items() if component in trained}


def fitting_starts(
    starts: Starts,
    modules: Mapping[str, Model],
    lora: LoraConfig,
    note: Callable[[str], None] = lambda text: None,
) -> Starts:
    """What the model has layers for. note: told about layers that it lacks, which are left out.

    modules: the components that train; without weights is enough. Raises UserError if a LoRA's layer has another size
    in the model, or if nothing fits.
    """
    file = os.path.expanduser(lora.start_from)
    layers = {component: start.all_layers for component, start in starts.items()}
    try:
        fitting = fitting_layers(file, layers, modules, lambda text: note(f"lora.start_from {text}"))
    except WeightsError as error:
        raise UserError.at("lora.start_from", str(error)) from error
    return {component: starts[component].restricted(of_component) for component, of_component in fitting.items()}
