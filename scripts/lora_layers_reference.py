"""Write resources/lora_layers.json, the layers of the published models that LoRAs adapt, or check that it is there.

    python scripts/lora_layers_reference.py --write
    python scripts/lora_layers_reference.py --check

LoRA files are told apart by it and read by it, and the estimate of memory counts by it which layers train, without
loading or building a model. modules/machine/published_layers.py says what is in it. A family's layers are listed anew
where its published model, or which components get LoRAs, are not those that the file was made from.
"""

import hashlib
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from modules.families.Family import Family  # noqa: E402
from modules.families.registry import FAMILIES, VARIANTS, sized_family  # noqa: E402
from modules.machine.published_layers import FILE, write_numbers  # noqa: E402
from modules.weights.layer_tables import NUMBER, pattern_of  # noqa: E402
from scripts.generated_file import write_or_check  # noqa: E402


def main() -> int:
    return write_or_check(__doc__.splitlines()[0], {FILE: tables_text()})


def tables_text() -> str:
    """The whole file: a family, or a variant with sizes of its own, a line."""
    known = json.loads(FILE.read_bytes()) if FILE.is_file() else {}
    models = [*FAMILIES, *(name for name, variant in VARIANTS.items() if variant.published is not None)]
    lines = [f"{json.dumps(name)}: {json.dumps(_entry(sized_family(name), known.get(name)))}" for name in models]
    return "{\n" + ",\n".join(lines) + "\n}\n"


def _entry(family: Family, known: dict[str, Any] | None) -> dict[str, Any]:
    made_from = hashlib.sha256(repr((4, family.published, _components(family))).encode()).hexdigest()[:16]  # 4: entries
    listed = known if known and known["made_from"] == made_from else {"made_from": made_from, **_listed(family)}
    adapted = {name: _adapted(family, name) for name in _components(family)}
    return {**listed, "adapted": adapted}


def _adapted(family: Family, component: str) -> dict[str, Sequence[str]]:
    tables = {"blocks": family.lora_blocks, "attention": family.lora_targets, "mlp": family.lora_mlp}
    return {name: table.get(component, ()) for name, table in tables.items()}


def _listed(family: Family) -> dict[str, Any]:
    """What building the published model tells of it."""
    from scripts.published_models import build, build_denoiser

    components: dict[str, Any] = {}
    others: dict[str, Any] = {}
    blocks: dict[str, dict[str, int]] = {}
    if (published := family.published) is not None:
        import torch

        encoders = dict(zip(family.text.encoders, published.text_encoders, strict=True))
        for name in _components(family):
            is_denoiser = name in family.denoisers
            module = build_denoiser(family) if is_denoiser else build(encoders[name][0], torch.bfloat16)
            components[name], others[name] = _layers(module)
            blocks[name] = _blocks(module)
    return {"components": components, "others": others, "blocks": blocks}


def _components(family: Family) -> tuple[str, ...]:
    """The first denoiser, whose layers are those of all, and the text encoders that get LoRAs."""
    return family.denoisers[0], *(name for name in family.text.encoders if name in family.lora_targets)


def _layers(module: Any) -> tuple[dict[str, dict[str, list[int]]], dict[str, dict[str, int]]]:
    """Pattern -> numbers of the paths -> the shape of the weight, of all layers that have one; and the same of layers
    that have other parameters alone, with how many weights these are."""
    # transformers 5 dropped this level of the class's paths, which LoRA files have
    level = "text_model." if type(module).__name__ == "CLIPTextModel" and not hasattr(module, "text_model") else ""
    shapes: dict[str, dict[Any, list[tuple[int, ...]]]] = {}
    others: dict[str, dict[Any, list[tuple[int, ...]]]] = {}
    for path, layer in module.named_modules():
        weight: Any = getattr(layer, "weight", None)
        numbers = tuple(int(number) for number in NUMBER.findall(path))
        if shape := tuple(getattr(weight, "shape", ())):
            shapes.setdefault(pattern_of(level + path), {}).setdefault(shape, []).append(numbers)
        elif count := sum(param.numel() for param in layer.parameters(recurse=False)):
            others.setdefault(pattern_of(level + path), {}).setdefault(count, []).append(numbers)
    return _by_numbers(shapes), _by_numbers(others)


def _by_numbers(found: dict[str, dict[Any, list[tuple[int, ...]]]]) -> dict[str, dict[str, Any]]:
    return {
        pattern: {write_numbers(numbers): value for value, numbers in sorted(values.items())}
        for pattern, values in sorted(found.items())
    }


def _blocks(module: Any) -> dict[str, int]:
    """Path of each list of blocks, in no other list -> how many it has."""
    from torch import nn

    lists = {path: len(one) for path, one in module.named_modules() if isinstance(one, (nn.ModuleList, nn.Sequential))}
    return {path: count for path, count in sorted(lists.items()) if pattern_of(path) == path}


if __name__ == "__main__":
    sys.exit(main())
