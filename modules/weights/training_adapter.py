"""A LoRA that a denoiser has while it trains, and neither in samples nor in what is saved.

Training a distilled model with the loss of its base unlearns how to sample in few steps. A training adapter is a LoRA
that has unlearned it beforehand: what is trained on top of it learns only what the images show, and is then used
without it. Source: Ostris 2024, for FLUX.1 schnell, and 2025, for Z-Image Turbo.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from modules.weights.checksum import checksum
from modules.weights.errors import WeightsError
from modules.weights.lora_family import check_family
from modules.weights.lora_fitting import fitting_layers, path_in_module
from modules.weights.lora_layers import Layers, LoraLayer
from modules.weights.lora_reading import read_layers
from modules.weights.LoraSource import LoraSource
from modules.weights.lycoris_files import is_lycoris

if TYPE_CHECKING:
    from torch import Tensor, nn

    from modules.families.Family import Family
    from modules.weights.BaseModel import BaseModel

    Change = Callable[[Tensor, Tensor, Tensor], Tensor]  # of a layer's output, by its input and the two matrices


def read_training_adapter(file: str, family: Family, note: Callable[[str], None] = lambda text: None) -> Layers:
    """Reads the file, in diffusers' or kohya's format, or in one that diffusers converts.

    note: told about what it has for other parts, which is left out.
    Raises WeightsError, starting with the setting, if it has no plain LoRA for the denoisers of this family.
    """
    setting, path = "model.training_adapter", Path(os.path.expanduser(file))
    try:
        source = LoraSource(path)
        check_family(source, family)
        if is_lycoris(source.shapes):
            raise WeightsError(f"'{path}': is no plain LoRA; choose one.")
        layers = read_layers(source, family, note=note)
    except WeightsError as error:
        raise WeightsError.at(setting, str(error)) from error
    others = sorted(layers.keys() - set(family.denoisers))
    layers = {component: of for component, of in layers.items() if component in family.denoisers}
    if not layers:
        raise WeightsError.at(setting, f"{file!r}: has a LoRA for the {others[0]} alone; choose one for the denoiser.")
    if others:
        names = " and the ".join(others)
        note(f"{setting} {file!r}: what it has for the {names} is left out; it is added to the denoiser alone.")
    if any(layer.magnitude is not None for of_component in layers.values() for layer in of_component.values()):
        raise WeightsError.at(setting, f"{file!r}: has a DoRA, which is not added to a weight; choose a plain LoRA.")
    return layers


class TrainingAdapter:
    """The layers of a training adapter, added to what those of the loaded denoisers give.

    They are no weights of the model: they are not saved, sharded, quantized or swapped, and don't train.
    note: told about layers that the denoisers lack, which are left out. Raises WeightsError if one does not fit.
    """

    def __init__(self, base: BaseModel, layers: Layers, note: Callable[[str], None] = lambda text: None):
        self._is_added = True
        self._tensors: dict[str, Tensor] = {}
        loaded = {component: of for component, of in layers.items() if base.is_loaded(component)}
        modules = {component: base.denoiser(component) for component in loaded}
        file, setting = base.config.training_adapter, "model.training_adapter"
        try:
            fitting = fitting_layers(file, loaded, modules, lambda text: note(f"{setting} {text}"))
        except WeightsError as error:
            raise WeightsError.at(setting, str(error)) from error
        for component, of_component in fitting.items():
            self._add(base, component, of_component)

    @contextmanager
    def left_out(self) -> Iterator[None]:
        """Inside, the denoisers are without it, as they will be used."""
        self._is_added = False
        try:
            yield
        finally:
            self._is_added = True

    def digest(self) -> str:
        """Of its tensors; see `checksum`."""
        return checksum(self._tensors)

    def _add(self, base: BaseModel, component: str, layers: Mapping[str, LoraLayer]) -> None:
        denoiser = base.denoiser(component)
        modules = dict(denoiser.named_modules())
        for path, layer in layers.items():
            module = _unwrapped(modules[path_in_module(denoiser, path)])
            change = _change_of(module)
            if change is None:
                raise WeightsError.at(
                    "model.training_adapter",
                    f": its layer '{component}.{path}' is neither a linear layer nor a "
                    "convolution of images; choose one for such layers.",
                )
            down = layer.down.to(base.device, base.dtype)
            up = (layer.up.float() * (layer.alpha / layer.rank)).to(base.device, base.dtype)
            self._tensors |= {f"{component}.{path}.down": down, f"{component}.{path}.up": up}
            module.register_forward_hook(self._hook(change, down, up))

    def _hook(self, change: Change, down: Tensor, up: Tensor) -> Callable[..., Tensor | None]:
        def add(module: nn.Module, args: tuple[Tensor, ...], output: Tensor) -> Tensor | None:
            return output + change(args[0].to(down.dtype), down, up).to(output.dtype) if self._is_added else None

        return add


def _unwrapped(module: nn.Module) -> nn.Module:
    """The layer itself, without the adapter that is trained."""
    from peft.tuners.tuners_utils import BaseTunerLayer

    return module.get_base_layer() if isinstance(module, BaseTunerLayer) else module


def _change_of(module: nn.Module) -> Change | None:
    """How an adapter is applied to what the module takes; None for other kinds of layers."""
    from torch import nn
    from torch.nn import functional as F

    if isinstance(module, nn.Linear):
        return lambda values, down, up: F.linear(F.linear(values, down.flatten(1)), up.flatten(1))
    if isinstance(module, nn.Conv2d):
        # with the layer's own stride and padding
        return lambda values, down, up: F.conv2d(module._conv_forward(values, down, None), up)
    return None
