"""Selects the layers to train: by preset, from the family's tables, and by patterns for layer names."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Literal

from modules.config.errors import UserError
from modules.config.layer_patterns import has_ending, matches_layer, select_layers, split_patterns
from modules.config.layer_ranks import read_layer_ranks
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
    """Full names of a component's layers that have parameters, in the order of the model.

    "all" selects all layers. The other presets select layers of the blocks: "blocks" (all of them), "attention" (its
    projections), "attention_mlp" (also the feed-forward layers), "linear" (all linear layers), "linear_conv" (also all
    convolutions, except grouped ones, which low-rank adapters don't support).
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
    return [name for name in in_blocks if has_ending(name, endings)]


def norm_layers(family: Family, component: str, module: nn.Module, config: PartConfig) -> list[str]:
    """Full names of the norm layers in a component's blocks that have weights and that its patterns leave."""
    from modules.weights.norm_layers import is_norm

    names = [name for name in preset_layers(family, component, module, "blocks") if is_norm(module.get_submodule(name))]
    return select_layers(names, config.include_layers, config.exclude_layers)[1]


def check_layers(method: Method, base: BaseModel, parts: Mapping[str, PartConfig], config: TrainConfig) -> None:
    """Raises UserError for patterns that match none of the model's layers, without loading weights.

    parts: the settings of the trained components.
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
    """Raises UserError for a pattern that matches none of the candidates, which is probably a typo.

    parts: the settings of the trained components.
    candidates: component -> the layers that patterns select from. A pattern only has to match in one text encoder.
    """
    for path in dict.fromkeys(part_path(family, component) for component in candidates):
        of_part = [component for component in candidates if part_path(family, component) == path]
        names = [name for component in of_part for name in candidates[component]]
        for setting in ("include_layers", "exclude_layers"):
            for pattern in split_patterns(getattr(parts[of_part[0]], setting)):
                if not any(matches_layer(name, pattern) for name in names):
                    raise UserError.at(
                        f"{path}.{setting}",
                        f"{pattern!r} matches no layer of the {' or the '.join(of_part)}: {_examples(names)}.",
                    )


def layer_ranks(names: Collection[str], text: str) -> dict[str, int]:
    """Layer -> rank, for those of `names` that a pattern of lora.layer_ranks matches. text: of that setting."""
    ranks = read_layer_ranks(text).items()
    found = {name: [rank for pattern, rank in ranks if matches_layer(name, pattern)] for name in names if ranks}
    return {name: matching[0] for name, matching in found.items() if matching}


def check_layer_ranks(text: str, candidates: Mapping[str, Sequence[str]]) -> None:
    """Raises UserError for a pattern of lora.layer_ranks that matches no layer. candidates: as of `check_patterns`."""
    names = [name for of_component in candidates.values() for name in of_component]
    for pattern in read_layer_ranks(text) if names else ():
        if not any(matches_layer(name, pattern) for name in names):
            raise UserError.at("lora.layer_ranks", f"{pattern!r} matches no layer with an adapter: {_examples(names)}.")


def matching_layers(names: Sequence[str], part: str, config: PartConfig, component: str) -> list[str]:
    """The `names` that the include and exclude patterns select.

    part: the section of the settings, for messages. Patterns are those of fnmatch, separated by commas; a pattern also
    matches all layers below, so that "mid_block" means "mid_block.*", too.
    Raises UserError if nothing is selected.
    """
    included, selected = select_layers(names, config.include_layers, config.exclude_layers)
    if not selected:
        setting = "exclude_layers" if included else "include_layers"
        raise UserError.at(
            f"{part}.{setting}",
            f"{getattr(config, setting)!r} leaves no layer of the {component} to train: {_examples(names)}.",
        )
    return selected


def _examples(names: Sequence[str]) -> str:
    shown = list(dict.fromkeys([names[0], names[len(names) // 2], names[-1]]))
    return f"its layers have names such as {', '.join(shown)}"
