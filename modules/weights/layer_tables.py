"""The layers of the families' models, by which the names in LoRA files are read, without torch and without a model.

`modules/machine/published_layers.py` lists them for the published models; `Family.layer_names` and
`Family.original_names` give what they are called in files of other programs.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING

from modules.machine.published_layers import layer_entries
from modules.weights.kohya_names import diffusers_name

if TYPE_CHECKING:
    from modules.families.Family import Family

NUMBER = re.compile(r"(?<![^.])\d+(?![^.])")  # a whole part of a path
# What programs write before the name of a denoiser's layer, in any order, and with dots or underscores.
_PREFIXES = (
    "base_model.model.", "model.diffusion_model.", "diffusion_model.", "conditional_transformer.", "transformer.",
    "unet.", "net.", "lora_unet_", "lora_transformer_", "lycoris_",
)  # fmt: skip
# How files begin the names of text encoders' layers, apart from the names of the components themselves.
_TEXT_PREFIXES = ("lora_te", "text_encoders.", "text_encoder", "clip_l.", "clip_g.", "t5xxl.")
_MOST_PREFIXES = 3


@dataclass(frozen=True)
class Place:
    """The layers of a component that a layer of a file belongs to: several where the file's is their fusion.

    component: "" for one that the family does not adapt, such as a text encoder.
    swaps_halves: whether the two halves of its outputs are in the other order in the file.
    """

    component: str
    paths: tuple[str, ...]
    swaps_halves: bool = False


def pattern_of(path: str) -> str:
    """The path of a layer with {} in place of each number that is a whole part of it."""
    return NUMBER.sub("{}", path)


class LayerTable:
    """The layers of one family, by all names that they have in files."""

    def __init__(self, family: Family):
        self.family = family
        # none of a family that is not among the published, such as one under test
        entry = layer_entries().get(family.name, {})
        self._shapes: Mapping[str, Mapping[str, Mapping[str, list[int]]]] = entry.get("components", {})
        self._blocks: Mapping[str, Mapping[str, int]] = entry.get("blocks", {})

    def find(self, name: str) -> Place | None:
        """Where a layer of this name in a file belongs, without the ending of its tensors; None if nobody knows it."""
        own = diffusers_name(self.family, name)
        if own and (own[0] not in self._shapes or self.shapes(*own)):
            return Place(own[0], (own[1],))
        component, _, path = name.partition(".")
        is_denoiser = component in self.family.denoisers
        if component in self.family.lora_targets and not is_denoiser:
            return Place(component, (path,))
        if name.startswith(_TEXT_PREFIXES):
            return Place("", (name,))
        for rest in _without_prefixes(path if is_denoiser else name):
            if place := self._named(rest):
                return replace(place, component=component) if is_denoiser else place
        own = own or ((component, path) if is_denoiser else None)
        return Place(own[0], (own[1],)) if own and self._begins_alike(*own) else None

    def shapes(self, component: str, path: str) -> list[list[int]]:
        """The shapes of the published model's weights at such paths; empty if it has none."""
        component = self.family.denoisers[0] if component in self.family.denoisers else component
        return sorted(self._shapes.get(component, {}).get(pattern_of(path), {}).values())

    def has_block(self, component: str, path: str) -> bool:
        """Whether the published model has as many blocks as a layer at such a path needs."""
        component = self.family.denoisers[0] if component in self.family.denoisers else component
        number = NUMBER.search(path)
        if number is None:
            return True
        count = self._blocks.get(component, {}).get(path[: number.start() - 1])
        return count is None or int(number[0]) < count

    def is_named(self, path: str) -> bool:
        """Whether programs name such a layer of a denoiser, also one that the published model lacks."""
        place = self._named(path)
        return place is not None and place.paths == (path,)

    def _begins_alike(self, component: str, path: str) -> bool:
        """Whether a path may be one of a model that differs from the published one."""
        known = self._shapes.get(self.family.denoisers[0] if component in self.family.denoisers else component)
        return not known or path.partition(".")[0] in {own.partition(".")[0] for own in known}

    def _named(self, name: str) -> Place | None:
        """The layer of the first denoiser that a name without prefixes means."""
        tokens = _parts(name)
        for pattern, place in self._names.get(_key(tokens), ()):
            numbers = _numbers(pattern, tokens)
            if numbers is not None:
                return replace(place, paths=tuple(path.format(*numbers) for path in place.paths))
        return None

    @cached_property
    def _names(self) -> dict[tuple[str, ...], list[tuple[list[str], Place]]]:
        """Key of a name -> the ways of writing a layer that may be meant: (the name's parts, the place by patterns)."""
        names: dict[tuple[str, ...], list[tuple[list[str], Place]]] = {}
        for name, place in self._each_name():
            for tokens in (_parts(name), _parts(name.replace(".", "_"))):
                names.setdefault(_key(tokens), []).append((tokens, place))
        return {key: sorted(found, key=lambda of: of[0].count("{}")) for key, found in names.items()}

    def _each_name(self) -> Iterator[tuple[str, Place]]:
        """(name, the patterns of the layers that it stands for); diffusers' own names first."""
        first = self.family.denoisers[0]
        for path in self._shapes.get(first, {}):
            yield path, Place(first, (path,))
        names = self.family.original_names or self.family.layer_names.get(first)
        if names is None:
            return
        for ours, theirs in names.names.items():
            # also layers that the published model lacks and another of the same kind has
            yield ours, Place(first, (ours,))
            yield theirs, Place(first, (ours,), ours in names.swapped)
        for parts, theirs in names.fused.items():
            yield theirs, Place(first, parts)
        for theirs, paths in names.also.items():
            yield theirs, Place(first, (paths,) if isinstance(paths, str) else paths, paths in names.swapped)


def _parts(name: str) -> list[str]:
    """The parts of a name: between its dots or, where it has none, between underscores, which stand for them."""
    return name.split("." if "." in name else "_")


def _key(tokens: Sequence[str]) -> tuple[str, ...]:
    """The parts of a name, with # in place of each number and each {}."""
    return tuple("#" if token.isdecimal() or token == "{}" else token for token in tokens)


def _numbers(pattern: Sequence[str], tokens: Sequence[str]) -> list[str] | None:
    """What stands for the {} of a pattern with the same key; None if another number differs."""
    pairs = list(zip(pattern, tokens, strict=True))
    if any(part not in ("{}", token) for part, token in pairs):
        return None
    return [token for part, token in pairs if part == "{}"]


def _without_prefixes(name: str) -> Iterator[str]:
    """The name, and what is left of it without one prefix, two and so on."""
    yield name
    for _ in range(_MOST_PREFIXES):
        prefix = next((prefix for prefix in _PREFIXES if name.startswith(prefix)), None)
        if prefix is None:
            return
        name = name.removeprefix(prefix)
        yield name


def layer_table(family: Family) -> LayerTable:
    if family.name not in _known:
        _known[family.name] = LayerTable(family)
    return _known[family.name]


_known: dict[str, LayerTable] = {}  # by the names of the families, which can't be hashed
