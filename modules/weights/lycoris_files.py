"""Files in LyCORIS's format, which hold all kinds of adapters but LoRA, and which ComfyUI reads.

A layer of a file has tensors such as `<name>.hada_w1_a` or `<name>.lokr_w2`, and `<name>.alpha`. Its name is that in
the family's LoRAs for ComfyUI where these have no fused layers, else the path in diffusers, such as
`transformer.transformer_blocks.0.attn.to_q`.

What the tensors of a kind mean stands in its file in `modules/weights/adapters`. Beside adapters of any kind, files may
hold those of norm layers, see `norm_layers.py`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from modules.config.adapters import tensor_marks
from modules.weights.adapters.kinds import LycorisLayer, kinds_by_tensor, layers_in, lycoris_kind
from modules.weights.errors import WeightsError
from modules.weights.foreign_names import single_name
from modules.weights.kohya_names import kohya_name
from modules.weights.layer_tables import Place, layer_table
from modules.weights.lora_fitting import fitting_layers, path_in_module
from modules.weights.lora_layers import NO_METADATA, LoraMetadata
from modules.weights.LoraSource import LoraSource
from modules.weights.safe import save_tensors

if TYPE_CHECKING:
    import torch
    from diffusers.pipelines.pipeline_utils import DiffusionPipeline
    from torch import Tensor

    from modules.families.Family import Family
    from modules.weights.libraries import Model

# Component -> path of the layer in it -> its adapter.
LycorisLayers = dict[str, dict[str, LycorisLayer]]


def is_lycoris(names: Iterable[str]) -> bool:
    """Whether the tensors of a file, of these names, are adapters of one of these kinds."""
    marks = tuple(tensor_marks())
    return any(name.rpartition(".")[2].startswith(marks) for name in names)


def lycoris_layers(module: Model, adapter: str) -> dict[str, LycorisLayer]:
    """The layers of a PEFT adapter in a module, by their paths as in a file of diffusers."""
    prefix = "text_model." if type(module).__name__ == "CLIPTextModel" and not hasattr(module, "text_model") else ""
    return {prefix + path: layer for path, layer in layers_in(module, adapter)}


def file_tensors(layers: LycorisLayers, family: Family, dtype: torch.dtype | None = None) -> dict[str, Tensor]:
    """The tensors of a file. dtype: of all but the alphas; None keeps their own."""
    import torch

    tensors = {}
    for component, of_component in layers.items():
        for path, layer in of_component.items():
            name = _file_name(family, component, path)
            for part, tensor in layer.parts.items():
                is_flag = not tensor.is_floating_point()
                tensors[f"{name}.{part}"] = tensor if dtype is None or is_flag else tensor.to(dtype)
            if layer.alpha is not None:
                tensors[f"{name}.alpha"] = torch.tensor(layer.alpha)
    return tensors


def _file_name(family: Family, component: str, path: str) -> str:
    """The name of a layer in a file: one that ComfyUI knows, where it has one for it."""
    if component in family.kohya_prefixes:
        return kohya_name(family, component, path)
    names = family.layer_names.get(component)
    # one adapter can't become a part of a fused layer's
    own = single_name(names, path) if names and not names.fused else None
    return own or f"{component}.{path}"


def save_lycoris(
    path: Path,
    layers: LycorisLayers,
    family: Family,
    dtype: torch.dtype | None = None,
    metadata: LoraMetadata = NO_METADATA,
) -> list[Path]:
    """Writes `<path>.safetensors`, and `<path>_<denoiser>.safetensors` for each further denoiser; returns the files.

    The denoisers of a model have the same layers, so that a file could not tell them apart.
    """
    first, *others = family.denoisers
    written = []
    for expert in ("", *(name for name in others if name in layers)):
        own = {first: layers[expert]} if expert else {name: of for name, of in layers.items() if name not in others}
        if own:
            file = path.with_name(f"{path.name}{f'_{expert}' if expert else ''}.safetensors")
            save_tensors(file, file_tensors(own, family, dtype), metadata.of(expert))
            written.append(file)
    return written


def load_lycoris(
    pipe: DiffusionPipeline, path: Path, layers: LycorisLayers, adapter: str, note: Callable[[str], None]
) -> None:
    """Adds the adapters of a file to a pipeline. note: as in `fitting_layers`.

    Raises WeightsError for a file that does not fit, and adds nothing.
    """
    modules = {component: getattr(pipe, component, None) for component in layers}
    for component, of_component in fitting_layers(path, layers, modules, note).items():
        module: Any = getattr(pipe, component)
        named = {path_in_module(module, layer): of for layer, of in of_component.items()}
        try:
            add_lycoris(module, named, adapter)
        except (ValueError, AttributeError) as error:
            raise WeightsError(
                f"'{path}': was made for a different model ({error} a {type(pipe).__name__}); choose one made for this "
                "model."
            ) from error


def read_norms(file: LoraSource, family: Family) -> LycorisLayers:
    """The norm layers of a family's file, whatever adapters its other layers have. Raises as `read_lycoris`."""
    return _layers(file, family, {name: file.tensors[name] for name in file.norms})


