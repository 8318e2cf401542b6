"""Tells for which families a LoRA file was made: by what it says itself, and by the names and widths of its layers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from modules.config.adapters import tensor_marks
from modules.families.registry import FAMILIES
from modules.weights.errors import WeightsError
from modules.weights.layer_tables import layer_table
from modules.weights.LoraSource import LoraSource

if TYPE_CHECKING:
    from modules.families.Family import Family

LORA_MARKS = ("lora_", ".lora.", *(f".{mark}" for mark in tensor_marks()))
_MOST_NAMED = 3  # families in a message


@dataclass(frozen=True)
class Candidates:
    """said: the family in the file's own metadata; "" if it says none. exact: families whose published model has all
    layers of the file, with their widths. alike: those whose model has all of them, whatever their widths."""

    said: str
    exact: tuple[str, ...]
    alike: tuple[str, ...]

    def best(self) -> str | None:
        """The one family that the file is for; None if several, or none, may be meant."""
        if self.said:
            return self.said
        own = [name for name in self.exact if FAMILIES[name].takes_loras_of not in self.exact]
        return own[0] if len(own) == 1 else None

    def describe(self) -> str:
        names = [self.said] if self.said else list(self.exact or self.alike)
        more = ", ..." if len(names) > _MOST_NAMED else ""
        return ", ".join(names[:_MOST_NAMED]) + more


def candidates(file: LoraSource) -> Candidates:
    """The families that a file may be for. Raises WeightsError, starting with the path, if it is not a LoRA."""
    if not any(mark in name for name in file.shapes for mark in LORA_MARKS):
        raise WeightsError(f"'{file.path}': is not a LoRA; choose a LoRA file.")
    outer = _outer_shapes(file)
    exact, alike = [], []
    for name, family in FAMILIES.items():
        fits = _fits(family, outer)
        exact += [name] if fits == "exact" else []
        alike += [name] if fits else []
    if marked := [name for name in alike if FAMILIES[name].matches_lora(file.shapes)]:
        # U-Nets have layers of the same names, which further marks tell apart
        alike = [name for name in alike if {name, FAMILIES[name].takes_loras_of} & {*marked, *exact}]
        exact = exact or marked
    said = file.metadata.get("family", "")
    return Candidates(said if said in {*exact, *alike} else "", tuple(exact), tuple(alike))


def check_family(file: LoraSource, family: Family) -> None:
    """Raises WeightsError, starting with the path, if the file is no LoRA, or one for families with other layers."""
    found = candidates(file)
    if found.alike and family.name not in (*found.alike, *found.exact):
        raise WeightsError(f"'{file.path}': is a LoRA for {found.describe()}; choose a LoRA for {family.name}.")


def _outer_shapes(file: LoraSource) -> dict[str, tuple[tuple[int, ...] | None, int | None]]:
    """Name of a layer in the file -> ([in] or [in, kh, kw], out), each None where the tensor is not there."""
    outer = {}
    for name, parts in file.layers.items():
        down, up = parts.get("down"), parts.get("up")
        outer[name] = (file.shapes[down][1:] if down else None, (file.shapes[up] or (None,))[0] if up else None)
    return outer


def _fits(family: Family, outer: Mapping[str, tuple[tuple[int, ...] | None, int | None]]) -> str:
    """'exact' if the published model has all of these layers in these sizes, 'alike' if such a model may, else ''."""
    table = layer_table(family)
    known = {}
    for name in outer:
        place = table.find(name)
        if place is None:
            return ""  # most families know none of the names: the others need not be looked up
        if place.component:
            known[name] = place
    if not known:
        return ""
    has_sizes = True
    for name, place in known.items():
        shapes = [table.shapes(place.component, path) for path in place.paths]
        if not all(shapes):
            if not all(map(table.is_named, place.paths)):
                return ""
            has_sizes = False
            continue
        has_sizes &= all(table.has_block(place.component, path) for path in place.paths)
        inner, out = outer[name]
        outputs = sum(of_path[0][0] for of_path in shapes) if len(shapes) > 1 else None
        has_sizes &= any(
            inner in (None, tuple(shape[1:])) and out in (None, outputs or shape[0]) for shape in shapes[0]
        )
    return "exact" if has_sizes else "alike"
