"""All families and variants by name: every `Family` and `Variant` that is declared in a file of this folder."""

from __future__ import annotations

import os
import pkgutil
from collections.abc import Iterator, Mapping
from dataclasses import replace
from importlib import import_module
from typing import TYPE_CHECKING, Any, TypeVar

from modules.config.families import DENOISER_CONFIG
from modules.families.Family import Family
from modules.families.PublishedModel import Variant

if TYPE_CHECKING:
    from diffusers.pipelines.pipeline_utils import DiffusionPipeline


D = TypeVar("D", Family, Variant)


def _declared() -> Iterator[Any]:
    """What the files declare."""
    names = [found.name for found in pkgutil.iter_modules([os.path.dirname(__file__)], f"{__package__}.")]
    for name in names:
        if name != __name__:
            yield from vars(import_module(name)).values()


def _by_label(kind: type[D]) -> dict[str, D]:
    """Those of a kind, sorted by label, which is the order in the window."""
    found: dict[str, D] = {one.name: one for one in _declared() if isinstance(one, kind)}
    return dict(sorted(found.items(), key=lambda item: item[1].label.casefold()))


FAMILIES = _by_label(Family)
VARIANTS = _by_label(Variant)


def sized_family(name: str) -> Family:
    """The family of that name; for a variant its family with the variant's sizes."""
    variant = VARIANTS.get(name)
    if variant is None:
        return FAMILIES[name]
    family = FAMILIES[variant.family]
    return replace(
        family,
        published=variant.published or family.published,
        typical_bytes=variant.typical_bytes or family.typical_bytes,
    )


def family_of(index: Mapping[str, Any]) -> Family | None:
    """The family for the pipeline of a model_index.json, with the denoiser's config as DENOISER_CONFIG, or None."""
    named = index.get("_class_name")
    alike = [one for one in FAMILIES.values() if named in one.pipelines]
    return next((one for one in alike if one.accepts(index) and not one.other_model(index)), None)


def family_of_pipeline(pipe: DiffusionPipeline) -> Family | None:
    """The family of a loaded pipeline, or None."""
    transformer = getattr(pipe, "transformer", None)
    config = {} if transformer is None else {DENOISER_CONFIG: transformer.config}
    return family_of({**pipe.config, **config, "_class_name": type(pipe).__name__})


def adapt_denoisers(pipe: DiffusionPipeline) -> None:
    """Applies `Family.adapt` to the denoisers of a pipeline that diffusers has loaded."""
    family = family_of_pipeline(pipe)
    if family is None:
        return
    for name in family.denoisers:
        if getattr(pipe, name) is not None:
            family.adapt(getattr(pipe, name))
