"""Models whose weights have the names of a variant, as some are published."""

from __future__ import annotations

import json
from pathlib import Path

from modules.weights.safe import load_tensors, save_tensors


def rename_weights(folder: Path, variant: str) -> Path:
    """Gives all weights of a diffusers folder the names of a variant. Returns the folder."""
    for file in folder.glob("*/*.safetensors"):
        file.rename(file.with_suffix(f".{variant}.safetensors"))
    return folder


def shard(file: Path) -> None:
    """Divides the weights of a variant into two files, named as older versions of diffusers do."""
    tensors = load_tensors(file)
    stem, variant, _ = file.name.split(".")
    names = [f"{stem}.{variant}-{number:05d}-of-00002.safetensors" for number in (1, 2)]
    places = {name: names[number % 2] for number, name in enumerate(sorted(tensors))}
    for name in names:
        save_tensors(file.with_name(name), {key: tensors[key].clone() for key in tensors if places[key] == name})
    index = {"metadata": {"total_size": 0}, "weight_map": places}
    file.with_name(f"{stem}.safetensors.index.{variant}.json").write_text(json.dumps(index), encoding="utf-8")
    file.unlink()
