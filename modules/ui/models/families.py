"""What the window knows of the model families, from resources/families.json: it can't ask the families themselves,
whose rooms belong to the training."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import lru_cache

from modules.config.presets import ROOT

PATH = ROOT / "resources" / "families.json"


@dataclass(frozen=True)
class FamilyInfo:
    """One family; scripts/families_reference.py writes it.

    label: as people know it. denoisers, text_encoders, vae: names of the model's parts. objective: "ddpm" or "flow".
    align: pixel sizes are multiples of it. typical_bytes: of the whole model in float32. single_file: the layout in
    which it can be written as a single file, None where there is none. embeddings: whether it can learn new words.
    """

    name: str
    label: str
    denoisers: tuple[str, ...]
    text_encoders: tuple[str, ...]
    vae: str
    objective: str
    align: int
    typical_bytes: float
    single_file: str | None
    embeddings: bool


@lru_cache(maxsize=1)
def load_families() -> dict[str, FamilyInfo]:
    """The families by name, in the order in which they are offered."""
    entries = json.loads(PATH.read_bytes())
    listed = ("denoisers", "text_encoders")
    infos = [FamilyInfo(**{**entry, **{name: tuple(entry[name]) for name in listed}}) for entry in entries]
    return {info.name: info for info in infos}
