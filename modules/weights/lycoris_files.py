"""LoHa, LoKr, OFT and IA3: the adapters of a model's layers, and their files in LyCORIS's format, which ComfyUI reads.

A layer of a file has tensors such as `<name>.hada_w1_a` or `<name>.lokr_w2`, and `<name>.alpha`. Its name is that in
the family's LoRAs for ComfyUI where these have no fused layers, else the path in diffusers, such as
`transformer.transformer_blocks.0.attn.to_q`.

LoHa (Hyeon-Woo et al. 2021, arXiv 2108.06098) adds (w1_a @ w1_b) * (w2_a @ w2_b) to a weight. LoKr (Yeh et al. 2023,
arXiv 2309.14859) adds the Kronecker product of w1 and w2, each of which may be the product of two matrices. Both are
multiplied by alpha / rank. PEFT's layers compute them. For OFT see `orthogonal.py`; its alpha is a limit of the
rotation, and 0 is none. For IA3 see `channel_scales.py`; it has no alpha, and ComfyUI does not read it. Beside adapters
of any kind, files may hold those of norm layers, see `norm_layers.py`, which have no alpha either.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, cast

from modules.weights.errors import WeightsError
from modules.weights.foreign_names import single_name
from modules.weights.kohya_names import kohya_name
from modules.weights.layer_tables import Place, layer_table
from modules.weights.lora_fitting import fitting_layers, path_in_module
from modules.weights.lora_layers import NO_METADATA, LoraMetadata
from modules.weights.LoraSource import NORM_PARTS, LoraSource
from modules.weights.safe import save_tensors

if TYPE_CHECKING:
    import torch
    from diffusers.pipelines.pipeline_utils import DiffusionPipeline
    from peft.tuners.lycoris_utils import LycorisConfig
    from peft.tuners.lycoris_utils import LycorisLayer as AdaptedLayer
    from torch import Tensor, nn

    from modules.families.Family import Family
    from modules.weights.libraries import Model

Kind = Literal["loha", "lokr", "oft", "ia3", "norm"]
PARTS: dict[Kind, tuple[str, ...]] = {
    "loha": ("hada_w1_a", "hada_w1_b", "hada_w2_a", "hada_w2_b", "hada_t1", "hada_t2"),
    "lokr": ("lokr_w1", "lokr_w1_a", "lokr_w1_b", "lokr_w2", "lokr_w2_a", "lokr_w2_b", "lokr_t2"),
    "oft": ("oft_blocks",),
    "ia3": ("on_input", "weight"),
    "norm": NORM_PARTS,
}
_KIND_OF = {part: kind for kind, parts in PARTS.items() for part in parts}
_MARKS = _KIND_OF.keys() - {"weight", *PARTS["norm"]}  # which tensors of other files are called, too
_WITHOUT_ALPHA = ("ia3", "norm")
_ADAPTER_KINDS: dict[str, Kind] = {**_KIND_OF, "ia3_weight": "ia3"}  # by the parts of the layers in a model
_WITH_RANK = ("hada_w1_b", "lokr_w1_b", "lokr_t2", "lokr_w2_b")  # those whose first axis is the rank, first one first
# a layer has one of these sets of parts, besides hada_t1 and hada_t2
_WHOLE = (frozenset(PARTS["loha"][:4]), frozenset(PARTS["oft"]), frozenset(PARTS["ia3"]),
          frozenset(PARTS["norm"]), frozenset(PARTS["norm"][:1]), *(
    frozenset((*w1, *w2))
    for w1 in (("lokr_w1",), ("lokr_w1_a", "lokr_w1_b"))
    for w2 in (("lokr_w2",), ("lokr_w2_a", "lokr_w2_b"), ("lokr_t2", "lokr_w2_a", "lokr_w2_b"))
))  # fmt: skip


@dataclass(frozen=True)
class LycorisLayer:
    """The adapter of one layer. parts: name, of PARTS -> tensor. alpha: divided by the rank it gives the scale."""

    kind: Kind
    parts: Mapping[str, Tensor]
    alpha: float

    @property
    def rank(self) -> int | None:
        """Of OFT the size of a block. None for IA3, norms and a LoKr of two whole matrices, whose scale is always 1."""
        if self.kind == "oft":
            return self.parts["oft_blocks"].shape[1]
        return next((self.parts[name].shape[0] for name in _WITH_RANK if name in self.parts), None)

    @property
    def scale(self) -> float:
        return 1.0 if self.rank is None or self.kind == "oft" else self.alpha / self.rank


# Component -> path of the layer in it -> its adapter.
LycorisLayers = dict[str, dict[str, LycorisLayer]]


def is_lycoris(names: Iterable[str]) -> bool:
    """Whether the tensors of a file, of these names, are adapters of one of these kinds."""
    return any(name.rpartition(".")[2] in _MARKS for name in names)


def adapted_layers(module: Model, adapter: str) -> dict[str, LycorisLayer]:
    """The layers of a PEFT adapter in a module, by their paths as in a file of diffusers."""
    prefix = "text_model." if type(module).__name__ == "CLIPTextModel" and not hasattr(module, "text_model") else ""
    found = {}
    for path, layer in _peft_layers(module):
        kind = _ADAPTER_KINDS[layer.adapter_layer_names[0]]
        if kind == "ia3":
            found[prefix + path] = _of_scales(layer, adapter)
            continue
        held = {name: getattr(layer, name) for name in PARTS[kind]}
        parts = {name: of_adapter[adapter].detach() for name, of_adapter in held.items() if adapter in of_adapter}
        found[prefix + path] = _with_scale(kind, parts, float(layer.scaling[adapter]))
    return found


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
            if layer.kind not in _WITHOUT_ALPHA:
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


def read_norms(path: str | Path, family: Family) -> LycorisLayers:
    """The norm layers of a family's file, whatever adapters its other layers have. Raises as `read_lycoris`."""
    file = LoraSource(path)
    return _layers(file, family, {name: file.tensors[name] for name in file.norms})


