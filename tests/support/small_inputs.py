"""Sizes of references and texts for tiny models, where the real ones would take tests minutes.

Families whose pipelines resize references to sizes of their own, of a megapixel, get a small part of that area, here as
in diffusers. Texts that are padded to a great length are padded to a lesser; that the great one is the one of the
pipeline's own call is a claim of tests/families/test_conformance.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial, wraps
from importlib import import_module
from typing import Any

from modules.families.conditions import Layers, References
from modules.families.Family import Family
from modules.families.reference_sizes import Size
from modules.families.registry import FAMILIES

AREA_DIVISOR = 64
LONG_TEXT, VERY_LONG_TEXT = 512, 2048  # tokens: what is padded to as many, always or until it is used ...
SHORT_TEXT, SHORT_CHAT = 128, 256  # ... is padded to these, of which an instruction may take half
# Pipelines that keep the length as an attribute -> a lesser one, for a prompt and the instruction before it.
PADDED_BY_PIPELINE = {
    "HunyuanImagePipeline": 256,
    "HunyuanVideo15Pipeline": 512,
    "HunyuanVideo15ImageToVideoPipeline": 512,
}
_seen: set[str] = set()
_shrunk: dict[str, tuple[Family, Family]] = {}  # name -> the real family and the one that takes its place


def shrink_inputs(name: str) -> None:
    """Shrinks the references or texts of a family in this process, once; does nothing to other families."""
    real = FAMILIES.get(name)
    if real is None or name in _seen:
        return
    _seen.add(name)
    _shorten_texts(name)
    _shrink_references(name)
    if FAMILIES[name] is not real:
        _shrunk[name] = real, FAMILIES[name]


def _shorten_texts(name: str) -> None:
    family = FAMILIES[name]
    length = family.text.options.get("max_sequence_length", 0)
    if length >= (LONG_TEXT if family.text.collate == "stack" else VERY_LONG_TEXT):
        is_bare = family.published and any("T5" in each.class_name for each, _ in family.published.text_encoders)
        shortened = {**family.text.options, "max_sequence_length": SHORT_TEXT if is_bare else SHORT_CHAT}
        text = replace(family.text, options=shortened)
        FAMILIES[name] = replace(family, text=text)
    if shorter := PADDED_BY_PIPELINE.get(family.pipeline):
        pipeline = getattr(import_module("diffusers"), family.pipeline)
        init = pipeline.__init__

        @wraps(init)  # diffusers looks at its arguments
        def shorter_init(self: Any, *args: Any, **kwargs: Any) -> None:
            init(self, *args, **kwargs)
            self.tokenizer_max_length = shorter

        pipeline.__init__ = shorter_init


def _shrink_references(name: str) -> None:
    family = FAMILIES[name]
    references = family.condition(References)
    has_size = references is not None and references.size is not None
    if not has_size and not family.has(Layers):
        return
    if references and has_size:
        text = replace(family.text, reference_size=_smaller(family.text.reference_size))
        references = replace(references, size=_smaller(references.size))
        FAMILIES[name] = replace(family, conditions=family.conditions_with(references), text=text)
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
