"""The layers of a LoRA, independent of the file format, and their tensors in diffusers' and kohya's formats.

Shapes, with rank r: a layer has `lora_A` [r, in] (convolutions: [r, in, kh, kw]), called `lora_down` by kohya, and
`lora_B` [out, r] (convolutions: [out, r, 1, 1]), called `lora_up` by kohya.
"""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from modules.weights.converted_loras import converted_layers, lost_tensors
from modules.weights.embedding_files import BUNDLE
from modules.weights.errors import WeightsError
from modules.weights.foreign_names import foreign_tensors
from modules.weights.kohya_names import diffusers_name, kohya_name
from modules.weights.libraries import import_pipeline
from modules.weights.safe import METADATA, load_finite, read_header

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
_KOHYAS_DENOISER = "lora_unet"  # starts its layers' names in the files of kohya's scripts
KOHYA_KINDS = {".lora_down.weight": "down", ".lora_up.weight": "up", ".alpha": "alpha", ".dora_scale": "magnitude"}
DIFFERENCES = (".diff", ".diff_b", ".bias")  # endings in files of other programs, of what is added to norms and biases
NORM_PARTS = ("w_norm", "b_norm")  # of the adapters of norm layers, which norm_layers.py describes
EXPERT = "denoiser"  # the metadata key that names the expert of a file
ADAPTER_METADATA = "lora_adapter_metadata"  # the metadata key of PEFT's settings in diffusers' files


@dataclass(frozen=True)
class LoraLayer:
    """The adapter of one layer, which adds up @ down * alpha / r to its weight.

    magnitude: [out], the norms of the adapted weight's rows, for DoRA (Liu et al. 2024, arXiv 2402.09353).
    """

    down: Tensor
    up: Tensor
    alpha: float
    magnitude: Tensor | None = None

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


class LoraKey(NamedTuple):
    """The parsed name of a tensor in a LoRA file. kind: "down", "up", "alpha" or "magnitude"."""

    component: str
    layer: str
    kind: str


def parse_key(name: str, family: Family) -> LoraKey | None:
    """Parses a tensor name; None if it has neither format or the family lacks its component."""
    for ending, kind in KOHYA_KINDS.items():
        found = diffusers_name(family, name.removesuffix(ending)) if name.endswith(ending) else None
        if found:
            return LoraKey(*found, kind)
    component, _, path = name.partition(".")
    for ending, kind in DIFFUSERS_KINDS.items():
        if path.endswith(ending) and component in family.lora_targets:
            return LoraKey(component, path.removesuffix(ending), kind)
    return None


def parse_keys(names: Iterable[str], family: Family) -> dict[str, LoraKey | None]:
    """Parses the tensor names of a file; each is None if diffusers has to convert the file."""
    keys = {name: parse_key(name, family) for name in names}
    has_prefix = any(prefix.startswith(_KOHYAS_DENOISER) for prefix in family.kohya_prefixes.values())
    # of a family without it, kohya's scripts name the denoiser as its makers do, but text encoders as for all families
    is_foreign = not has_prefix and any(name.startswith(_KOHYAS_DENOISER) for name in keys)
    return dict.fromkeys(keys) if is_foreign else keys


def is_kohya(names: Iterable[str]) -> bool:
    """Whether the tensor names of a file are in kohya's format."""
    return any(name.endswith((".lora_down.weight", ".dora_scale")) and name.startswith("lora_") for name in names)


def is_diffusers(names: Iterable[str], family: Family) -> bool:
    """Whether the tensor names of a family's file are in diffusers' format."""
    return any(name.endswith(".lora_A.weight") and parse_key(name, family) for name in names)


def is_of_norm(name: str) -> bool:
    """Whether a tensor of this name in a file is an adapter of a norm layer."""
    return name.rpartition(".")[2] in NORM_PARTS


