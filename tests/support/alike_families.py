"""Which families a test of a part tells apart: of those alike in what it reads, the first stands for all of them.

The others have the mark `proof`: `scripts/prove.py FAMILY` runs them when the family changes, and tests/proofs.json
keeps what they found.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

import pytest

from modules.families.conditions import References
from modules.families.Family import Family
from modules.families.registry import FAMILIES
from tests.support.tiny_models import VARIANTS

if TYPE_CHECKING:
    from _pytest.mark import MarkDecorator, ParameterSet

Part = Callable[[Family], tuple[Any, ...]]


def text(family: Family) -> tuple[Any, ...]:
    """How its texts are encoded, and by which classes."""
    published = family.published
    return family.text, [each.class_name for each, _ in published.text_encoders] if published else family.name


def vae(family: Family) -> tuple[Any, ...]:
    """Its VAE, and how images and clips get in and out."""
    return family.codec, family.frame_step, family.published.vae if family.published else family.name


def blocks(family: Family) -> tuple[Any, ...]:
    """The class of its denoisers, whose code says how its blocks run in training."""
    return family.published.denoiser.class_name if family.published else family.name, family.lora_blocks


def denoiser(family: Family) -> tuple[Any, ...]:
    """How it is called, and for what: the kinds of its conditions, whose encoding is the pipeline's affair."""
    return blocks(family), [type(condition) for condition in family.conditions], family.objective


def weights(family: Family) -> tuple[Any, ...]:
    """What trains in a full fine-tune."""
    return blocks(family), text(family)


def saved(family: Family) -> tuple[Any, ...]:
    """What a full fine-tune saves: which components, of which classes where transformers may rename their weights."""
    published = family.published
    classes = [each.class_name for each, _ in published.text_encoders] if published else family.name
    return family.denoisers, family.trainable_text_encoders, classes, bool(family.optional)


def adapters(family: Family) -> tuple[Any, ...]:
    """What gets adapters, and the names that they have in files."""
    names = family.kohya_prefixes, family.kohya_blocks, family.layer_names
    return blocks(family), family.lora_targets, family.lora_mlp, names


def denoiser_class(family: Family) -> tuple[Any, ...]:
    """What diffusers builds and reads the weights of."""
    return (family.published.denoiser.class_name if family.published else family.name,)


def quantized(family: Family) -> tuple[Any, ...]:
    """Which layers of its denoisers are quantized."""
    adapted = [name for name in family.denoisers if name in family.lora_targets]
    return blocks(family), adapted, [family.unquantized.get(name) for name in adapted]


def encoders(family: Family) -> tuple[Any, ...]:
    """The classes of its text encoders, and which of their layers are quantized."""
    names = family.text.encoders
    of_each = [(family.lora_blocks.get(name), family.unquantized.get(name)) for name in names]
    return text(family)[1], of_each, family.fact(References, "needed")


def once_for_each(part: Part, argument: str = "case") -> MarkDecorator:
    """Gives a test the cases of test_conformance.py, of which the first with an equal part always runs.

    argument: of a test in another file, which gets the names of families in place of cases.
    """
    if argument != "case":
        return pytest.mark.parametrize(argument, list(_cases(part, FAMILIES)))
    return pytest.mark.parametrize("case", list(_cases(part, (*FAMILIES, *VARIANTS))), indirect=True, scope="module")


def _cases(part: Part, names: Iterable[str]) -> Iterator[ParameterSet]:
    seen: list[tuple[Any, ...]] = []
    for name in names:
        family = FAMILIES[VARIANTS.get(name, (name,))[0]]
        read = part(family)
        is_new = name in VARIANTS or read not in seen  # variants have another architecture
        seen.append(read)
        yield pytest.param(name, marks=() if is_new else pytest.mark.proof(family=family.name), id=name)
