"""Sizes of references for tiny models, where the real ones, of a megapixel, would take tests minutes.

Families whose pipelines resize references to sizes of their own get a small part of that area, here as in diffusers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from importlib import import_module

from modules.families.Family import Family
from modules.families.reference_sizes import Size
from modules.families.registry import FAMILIES

AREA_DIVISOR = 64
_shrunk: dict[str, tuple[Family, Family]] = {}  # name -> the real family and the one that takes its place


def shrink_references(name: str) -> None:
    """Shrinks the references of a family in this process, once; does nothing to other families."""
    family = FAMILIES.get(name)
    if family is None or family.reference_size is None or name in _shrunk:
        return
    text = replace(family.text, reference_size=_smaller(family.text.reference_size))
    FAMILIES[name] = replace(family, reference_size=_smaller(family.reference_size), text=text)
    _shrunk[name] = family, FAMILIES[name]
    pipeline = getattr(import_module("diffusers"), family.pipeline)
    module = import_module(pipeline.__module__)
    size_of = module.calculate_dimensions
    module.calculate_dimensions = lambda area, aspect: size_of(area // AREA_DIVISOR, aspect)


@contextmanager
def real_references() -> Iterator[None]:
    """Inside, families have their real sizes, whatever a test before has shrunk."""
    FAMILIES.update({name: real for name, (real, _) in _shrunk.items()})
    try:
        yield
    finally:
        FAMILIES.update({name: small for name, (_, small) in _shrunk.items()})


def _smaller(size_for: Callable[[float], Size] | None) -> Callable[[float], Size] | None:
    assert isinstance(size_for, partial)
    area, *others = size_for.args
    return partial(size_for.func, area // AREA_DIVISOR, *others, **size_for.keywords)