def read_lycoris(source: str | Path | LoraSource, family: Family) -> LycorisLayers:
    """The layers of a family's file.

    Raises WeightsError if the file can't be read, or has tensors that belong to no such layer of the family.
    """
    file = source if isinstance(source, LoraSource) else LoraSource(source)
    return _layers(file, family, file.tensors)


def _layers(file: LoraSource, family: Family, tensors: Mapping[str, Tensor]) -> LycorisLayers:
    path, expert, kinds = file.path, file.expert, kinds_by_tensor()
    found: dict[tuple[str, str], dict[str, Any]] = {}
    for name, tensor in tensors.items():
        stem, _, part = name.rpartition(".")
        place = _place(path, family, name, stem)
        if part not in kinds and part != "alpha":
            raise _not_of_family(path, family, name)
        component = expert if expert and place.component in family.denoisers else place.component
        found.setdefault((component, place.paths[0]), {})[part] = tensor
    layers: LycorisLayers = {}
    for (component, layer), parts in found.items():
        alpha = parts.pop("alpha", None)
        kind = lycoris_kind(kinds[next(iter(parts))]) if parts else None
        if kind is None or not kind.is_whole(parts):
            raise WeightsError(f"'{path}': lacks a part of '{component}.{layer}'; download or export it again.")
        try:
            layers.setdefault(component, {})[layer] = kind.read(parts, None if alpha is None else float(alpha))
        except ValueError as error:
            raise WeightsError(f"'{path}': {error}.") from error
    return layers


def _place(path: str | Path, family: Family, name: str, layer: str) -> Place:
    """Where a layer of a file belongs. name: of one of its tensors, for messages."""
    place = layer_table(family).find(layer)
    if place is None or place.component not in family.lora_targets:
        raise _not_of_family(path, family, name)
    if len(place.paths) > 1 or place.swaps_halves:
        kind = "one adapter for" if len(place.paths) > 1 else "an adapter with the halves of"
        change = "divided" if len(place.paths) > 1 else "put in diffusers' order"
        raise WeightsError(
            f"'{path}': its '{layer}' is {kind} {', '.join(place.paths)}, which can't be {change}; choose one that was "
            "trained on diffusers' model."
        )
    return place


def _not_of_family(path: str | Path, family: Family, name: str) -> WeightsError:
    return WeightsError(
        f"'{path}': its '{name}' does not belong to such an adapter of {family.name}; choose one made for "
        f"{family.name}."
    )


def add_lycoris(
    module: Model, layers: Mapping[str, LycorisLayer], adapter: str, dtype: torch.dtype | None = None
) -> None:
    """Adds adapters to layers of a module, by their paths in it. dtype: of their weights; None: as in `layers`.

    Raises ValueError if a layer does not fit.
    """
    norms = {path: layer for path, layer in layers.items() if layer.is_norm}
    others = {path: layer for path, layer in layers.items() if not layer.is_norm}
    modules, kinds = dict(module.named_modules()), Counter(layer.kind for layer in others.values())
    for path, layer in layers.items():
        is_odd = not layer.is_norm and layer.kind != kinds.most_common(1)[0][0]
        if is_odd or path not in modules or not layer.fits(modules[path]):
            raise ValueError(f"its layer '{path}' does not fit")
    for of_kind in filter(None, (others, norms)):
        lycoris_kind(next(iter(of_kind.values())).kind).add(module, of_kind, adapter, dtype)
    module.set_adapter(adapter)
