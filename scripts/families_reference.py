"""Write resources/families.json, what is known of the model families without torch, or check that it is up to date.

    python scripts/families_reference.py --write
    python scripts/families_reference.py --check

What a training takes of memory is counted on a family's published model, which takes a while and needs torch, and only
done where that model, or the layers that get adapters or are quantized, are not those that the file was counted from.
"""

import hashlib
import json
import sys
from collections.abc import Callable
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from modules.config.families import FamilyInfo  # noqa: E402
from modules.families.Family import Family  # noqa: E402
from modules.families.registry import FAMILIES, VARIANTS, sized_family  # noqa: E402
from scripts.generated_file import write_or_check  # noqa: E402

FILE = ROOT / "resources" / "families.json"


def main() -> int:
    return write_or_check(__doc__.splitlines()[0], {FILE: families_text()})


def families_text() -> str:
    """The whole file: a list with one entry for each family."""
    entries = json.loads(FILE.read_bytes()) if FILE.is_file() else []
    counted = {entry["name"]: entry for entry in entries}
    return json.dumps([_entry(family, counted.get(family.name, {})) for family in FAMILIES.values()], indent=2) + "\n"


# What FamilyInfo has in another form, or under another name, than Family.
TRANSLATED: dict[str, Callable[[Family], Any]] = {
    "text_encoders": lambda family: family.text.encoders,
    "text_trainable": lambda family: family.text.trainable,
    "groups_texts": lambda family: family.text.collate == "group",
    "skips_layers": lambda family: family.text.skips_layers,
    "takes_chunks": lambda family: family.text.takes_chunks,
    "lora_targets": lambda family: list(family.lora_targets),
    "embedding_keys": lambda family: list(family.embedding_keys),
    "conditions": lambda family: {condition.name: condition.facts for condition in family.conditions},
    "frames_per_token": lambda family: family.frames_per_token or family.frame_step,
    "has_kohya_loras": lambda family: bool(family.kohya_prefixes),
    "training_timesteps": lambda family: family.training_timesteps and asdict(family.training_timesteps),
    "experts": lambda family: family.experts is not None,
}
COUNTED = ("memory", "attention", "variants")  # by what takes long


def _entry(family: Family, counted: dict[str, Any]) -> dict[str, Any]:
    """counted: the entry of before, for what it takes long to count."""
    names = [field.name for field in fields(FamilyInfo) if field.name not in COUNTED]
    entry = {name: TRANSLATED[name](family) if name in TRANSLATED else getattr(family, name) for name in names}
    return {**entry, **_counts(family, counted), "variants": _variants(family, counted.get("variants", {}))}


def _counts(family: Family, counted: dict[str, Any]) -> dict[str, Any]:
    memory, before = _memory(family, counted.get("memory")), counted.get("memory")
    is_same = bool(memory and before and memory["counted_from"] == before["counted_from"])
    return {"memory": memory, "attention": _attention(family, counted.get("attention") if is_same else None)}


def _variants(family: Family, counted: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Of each variant its name and base model, and what differs from the family's."""
    found: dict[str, dict[str, Any]] = {}
    for name, variant in VARIANTS.items():
        if variant.family != family.name:
            continue
        found[name] = {"label": variant.label, "base": variant.base}
        if variant.published is not None:
            counts = _counts(sized_family(name), counted.get(name, {}))
            found[name] |= {"typical_bytes": variant.typical_bytes, **counts}
    return found


def _attention(family: Family, counted: dict[str, Any] | None) -> dict[str, Any] | None:
    """What is counted of the family's published model; None where there is none."""
    if family.published is None or counted:
        return counted
    from scripts.attention_counts import count_attentions

    return count_attentions(family)


def _memory(family: Family, counted: dict[str, Any] | None) -> dict[str, Any] | None:
    """What is counted of the family's published model; None where there is none."""
    if family.published is None:
        return None
    counted_from = _digest(family)
    if counted and counted["counted_from"] == counted_from:
        return counted
    from scripts.model_counts import count

    return {"counted_from": counted_from, **count(family)}


def _digest(family: Family) -> str:
    """Of all that the count depends on, but for the libraries."""
    tables = (family.lora_targets, family.lora_mlp, family.lora_blocks, family.unquantized)
    parts: tuple[object, ...] = (family.published, len(family.denoisers), *tables, family.can_train_vae)
    parts += (family.unchecked_blocks,) if family.unchecked_blocks else ()
    parts += (family.published.connectors,) if family.published and family.published.connectors else ()
    parts += (family.published.image_features,) if family.published and family.published.image_features else ()
    parts += (family.frame_step, family.codec.encode_pieces is None) if family.frame_step else ()
    parts += (family.frame_rest,) if family.frame_rest != 1 else ()
    parts += (family.guidance_denoisers,) if family.guidance_denoisers else ()
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:16]


if __name__ == "__main__":
    sys.exit(main())
