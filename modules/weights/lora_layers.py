"""The layers of a LoRA, independent of the file format, and their tensors in diffusers' and kohya's formats.

Shapes, with rank r: a layer has `lora_A` [r, in] (convolutions: [r, in, kh, kw]), called `lora_down` by kohya, and
`lora_B` [out, r] (convolutions: [out, r, 1, 1]), called `lora_up` by kohya.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from modules.weights.errors import WeightsError
from modules.weights.foreign_names import foreign_tensors
from modules.weights.kohya_names import kohya_name
from modules.weights.layer_tables import Place, layer_table
from modules.weights.LoraSource import EXPERT

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from modules.families.Family import Family

# Suffix of a tensor's name -> its kind.
DIFFUSERS_KINDS = {
    ".lora_A.weight": "down",
    ".lora_B.weight": "up",
    ".lora_magnitude_vector": "magnitude",
    # the only name that transformers 5 accepts; otherwise it would silently use the norms of the base weights
    ".lora_magnitude_vector.weight": "magnitude",
}
_FIRST = ".lora_A.weight"
ADAPTER_METADATA = "lora_adapter_metadata"  # the metadata key of PEFT's settings in diffusers' files


@dataclass(frozen=True)
class LoraLayer:
    """The adapter of one layer, which adds up @ down * alpha / r to its weight.

    alpha: 0 becomes the rank, which is what it means in files, by kohya's scripts.
    magnitude: [out], the norms of the adapted weight's rows, for DoRA (Liu et al. 2024, arXiv 2402.09353).
    """

    down: Tensor
    up: Tensor
    alpha: float
    magnitude: Tensor | None = None

    def __post_init__(self) -> None:
        if self.alpha == 0:
            object.__setattr__(self, "alpha", float(self.rank))

    @property
    def rank(self) -> int:
        return self.down.shape[0]


@dataclass(frozen=True)
class LoraMetadata:
    """Of the files of a model. of_experts: further denoiser -> what replaces `common` in its own file."""

    common: Mapping[str, str] = field(default_factory=dict)
    of_experts: Mapping[str, Mapping[str, str]] = field(default_factory=dict)

    def of(self, expert: str) -> dict[str, str]:
        """That of an expert's own file; "" for the file of all that has none."""
        own = {**self.of_experts.get(expert, {}), EXPERT: expert} if expert else {}
        return {**self.common, **own}


NO_METADATA = LoraMetadata()

# Component -> path of the layer, as in diffusers' format -> its adapter.
Layers = dict[str, dict[str, LoraLayer]]


def is_kohya(names: Iterable[str]) -> bool:
    """Whether the tensor names of a file are in kohya's format."""
    return any(name.endswith((".lora_down.weight", ".dora_scale")) and name.startswith("lora_") for name in names)


def is_diffusers(names: Iterable[str], family: Family) -> bool:
    """Whether the tensor names of a family's file are in diffusers' format."""
    return any(_is_of_diffusers(name, family) for name in names if name.endswith(_FIRST))


def _is_of_diffusers(name: str, family: Family) -> bool:
    component, _, path = name.removesuffix(_FIRST).partition(".")
    place = layer_table(family).find(f"{component}.{path}") if component in family.lora_targets else None
    return place == Place(component, (path,))


def diffusers_tensors(layers: Layers) -> dict[str, Tensor]:
    """The tensors of a LoRA in diffusers' format; alphas are stored in `adapter_metadata`."""
    tensors = {}
    for component, path, layer in _each(layers):
        tensors[f"{component}.{path}.lora_A.weight"] = layer.down
        tensors[f"{component}.{path}.lora_B.weight"] = layer.up
        if layer.magnitude is not None:
            # [1, out, 1, 1] for convolutions, as in PEFT
            axes = (1, -1, *[1] * (layer.down.dim() - 2)) if layer.down.dim() > 2 else (-1,)
            ending = magnitude_ending(component)
            tensors[f"{component}.{path}{ending}"] = layer.magnitude.reshape(axes)
    return tensors


def magnitude_ending(component: str) -> str:
    """The suffix of DoRA's magnitudes in diffusers' format."""
    return ".lora_magnitude_vector.weight" if component.startswith("text_encoder") else ".lora_magnitude_vector"


def adapter_metadata(layers: Layers) -> str:
    """PEFT's settings for the metadata of a file; without them, diffusers assumes that alpha equals the rank."""
    settings: dict[str, Any] = {}
    for component, of_component in layers.items():
        # transformers 5 dropped the `text_model.` level; PEFT compares the ends of paths.
        named = {path.removeprefix("text_model."): layer for path, layer in of_component.items()}
        rank = _most_common(layer.rank for layer in named.values())
        alpha = _most_common(layer.alpha for layer in named.values())
        values = {
            "r": rank,
            "lora_alpha": alpha,
            "target_modules": sorted(named),
            "rank_pattern": {path: layer.rank for path, layer in named.items() if layer.rank != rank},
            "alpha_pattern": {path: layer.alpha for path, layer in named.items() if layer.alpha != alpha},
            "use_dora": any(layer.magnitude is not None for layer in named.values()),
        }
        settings |= {f"{component}.{name}": value for name, value in values.items() if value}
    return json.dumps(settings, indent=2, sort_keys=True)


def kohya_tensors(layers: Layers, family: Family) -> dict[str, Tensor]:
    """`<name>.lora_down.weight`, `.lora_up.weight`, `.alpha` and, of DoRA, `.dora_scale` of every layer.

    All layers get one alpha: diffusers 0.42 loses those of single layers when it reads this format. Where a layer has
    another, the ratio is put into its `lora_up`, which gives the same product in every reader.
    Raises WeightsError if the format has no name for a layer.
    """
    import torch

    if unnamed := layers.keys() - (family.layer_names or family.kohya_prefixes).keys():
        raise WeightsError(f"kohya's format has no names for a LoRA on '{min(unnamed)}'; choose the diffusers format.")
    if family.layer_names:
        named = [foreign_tensors(of, family.layer_names[component]) for component, of in layers.items()]
        return {name: tensor for tensors in named for name, tensor in tensors.items()}
    alpha = _most_common(layer.alpha for _, _, layer in _each(layers))
    tensors = {}
    for component, path, layer in _each(layers):
        name = kohya_name(family, component, path)
        tensors[f"{name}.lora_down.weight"] = layer.down
        tensors[f"{name}.lora_up.weight"] = layer.up if layer.alpha == alpha else layer.up * (layer.alpha / alpha)
        tensors[f"{name}.alpha"] = torch.tensor(float(alpha))
        if layer.magnitude is not None:
            # one norm per output; ComfyUI distinguishes it from one per input by its number of axes
            tensors[f"{name}.dora_scale"] = layer.magnitude.reshape(-1, *[1] * (layer.down.dim() - 1))
    return tensors


def with_dtype(tensors: Mapping[str, Tensor], dtype: torch.dtype) -> dict[str, Tensor]:
    """Casts the tensors of a file, except alphas, which would be rounded."""
    return {name: tensor if name.endswith(".alpha") else tensor.to(dtype) for name, tensor in tensors.items()}


def _each(layers: Layers) -> Iterable[tuple[str, str, LoraLayer]]:
    return ((component, path, layer) for component, inner in layers.items() for path, layer in inner.items())


def _most_common(values: Iterable[float]) -> Any:
    return Counter(values).most_common(1)[0][0]
