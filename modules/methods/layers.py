"""Which layers of a part train: presets by the family's tables, and patterns over the layers' names."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Literal

from modules.config.errors import UserError
from modules.methods.parts import part_path

if TYPE_CHECKING:
    from torch import nn

    from modules.config.PartConfig import PartConfig
    from modules.config.TrainConfig import TrainConfig
    from modules.families.Family import Family
    from modules.methods.Method import Method
    from modules.weights.BaseModel import BaseModel

Preset = Literal["all", "blocks", "attention", "attention_mlp", "linear", "linear_conv"]


def preset_layers(family: Family, component: str, module: nn.Module, preset: Preset) -> list[str]:
    """Full names of a component's layers that hold weights, in the order of the model.

    "all"; or of the blocks: "blocks" (all of them), "attention" (its projections), "attention_mlp" (and the
    feed-forward layers), "linear" (every linear layer), "linear_conv" (and every convolution of whole channels: an
    adapter of low rank has no place in one of groups).
    """
    from torch import nn

    layers = {name: layer for name, layer in module.named_modules() if any(True for _ in layer.parameters(False))}
    if preset == "all":
        return list(layers)
    in_blocks = {n: layer for n, layer in layers.items() if n.startswith(family.lora_blocks.get(component, ()))}
    kinds = {"blocks": (nn.Module,), "linear": (nn.Linear,), "linear_conv": (nn.Linear, nn.Conv2d)}
    if preset in kinds:
        return [
            name
            for name, layer in in_blocks.items()
            if isinstance(layer, kinds[preset]) and (preset == "blocks" or getattr(layer, "groups", 1) == 1)
        ]
    endings = family.lora_targets.get(component, ())
    endings += family.lora_mlp.get(component, ()) if preset == "attention_mlp" else ()
    return [name for name in in_blocks if any(f".{name}".endswith(f".{ending}") for ending in endings)]


def check_layers(method: Method, base: BaseModel, parts: Mapping[str, PartConfig], config: TrainConfig) -> None:
    """Raises UserError for patterns that a model's layers don't fit; no weights are loaded for it.

    parts: settings of the components that train.
    """
    if not any(part.include_layers or part.exclude_layers for part in parts.values()):
        return
    presets = method.layer_presets(parts, config)
    candidates = {
        name: preset_layers(base.family, name, base.meta_module(name), preset) for name, preset in presets.items()
    }
    candidates = {name: layers for name, layers in candidates.items() if layers}
    check_patterns(base.family, parts, candidates)
    for name, layers in candidates.items():
        matching_layers(layers, part_path(base.family, name), parts[name], name)


def check_patterns(family: Family, parts: Mapping[str, PartConfig], candidates: Mapping[str, Sequence[str]]) -> None:
    """Raises UserError for a pattern that matches none of the candidates: a mistyped one would do nothing.

    parts: settings of the components that train. candidates: component -> the layers among which patterns choose. One
    that matches in a single text encoder is no mistake.
    """
    for path in dict.fromkeys(part_path(family, component) for component in candidates):
        of_part = [component for component in candidates if part_path(family, component) == path]
        names = [name for component in of_part for name in candidates[component]]
        for setting in ("include_layers", "exclude_layers"):
            for pattern in _patterns(getattr(parts[of_part[0]], setting)):
                if not any(_matches(name, pattern) for name in names):
                    raise UserError(
                        f"{path}.{setting} {pattern!r} matches no layer of the {' or the '.join(of_part)}: "
                        f"{_examples(names)}."
                    )


def matching_layers(names: Sequence[str], part: str, config: PartConfig, component: str) -> list[str]:
    """Those of `names` that the part's patterns leave.

    part: the settings' name of the part, for messages. Patterns are those of fnmatch, divided by commas; one also takes
    all layers below what it matches, so that "mid_block" is the same as "mid_block.*".
    Raises UserError where nothing is left.
    """
    include, exclude = _patterns(config.include_layers), _patterns(config.exclude_layers)
    included = [name for name in names if not include or any(_matches(name, pattern) for pattern in include)]
    left = [name for name in included if not any(_matches(name, pattern) for pattern in exclude)]
    if not left:
        setting = "exclude_layers" if included else "include_layers"
        raise UserError(
            f"{part}.{setting} {getattr(config, setting)!r} leaves no layer of the {component} to train: "
            f"{_examples(names)}."
        )
    return left


def _patterns(text: str) -> list[str]:
    return [pattern.strip() for pattern in text.split(",") if pattern.strip()]


def _matches(name: str, pattern: str) -> bool:
    return fnmatchcase(name, pattern) or fnmatchcase(name, f"{pattern}.*")


def _examples(names: Sequence[str]) -> str:
    shown = list(dict.fromkeys([names[0], names[len(names) // 2], names[-1]]))
    return f"its layers have names such as {', '.join(shown)}"
