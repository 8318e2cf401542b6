"""The layers of the families' published models, without torch, and how many of their weights a run trains.

`resources/lora_layers.json` lists them; scripts/lora_layers_reference.py writes it. By them LoRA files are read, too
(modules/weights/layer_tables.py).
"""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache, lru_cache
from typing import TYPE_CHECKING, Any

from modules.config.families import model_of
from modules.config.installation import ROOT
from modules.config.layer_patterns import has_ending, matches_layer, select_layers
from modules.config.layer_ranks import read_layer_ranks
from modules.config.methods import facts_of

if TYPE_CHECKING:
    from modules.config.PartConfig import PartConfig
    from modules.config.TrainConfig import TrainConfig

FILE = ROOT / "resources" / "lora_layers.json"

_LEVEL = "text_model."


@cache
def layer_entries() -> dict[str, dict[str, Any]]:
    """The file: the name of a family, or of a variant with sizes of its own -> what is listed of its published model.

    components: component -> pattern, which is the path of layers with {} for each number -> their numbers, in the form
    of `write_numbers` -> the shape of the weight that layers with these numbers have.
    others: the same as components for layers that have other parameters alone, with how many weights these are.
    blocks: component -> path of each list of blocks that is in no other -> how many it has.
    adapted: component -> prefixes of the "blocks" that adapters can be in, and how the layers of their "attention" and
    "mlp" end.
    """
    return json.loads(FILE.read_bytes())


def write_numbers(found: Sequence[tuple[int, ...]]) -> str:
    """The numbers in the paths of layers, as in "1.0-1.0-1,2.0-1.0-9": for each number of a path the first and the
    last, and several such products where one does not say it."""
    products: list[list[tuple[int, int]]] = [[(number, number) for number in numbers] for numbers in sorted(found)]
    for place in reversed(range(len(found[0]))):
        merged: list[list[tuple[int, int]]] = []
        for product in products:
            last = merged[-1] if merged else product
            if merged and last[place][1] + 1 == product[place][0] and _without(last, place) == _without(product, place):
                merged[-1] = [*last[:place], (last[place][0], product[place][1]), *last[place + 1 :]]
            else:
                merged.append(product)
        products = merged
    return ",".join(
        ".".join(f"{first}-{last}" if last > first else str(first) for first, last in product) for product in products
    )


def _without(product: Sequence[tuple[int, int]], place: int) -> list[tuple[int, int]]:
    return [*product[:place], *product[place + 1 :]]


def read_numbers(text: str) -> Iterator[tuple[int, ...]]:
    for product in text.split(","):
        ranges = [[int(number) for number in part.split("-")] for part in product.split(".") if part]
        yield from itertools.product(*(range(each[0], each[-1] + 1) for each in ranges))


@cache
def published_layers(model: str, component: str) -> Mapping[str, tuple[int, ...]]:
    """Path -> shape of the weight, of each layer of a component that has one; empty if it is not listed.

    model: name of the family, or of a variant with sizes of its own.
    """
    return {path: tuple(shape) for path, shape in _listed("components", model, component)}


def _listed(section: str, model: str, component: str) -> Iterator[tuple[str, Any]]:
    """(path of a layer, what a section of the file says of it)."""
    blocks = _adapted(model, component).get("blocks", ())
    # a level of text encoders that LoRA files have, and models only in some versions of transformers
    level = "" if any(block.startswith(_LEVEL) for block in blocks) else _LEVEL
    for pattern, values in layer_entries().get(model, {}).get(section, {}).get(component, {}).items():
        for text, value in values.items():
            for numbers in read_numbers(text):
                yield pattern.format(*numbers).removeprefix(level), value


def trained_share(config: TrainConfig, component: str, part: PartConfig) -> float:
    """What the settings leave to train of a component: the share of its weights or, of adapters, of those that all
    layers of `lora.targets` would have with `lora.rank`, which `layer_ranks` may exceed.

    component: the first denoiser, whose layers are those of all, or a text encoder. part: its settings. 1 for a
    component that is not listed, for a LoRA that determines its layers itself, and where no layers match, which is
    refused before a start.
    """
    lora, model, patterns = config.lora, model_of(config).name, (part.include_layers, part.exclude_layers)
    if not facts_of(config).trains_adapters:
        is_whole = part.layers == "all" and not any(patterns)
        return 1.0 if is_whole else _full_share(model, component, *patterns, part.layers)
    is_whole = not any(patterns) and lora.conv_rank is None and not lora.layer_ranks
    if is_whole or lora.start_from:
        return 1.0
    return _adapted_share(model, component, *patterns, lora.targets, lora.rank, lora.conv_rank, lora.layer_ranks)


@lru_cache(maxsize=64)
def _full_share(model: str, component: str, include: str, exclude: str, layers: str) -> float:
    sizes = {name: math.prod(shape) for name, shape in published_layers(model, component).items()}
    sizes |= dict(_listed("others", model, component))
    return _share(sizes, targeted_layers(model, component, layers, sizes), include, exclude, of=sum(sizes.values()))


@lru_cache(maxsize=64)
def _adapted_share(
    model: str,
    component: str,
    include: str,
    exclude: str,
    targets: str,
    rank: int,
    conv_rank: int | None,
    layer_ranks: str,
) -> float:
    shapes, ranks = published_layers(model, component), _ranks(layer_ranks)
    candidates = targeted_layers(model, component, targets, shapes)
    # a convolution's second matrix is one of 1 x 1
    sizes = {name: shapes[name][0] + math.prod(shapes[name][1:]) for name in candidates}

    def rank_of(name: str) -> int:
        is_large = math.prod(shapes[name][2:]) > 1  # kernels of 1 x 1 count as linear layers, as in LoCon's conv_dim
        own = (rank for pattern, rank in ranks.items() if matches_layer(name, pattern))
        return next(own, conv_rank if is_large and conv_rank is not None else rank)

    trained = {name: size * rank_of(name) for name, size in sizes.items()}
    return _share(trained, candidates, include, exclude, of=rank * sum(sizes.values()))


def _ranks(text: str) -> dict[str, int]:
    try:
        return read_layer_ranks(text)
    except ValueError:  # which the checks of the settings report
        return {}


def _share(sizes: Mapping[str, int], candidates: Sequence[str], include: str, exclude: str, of: int) -> float:
    selected = select_layers(candidates, include, exclude)[1]
    return (sum(sizes[name] for name in selected) / of if of else 0.0) or 1.0


def targeted_layers(model: str, component: str, layers: str, names: Iterable[str]) -> list[str]:
    """The layers that `lora.targets` or `layers` of a part stand for, as modules/methods/layers.py finds them in a
    model. names: of all."""
    if layers == "all":
        return list(names)
    adapted = _adapted(model, component)
    in_blocks = [name for name in names if name.startswith(tuple(adapted.get("blocks", ())))]
    if layers == "blocks":
        return in_blocks
    if layers in ("linear", "linear_conv"):
        shapes, most = published_layers(model, component), 2 if layers == "linear" else 4
        # without norms and without grouped convolutions, which are those of single channels
        return [name for name in in_blocks if 2 <= len(shapes[name]) <= most and shapes[name][1] > 1]
    endings = [*adapted.get("attention", ()), *(adapted.get("mlp", ()) if layers == "attention_mlp" else ())]
    return [name for name in in_blocks if has_ending(name, endings)]


def _adapted(model: str, component: str) -> Mapping[str, Sequence[str]]:
    return layer_entries().get(model, {}).get("adapted", {}).get(component, {})