def read_lycoris(source: str | Path | LoraSource, family: Family) -> LycorisLayers:
    """The layers of a family's file.

    Raises WeightsError if the file can't be read, or has tensors that belong to no such layer of the family.
    """
    file = source if isinstance(source, LoraSource) else LoraSource(source)
    return _layers(file, family, file.tensors)


def _layers(file: LoraSource, family: Family, tensors: Mapping[str, Tensor]) -> LycorisLayers:
    path, expert = file.path, file.expert
    found: dict[tuple[str, str], dict[str, Any]] = {}
    for name, tensor in tensors.items():
        stem, _, part = name.rpartition(".")
        place = _place(path, family, name, stem)
        if part not in _KIND_OF and part != "alpha":
            raise _not_of_family(path, family, name)
        component = expert if expert and place.component in family.denoisers else place.component
        found.setdefault((component, place.paths[0]), {})[part] = tensor
    layers: LycorisLayers = {}
    for (component, layer), parts in found.items():
        alpha = parts.pop("alpha", None)
        if frozenset(parts) - {"hada_t1", "hada_t2"} not in _WHOLE:
            raise WeightsError(f"'{path}': lacks a part of '{component}.{layer}'; download or export it again.")
        kind = _KIND_OF[next(iter(parts))]
        whole = LycorisLayer(kind, parts, 1.0)
        if kind == "oft":
            own = 0.0 if alpha is None else float(alpha)
            if own:
                raise WeightsError(
                    f"'{path}': its OFT has a limit of the rotation (alpha {own:g}), which programs read differently; "
                    "choose one without."
                )
            layers.setdefault(component, {})[layer] = LycorisLayer(kind, parts, own)
            continue
        own = float(alpha or whole.rank or 1)  # without one, or with 0 as LyCORIS reads it, the scale is 1
        layers.setdefault(component, {})[layer] = LycorisLayer(kind, parts, own)
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
    norms = {path: layer for path, layer in layers.items() if layer.kind == "norm"}
    others = {path: layer for path, layer in layers.items() if layer.kind != "norm"}
    modules, kinds = dict(module.named_modules()), Counter(layer.kind for layer in others.values())
    for path, layer in layers.items():
        is_odd = layer.kind != "norm" and layer.kind != kinds.most_common(1)[0][0]
        if is_odd or path not in modules or not _fits(layer, modules[path]):
            raise ValueError(f"its layer '{path}' does not fit")
    if others:
        _add_of_kind(module, next(iter(kinds)), others, adapter, dtype)
    if norms:
        _add_norms(module, norms, adapter, dtype)
    module.set_adapter(adapter)


