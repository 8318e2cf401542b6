"""Write resources/lora_layers.json, the layers of the published models that LoRAs adapt, or check that it is there.

    python scripts/lora_layers_reference.py --write
    python scripts/lora_layers_reference.py --check

LoRA files are told apart by it and read by it, without loading or building a model. A family's layers are listed
anew where its published model, or which components get LoRAs, are not those that the file was made from.
"""

import hashlib
import json
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from modules.families.Family import Family  # noqa: E402
from modules.families.registry import FAMILIES  # noqa: E402
from modules.weights.layer_tables import FILE, pattern_of  # noqa: E402
from scripts.generated_file import write_or_check  # noqa: E402


def main() -> int:
    return write_or_check(__doc__.splitlines()[0], {FILE: tables_text()})


def tables_text() -> str:
    """The whole file: a family a line."""
    known = json.loads(FILE.read_bytes()) if FILE.is_file() else {}
    lines = [f"{json.dumps(name)}: {json.dumps(_entry(family, known.get(name)))}" for name, family in FAMILIES.items()]
    return "{\n" + ",\n".join(lines) + "\n}\n"


def _entry(family: Family, known: dict[str, Any] | None) -> dict[str, Any]:
    published = family.published
    made_from = hashlib.sha256(repr((2, published, _components(family))).encode()).hexdigest()[:16]  # 2: of the entry
    if known and known["made_from"] == made_from:
        return known
    from scripts.published_models import build, build_denoiser

    components: dict[str, Any] = {}
    blocks: dict[str, dict[str, int]] = {}
    if published is not None:
        import torch

        encoders = dict(zip(family.text.encoders, published.text_encoders, strict=True))
        for name in _components(family):
            is_denoiser = name in family.denoisers
            module = build_denoiser(family) if is_denoiser else build(encoders[name][0], torch.bfloat16)
            components[name] = _layers(module)
            blocks[name] = _blocks(module)
    return {"made_from": made_from, "components": components, "blocks": blocks}


def _components(family: Family) -> tuple[str, ...]:
    """The first denoiser, whose layers are those of all, and the text encoders that get LoRAs."""
    return family.denoisers[0], *(name for name in family.text.encoders if name in family.lora_targets)


def _layers(module: Any) -> dict[str, list[list[int]]]:
    """Path, with {} for each number, -> the shapes of the weights of all layers with such a path."""
    # transformers 5 dropped this level of the class's paths, which LoRA files have
    level = "text_model." if type(module).__name__ == "CLIPTextModel" and not hasattr(module, "text_model") else ""
    shapes: dict[str, set[tuple[int, ...]]] = {}
    for path, layer in module.named_modules():
        weight: Any = getattr(layer, "weight", None)
        if getattr(weight, "shape", ()):
            shapes.setdefault(pattern_of(level + path), set()).add(tuple(weight.shape))
    return {path: sorted(map(list, found)) for path, found in sorted(shapes.items())}


def _blocks(module: Any) -> dict[str, int]:
    """Path of each list of blocks, in no other list -> how many it has."""
    from torch import nn

    lists = {path: len(one) for path, one in module.named_modules() if isinstance(one, (nn.ModuleList, nn.Sequential))}
    return {path: count for path, count in sorted(lists.items()) if pattern_of(path) == path}


if __name__ == "__main__":
    sys.exit(main())
