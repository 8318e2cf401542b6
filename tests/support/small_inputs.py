"""Sizes of references and texts for tiny models, where the real ones would take tests minutes.

Families whose pipelines resize references to sizes of their own, of a megapixel, get a small part of that area, here as
in diffusers. Texts that are padded to a great length, and freed of that before they are used, are padded to a lesser.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from importlib import import_module

from modules.families.conditions import Layers, References
from modules.families.Family import Family
from modules.families.reference_sizes import Size
from modules.families.registry import FAMILIES

AREA_DIVISOR = 64
LONG_TEXT, SHORT_TEXT = 1024, 256  # tokens: what is padded to more than the first is padded to the second
_shrunk: dict[str, tuple[Family, Family]] = {}  # name -> the real family and the one that takes its place


def shrink_inputs(name: str) -> None:
    """Shrinks the references or texts of a family in this process, once; does nothing to other families."""
    family = FAMILIES.get(name)
    if family is None or name in _shrunk:
        return
    if family.text.options.get("max_sequence_length", 0) > LONG_TEXT:
        text = replace(family.text, options={**family.text.options, "max_sequence_length": SHORT_TEXT})
        FAMILIES[name] = replace(family, text=text)
        _shrunk[name] = family, FAMILIES[name]
    references = family.condition(References)
    has_size = references is not None and references.size is not None
    if not has_size and not family.has(Layers):
        return
    if references and has_size:
        text = replace(family.text, reference_size=_smaller(family.text.reference_size))
        references = replace(references, size=_smaller(references.size))
        FAMILIES[name] = replace(family, conditions=family.conditions_with(references), text=text)
    _shrunk[name] = family, FAMILIES[name]
    pipeline = getattr(import_module("diffusers"), family.pipeline)
    module = import_module(pipeline.__module__)
    size_of = module.calculate_dimensions
    module.calculate_dimensions = lambda area, aspect: size_of(area // AREA_DIVISOR, aspect)


@contextmanager
def real_inputs() -> Iterator[None]:
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