def _add_norms(module: Model, layers: Mapping[str, LycorisLayer], adapter: str, dtype: torch.dtype | None) -> None:
    from torch import nn

    from modules.weights.norm_layers import add_norm_adapters

    add_norm_adapters(module, layers, adapter)
    for path, layer in layers.items():
        adapted: Any = module.get_submodule(path)
        for part, values in layer.parts.items():
            own = getattr(adapted, part)
            own[adapter] = nn.Parameter(values.to(own[adapter].device, dtype, copy=True))


def _add_of_kind(
    module: Model, kind: Kind, layers: Mapping[str, LycorisLayer], adapter: str, dtype: torch.dtype | None
) -> None:
    """Adds adapters, which fit, of one kind that is not "norm"."""
    import torch
    from torch import nn

    from modules.weights.channel_scales import add_channel_scales
    from modules.weights.orthogonal import add_oft

    ranks = {path: layer.rank or 1 for path, layer in layers.items()}
    rank = Counter(ranks.values()).most_common(1)[0][0]
    if kind == "oft":
        add_oft(module, ranks, adapter)
    elif kind == "ia3":
        add_channel_scales(module, {path: bool(layer.parts["on_input"]) for path, layer in layers.items()}, adapter)
        for path, layer in layers.items():
            scaled: Any = module.get_submodule(path)
            values = layer.parts["weight"].flatten().to(scaled.ia3_weight[adapter].device, dtype)
            scaled.ia3_weight[adapter] = nn.Parameter(values.clone())
        return
    else:
        module.add_adapter(peft_config(kind, list(layers), rank, rank), adapter_name=adapter)
    for path, layer in layers.items():
        adapted = cast("AdaptedLayer", module.get_submodule(path))
        for part in PARTS[kind]:
            own = getattr(adapted, part)
            if adapter in own:
                del own[adapter]  # of the shape that PEFT would have chosen
            if part in layer.parts:
                values = layer.parts[part].to(_weight(adapted.get_base_layer()).device, dtype)
                own[adapter] = nn.Parameter(values.clone(memory_format=torch.contiguous_format))
        adapted.r[adapter], adapted.alpha[adapter] = ranks[path], layer.scale * ranks[path]
        adapted.scaling[adapter] = layer.scale


def peft_config(kind: Kind, targets: list[str], rank: int, alpha: float, **options: Any) -> LycorisConfig:
    """PEFT's settings for new LoHas or LoKrs. targets: full names of the layers. options: of the kind alone."""
    from peft import LoHaConfig, LoKrConfig

    values = {"r": rank, "alpha": alpha, "target_modules": targets, **options}
    return LoHaConfig(**values) if kind == "loha" else LoKrConfig(init_weights="lycoris", **values)


def _of_scales(layer: Any, adapter: str) -> LycorisLayer:
    """The IA3 of a layer, with the shape of weights that LyCORIS gives it."""
    import torch
    from torch import nn

    weight = (layer.ia3_weight[adapter] * layer.scaling[adapter]).detach()
    if isinstance(layer.get_base_layer(), nn.Conv2d):
        weight = weight.view(1, -1, 1, 1)
    return LycorisLayer("ia3", {"weight": weight, "on_input": torch.tensor(int(layer.on_input[adapter]))}, 1.0)