def read_layers(path: str | Path, family: Family, but_norms: bool = False) -> Layers:
    """Reads the layers of a family's LoRA file, in diffusers' or kohya's format.

    but_norms: leave out norm layers, which are no LoRA.
    Formats of other programs are read as diffusers converts them. Raises WeightsError if the file can't be read or has
    other tensors.
    """
    header = read_header(path)
    parts: dict[str, dict[str, dict[str, Any]]] = {}
    # without the words that were trained with the LoRA
    tensors = {name: tensor for name, tensor in load_finite(path).items() if not name.startswith(BUNDLE)}
    if norms := [name for name in tensors if is_of_norm(name)]:
        if not but_norms:
            raise WeightsError(
                f"'{path}': changes norm layers, such as '{norms[0]}', and can be trained, sampled and merged into a "
                "model only; choose a LoRA without."
            )
        tensors = {name: tensor for name, tensor in tensors.items() if name not in norms}
    keys = {name: parse_key(name, family) for name in tensors}
    expert = header[METADATA].get(EXPERT)
    if tensors and not any(keys.values()) and (converted := converted_layers(Path(path), family)):
        # which diffusers drops, or makes biases of the LoRA
        biases = [name for name, tensor in tensors.items() if name.endswith(DIFFERENCES) and tensor.any()]
        if lost := biases or lost_tensors(Path(path), import_pipeline(family.pipeline)):
            raise WeightsError(
                f"'{path}': has more than plain LoRAs, such as '{lost[0]}', which would be lost; choose a LoRA without."
            )
        return {
            _own_component(component, expert, family): {
                layer: LoraLayer(*parts) for layer, parts in of_component.items()
            }
            for component, of_component in converted.items()
        }
    if unknown := [name for name, key in keys.items() if key is None]:
        names = "', '".join(unknown[:3])
        raise WeightsError(
            f"'{path}': its '{names}' does not belong to a LoRA for {family.name}; "
            f"choose a LoRA for {family.name} in diffusers' or kohya's format, or one that diffusers converts."
        )
    for name, key in keys.items():
        tensor = tensors[name]
        assert key is not None  # else it is unknown
        parts.setdefault(key.component, {}).setdefault(key.layer, {})[key.kind] = tensor
    settings = _settings(path, header[METADATA])
    return {
        _own_component(component, expert, family): {
            layer: _layer(path, component, layer, tensors, settings) for layer, tensors in layers.items()
        }
        for component, layers in parts.items()
    }


def _own_component(component: str, expert: str | None, family: Family) -> str:
    """expert: that a file is of, where each has its own and all name the first."""
    return expert if expert and component in family.denoisers else component


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


def _layer(path: str | Path, component: str, layer: str, tensors: dict[str, Any], settings: dict) -> LoraLayer:
    if "down" not in tensors or "up" not in tensors:
        raise WeightsError(f"'{path}': lacks half of the LoRA on '{component}.{layer}'; download or export it again.")
    down, up, magnitude = tensors["down"], tensors["up"], tensors.get("magnitude")
    if min(down.dim(), up.dim()) < 2 or up.shape[1] != down.shape[0] or not down.shape[0]:
        shapes = f"{tuple(down.shape)} and {tuple(up.shape)}"
        raise WeightsError(
            f"'{path}': the halves of the LoRA on '{component}.{layer}' have the shapes {shapes}, which don't belong "
            "together; download or export it again."
        )
    try:
        own = tensors.get("alpha")
        alpha = _alpha(settings, component, layer, down.shape[0]) if own is None else float(own)
        if not math.isfinite(alpha):
            raise ValueError("not finite")
    except (AttributeError, TypeError, ValueError, re.error) as error:
        raise WeightsError(f"'{path}': its settings of alpha are damaged; download or export it again.") from error
    return LoraLayer(down, up, alpha, None if magnitude is None else magnitude.reshape(-1))


def _settings(path: str | Path, metadata: Mapping[str, str]) -> dict[str, Any]:
    try:
        settings = json.loads(metadata.get(ADAPTER_METADATA, "{}"))
        if not isinstance(settings, dict):
            raise ValueError("not a table")
    except (ValueError, RecursionError) as error:
        raise WeightsError(f"'{path}': its LoRA settings are not readable JSON; export it again.") from error
    return settings


def _alpha(settings: Mapping[str, Any], component: str, layer: str, rank: int) -> float:
    """A layer's alpha by PEFT's rules: patterns match the end of a path, rsLoRA divides by the root of the rank."""
    patterns = settings.get(f"{component}.alpha_pattern", {})
    fitting = (alpha for pattern, alpha in patterns.items() if re.match(rf"(.*\.)?({pattern})$", layer))
    alpha = next(fitting, settings.get(f"{component}.lora_alpha", rank))
    return float(alpha) * (rank**0.5 if settings.get(f"{component}.use_rslora") else 1.0)


def _each(layers: Layers) -> Iterable[tuple[str, str, LoraLayer]]:
    return ((component, path, layer) for component, inner in layers.items() for path, layer in inner.items())


def _most_common(values: Iterable[float]) -> Any:
    return Counter(values).most_common(1)[0][0]
