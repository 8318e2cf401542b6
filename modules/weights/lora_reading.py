"""Reads the layers of LoRA files, whatever program wrote them, so that a file means the same wherever it is used.

A layer is found by its name (`layer_tables.py`), and a fused one is split into those that it stands for. Files with
other names are read as diffusers converts them. A layer of a part that gets a LoRA is used, or the file is refused.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from modules.weights.converted_loras import converted_layers, lost_tensors
from modules.weights.errors import WeightsError
from modules.weights.foreign_names import with_swapped_halves
from modules.weights.layer_tables import LayerTable, Place, layer_table
from modules.weights.libraries import import_pipeline
from modules.weights.lora_layers import ADAPTER_METADATA, Layers, LoraLayer
from modules.weights.LoraSource import DIFFERENCES, LoraSource, is_of_norm

if TYPE_CHECKING:
    from torch import Tensor

    from modules.families.Family import Family

_MOST_NAMED = 3  # layers in a message
_THIRD = ".lora_mid.weight"  # between the others, in LyCORIS's LoCon


def read_layers(
    source: str | Path | LoraSource,
    family: Family,
    but_norms: bool = False,
    note: Callable[[str], None] = lambda text: None,
) -> Layers:
    """Reads the layers of a family's LoRA file.

    but_norms: leave out norm layers, which are no LoRA.
    note: told about layers of parts that get no LoRA in this family, such as a text encoder, which are left out.
    Raises WeightsError if the file can't be read, has other tensors, or has layers that the family lacks.
    """
    file = source if isinstance(source, LoraSource) else LoraSource(source)
    if file.norms and not but_norms:
        raise WeightsError(
            f"'{file.path}': changes norm layers, such as '{file.norms[0]}', and can be trained, sampled and merged "
            "into a model only; choose a LoRA without."
        )
    if mids := [name for name in file.others if name.endswith(_THIRD)]:
        raise WeightsError(
            f"'{file.path}': its '{mids[0]}' is the third matrix of a Tucker decomposition, which is not read; choose "
            "a LoRA without (in LyCORIS: use_tucker=False)."
        )
    if not is_read_by_name(file, family):
        return _converted(file, family, note)
    places = {name: layer_table(family).find(name) for name in file.layers}
    if changes := file.changes():
        raise _has_more(file, changes[0])
    left_out = [name for name, place in places.items() if place and not place.component and _adds(file, name)]
    if left_out:
        note(describe_left_out(file, family, left_out))
    layers: Layers = {}
    known = {name: place for name, place in places.items() if place and place.component}
    # a layer of its own comes before a fused one, beside which some programs write both
    for name, place in sorted(known.items(), key=lambda item: len(item[1].paths)):
        component = own_component(place.component, file.expert, family)
        for path, layer in _layers_of(file, family, name, place):
            layers.setdefault(component, {}).setdefault(path, layer)
    if not layers and file.layers:
        raise WeightsError(
            f"'{file.path}': has only {_listed(left_out)}, of parts that get no LoRA in {family.name}; choose another "
            "file."
        )
    return layers


def _adds(file: LoraSource, name: str) -> bool:
    """Whether a layer of the file adds anything."""
    up = file.layers[name].get("up")
    return up is None or bool(file.tensors[up].any())


def is_read_by_name(file: LoraSource, family: Family) -> bool:
    """Whether the names of all layers tell what they belong to, so that diffusers need not convert the file."""
    table = layer_table(family)
    return not _unknown(file) and all(table.find(name) for name in file.layers)


def own_component(component: str, expert: str | None, family: Family) -> str:
    """expert: that a file is of, where each has its own and all name the first."""
    return expert if expert and component in family.denoisers else component


def describe_left_out(file: LoraSource, family: Family, names: Sequence[str]) -> str:
    return f"'{file.path}': what it has for parts that get no LoRA in {family.label} is left out: {_listed(names)}."


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - _MOST_NAMED} more" if len(names) > _MOST_NAMED else ""
    return ", ".join(f"'{name}'" for name in names[:_MOST_NAMED]) + more


def _unknown(file: LoraSource) -> list[str]:
    """The names of tensors that are neither of a LoRA nor added to a norm or bias."""
    return [name for name in file.others if not is_of_norm(name) and not name.endswith(DIFFERENCES)]


def _has_more(file: LoraSource, name: str) -> WeightsError:
    return WeightsError(
        f"'{file.path}': has more than plain LoRAs, such as '{name}', which would be lost; choose a LoRA without."
    )


def _converted(file: LoraSource, family: Family, note: Callable[[str], None]) -> Layers:
    """The layers of a file whose names only diffusers knows."""
    found = converted_layers(file, family)
    if found is None:
        table = layer_table(family)
        unknown = [name for name in file.layers if table.find(name) is None] or _unknown(file)
        raise WeightsError(
            f"'{file.path}': its layers {_listed(unknown)} do not belong to a LoRA for {family.name}; choose one for "
            f"{family.name} in diffusers' or kohya's format, or one that diffusers converts."
        )
    if lost := file.changes() or lost_tensors(file, import_pipeline(family.pipeline)):
        raise _has_more(file, lost[0])
    converted, left_out = found
    if left_out:
        note(describe_left_out(file, family, left_out))
    return {
        own_component(component, file.expert, family): {path: LoraLayer(*parts) for path, parts in of.items()}
        for component, of in converted.items()
    }


def _layers_of(file: LoraSource, family: Family, name: str, place: Place) -> Iterator[tuple[str, LoraLayer]]:
    """(path, adapter) of what a layer of the file stands for."""
    tensors = {kind: _at_least_16_bits(file.tensors[tensor]) for kind, tensor in file.layers[name].items()}
    if "down" not in tensors or "up" not in tensors:
        raise WeightsError(f"'{file.path}': lacks half of the LoRA on '{name}'; download or export it again.")
    down, up, magnitude = tensors["down"], tensors["up"], tensors.get("magnitude")
    if min(down.dim(), up.dim()) < 2 or up.shape[1] != len(down) or not len(down):
        shapes = f"{tuple(down.shape)} and {tuple(up.shape)}"
        raise WeightsError(
            f"'{file.path}': the halves of the LoRA on '{name}' have the shapes {shapes}, which don't belong together; "
            "download or export it again."
        )
    own = tensors.get("alpha")
    try:
        alpha = _alpha(file, place, len(down)) if own is None else float(own)
        if not math.isfinite(alpha):
            raise ValueError("not finite")
    except (AttributeError, TypeError, ValueError, RuntimeError, re.error) as error:
        raise WeightsError(f"'{file.path}': its settings of alpha are damaged; download or export it again.") from error
    whole = LoraLayer(down, up, alpha, None if magnitude is None else magnitude.reshape(-1))
    if len(place.paths) == 1:
        yield place.paths[0], with_swapped_halves(whole) if place.swaps_halves else whole
        return
    sizes = _outputs(file, layer_table(family), name, place, len(up))
    yield from zip(place.paths, _split(whole, sizes), strict=True)


def _at_least_16_bits(tensor: Tensor) -> Tensor:
    """Float8, which torch does not compute with, as bfloat16, which holds all of its values."""
    import torch

    return tensor.to(torch.bfloat16) if tensor.is_floating_point() and tensor.itemsize < 2 else tensor


def _outputs(file: LoraSource, table: LayerTable, name: str, place: Place, outputs: int) -> list[int]:
    """How many of a fused layer's outputs belong to each of its layers.

    As in the published model, or in the same proportions for a model of another size.
    """
    sizes = [shapes[0][0] if (shapes := table.shapes(place.component, path)) else 0 for path in place.paths]
    whole = sum(sizes)
    if not whole or any(size * outputs % whole for size in sizes):
        raise WeightsError(
            f"'{file.path}': its '{name}' has {outputs} outputs, which do not divide into those of "
            f"{', '.join(place.paths)}; choose a LoRA made for this model."
        )
    return [size * outputs // whole for size in sizes]


def _split(layer: LoraLayer, sizes: Sequence[int]) -> list[LoraLayer]:
    """The adapters of layers that are one in a file, by their numbers of outputs.

    Where each has its own share of the ranks and adds nothing by the others, it gets these alone.
    """
    ups = layer.up.split(list(sizes))
    magnitudes = [None] * len(sizes) if layer.magnitude is None else layer.magnitude.split(list(sizes))
    rank, rest = divmod(layer.rank, len(sizes))
    shares = [slice(number * rank, (number + 1) * rank) for number in range(len(sizes))]
    if rest or not all(_is_of_ranks(up, share) for up, share in zip(ups, shares, strict=True)):
        return [
            LoraLayer(layer.down, up.contiguous(), layer.alpha, magnitude)
            for up, magnitude in zip(ups, magnitudes, strict=True)
        ]
    return [
        LoraLayer(layer.down[share], up[:, share].contiguous(), layer.alpha / len(sizes), magnitude)
        for up, share, magnitude in zip(ups, shares, magnitudes, strict=True)
    ]


def _is_of_ranks(up: Tensor, ranks: slice) -> bool:
    """Whether a second matrix uses these ranks alone."""
    others = up.clone()
    others[:, ranks] = 0
    return not others.any()


def _alpha(file: LoraSource, place: Place, rank: int) -> float:
    """A layer's alpha by PEFT's rules: patterns match the end of a path, rsLoRA divides by the root of the rank."""
    settings, component, path = _settings(file), place.component, place.paths[0]
    patterns = settings.get(f"{component}.alpha_pattern", {})
    fitting = (alpha for pattern, alpha in patterns.items() if re.match(rf"(.*\.)?({pattern})$", path))
    alpha = next(fitting, settings.get(f"{component}.lora_alpha", rank))
    return float(alpha) * (rank**0.5 if settings.get(f"{component}.use_rslora") else 1.0)


def _settings(file: LoraSource) -> Mapping[str, Any]:
    try:
        settings = json.loads(file.metadata.get(ADAPTER_METADATA, "{}"))
        if not isinstance(settings, dict):
            raise ValueError("not a table")
    except (ValueError, RecursionError) as error:
        raise WeightsError(f"'{file.path}': its LoRA settings are not readable JSON; export it again.") from error
    return settings
