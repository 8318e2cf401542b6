"""Which layers of a LoRA file a model has, so that a file means the same wherever it is used with a model."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from modules.weights.errors import WeightsError
from modules.weights.lora_layers import LoraLayer

if TYPE_CHECKING:
    from torch import Tensor, nn

    from modules.weights.libraries import Model

# Component -> path of the layer, as in diffusers' format -> its adapter, a LoRA's or a LycorisLayer.
_Layers = Mapping[str, Mapping[str, Any]]


def fitting_layers(
    file: str | Path, layers: _Layers, modules: Mapping[str, Model | None], note: Callable[[str], None]
) -> dict[str, dict[str, Any]]:
    """The layers that a model has. note: told about the others, in one sentence.

    modules: component -> the module; None, or left out, for one that the model lacks.
    Raises WeightsError, starting with the file, if the model has none of the layers, or has one in another size than a
    LoRA. The sizes of other adapters are left to `add_lycoris`.
    """
    fitting: dict[str, dict[str, Any]] = {}
    lacking = []
    for component, of_component in layers.items():
        module = modules.get(component)
        named = {} if module is None else dict(module.named_modules())
        for path, layer in of_component.items():
            target = None if module is None else named.get(path_in_module(module, path))
            if target is None:
                lacking.append(f"{component}.{path}")
            elif isinstance(layer, LoraLayer) and not _has_size_of(layer, weight_shape(target)):
                raise _made_for_another(file, f"{component}.{path}")
            else:
                fitting.setdefault(component, {})[path] = layer
    if lacking and not fitting:
        raise _made_for_another(file, lacking[0])
    if lacking:
        more = f" and {len(lacking) - 1} more" if len(lacking) > 1 else ""
        note(f"'{file}': its '{lacking[0]}'{more} can't be applied, because this model has no such layer.")
    return fitting


def path_in_module(module: Model, layer: str) -> str:
    """The path of a layer in the loaded module, from its path in a file: transformers 5 dropped a level."""
    return layer if hasattr(module, "text_model") else layer.removeprefix("text_model.")


def weight_shape(layer: nn.Module | None) -> tuple[int, ...] | None:
    """The shape of a layer's weight before quantization and without adapters; None without a weight."""
    from peft.tuners.tuners_utils import BaseTunerLayer
    from torch import nn

    if isinstance(layer, BaseTunerLayer):
        layer = layer.get_base_layer()
    if isinstance(layer, nn.Linear):
        return layer.out_features, layer.in_features
    weight = getattr(layer, "weight", None)
    return None if weight is None else tuple(weight.shape)


def _has_size_of(layer: LoraLayer, shape: tuple[int, ...] | None) -> bool:
    if shape is None or layer.down.shape[1:] != shape[1:]:
        return False
    return all(len(part) == shape[0] for part in _of_outputs(layer))


def _of_outputs(layer: LoraLayer) -> list[Tensor]:
    return [layer.up] if layer.magnitude is None else [layer.up, layer.magnitude]


def _made_for_another(file: str | Path, layer: str) -> WeightsError:
    return WeightsError(
        f"'{file}': was made for a different model; its layer '{layer}' does not fit this one; choose a LoRA made for "
        "this model."
    )