def _with_scale(kind: Kind, parts: dict[str, Tensor], scale: float) -> LycorisLayer:
    if kind == "oft":  # which trains with a scale of 1
        return LycorisLayer(kind, parts, 0.0)
    if kind == "norm":
        return LycorisLayer(kind, {name: tensor * scale for name, tensor in parts.items()}, 1.0)
    layer = LycorisLayer(kind, parts, 1.0)
    if layer.rank is None:  # readers take no notice of alpha
        return LycorisLayer(kind, {**parts, "lokr_w1": parts["lokr_w1"] * scale}, 1.0)
    return LycorisLayer(kind, parts, scale * layer.rank)


def _fits(layer: LycorisLayer, module: nn.Module) -> bool:
    """Whether the adapter gives a weight of the layer's shape."""
    shape, parts = _shape(module), layer.parts
    if layer.kind == "norm":
        return _fits_norm(parts, module)
    if shape is None:
        return False
    if layer.kind == "ia3":
        return parts["weight"].numel() == shape[1 if parts["on_input"] else 0]
    if layer.kind == "oft":
        return parts["oft_blocks"].shape[:2].numel() == shape[0]
    if layer.kind == "loha":
        is_tucker = "hada_t1" in parts
        out = parts["hada_w1_a"].shape[1 if is_tucker else 0]
        rest = parts["hada_w1_b"].shape[1] * (parts["hada_t1"][0, 0].numel() if is_tucker else 1)
        return (out, rest) == (shape[0], shape[1:].numel())
    w1 = parts["lokr_w1"].shape if "lokr_w1" in parts else (len(parts["lokr_w1_a"]), parts["lokr_w1_b"].shape[1])
    if "lokr_w2" in parts:
        w2 = len(parts["lokr_w2"]), parts["lokr_w2"][0].numel()
    elif "lokr_t2" in parts:
        w2 = parts["lokr_w2_a"].shape[1], parts["lokr_w2_b"].shape[1] * parts["lokr_t2"][0, 0].numel()
    else:
        w2 = len(parts["lokr_w2_a"]), parts["lokr_w2_b"].shape[1]
    return (w1[0] * w2[0], w1[1] * w2[1]) == (shape[0], shape[1:].numel())


def _fits_norm(parts: Mapping[str, Tensor], module: nn.Module) -> bool:
    """Whether these are what a norm layer has, which may have other adapters."""
    from modules.weights.norm_layers import AdaptedNorm, is_norm

    norm: Any = module.get_base_layer() if isinstance(module, AdaptedNorm) else module
    values = (norm.weight, getattr(norm, "bias", None)) if is_norm(norm) else (None, None)
    own = {part: of.shape for part, of in zip(PARTS["norm"], values, strict=True) if of is not None}
    return own == {part: tensor.shape for part, tensor in parts.items()}


def _shape(module: nn.Module) -> Any:
    """The shape of a layer's weight; None for a layer that can't have an adapter. It may have others."""
    import torch
    from peft.tuners.tuners_utils import BaseTunerLayer
    from torch import nn

    module = module.get_base_layer() if isinstance(module, BaseTunerLayer) else module
    if isinstance(module, nn.Linear):
        return torch.Size((module.out_features, module.in_features))
    return module.weight.shape if isinstance(module, nn.Conv2d) else None


def _weight(layer: nn.Module) -> Tensor:
    return cast("Tensor", layer.weight)


def _peft_layers(module: nn.Module) -> Iterator[tuple[str, AdaptedLayer]]:
    from peft.tuners.lycoris_utils import LycorisLayer as AdaptedLayer

    for path, layer in module.named_modules():
        if isinstance(layer, AdaptedLayer):
            yield path, layer
