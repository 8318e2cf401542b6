"""Plants code in a model's folder that leaves a canary where it runs, and opens such a folder by every door."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from modules.config.ModelConfig import ModelConfig
from modules.families.Family import Family
from modules.weights.BaseModel import BaseModel
from modules.weights.load_pipeline import load_pipeline

# The names under which the libraries look for the code of a folder.
MODULES = ("modeling_evil", "pipeline", "evil", "UNet2DConditionModel", "custom")
LIBRARIES = ("diffusers", "transformers")  # diffusers refuses a part with a file of this name beside it
AUTO_MAP = dict.fromkeys(
    ("AutoModel", "AutoConfig", "AutoTokenizer", "AutoProcessor", "AutoImageProcessor"), "modeling_evil.Evil"
)


def plant_code(folder: Path, canary: Path, modules: tuple[str, ...] = MODULES) -> None:
    """Puts modules into the folder and its parts that make `canary` when they are imported."""
    source = f"import os\nos.makedirs({str(canary)!r}, exist_ok=True)\n\n\nclass Evil:\n    pass\n"
    for place in (folder, *(part for part in folder.iterdir() if part.is_dir())):
        for module in modules:
            (place / f"{module}.py").write_text(source)


def edit_json(path: Path, **values: Any) -> None:
    path.write_text(json.dumps({**json.loads(path.read_text(encoding="utf-8")), **values}), encoding="utf-8")


class Canary:
    """Unpickling it makes a folder."""

    def __init__(self, path: Path):
        self.path = str(path)

    def __reduce__(self):
        return os.mkdir, (self.path,)


def doors(folder: Path, family: Family) -> Iterator[tuple[str, Any]]:
    """(name, a function that loads all of the folder): for training, with sharded weights, and for sampling."""
    device = torch.device("cpu")

    def train(lazily: bool = False) -> BaseModel:
        base = BaseModel(family, ModelConfig(base=str(folder)), device)
        base.require(*base.component_names, lazily=lazily)
        return base

    yield "training", train
    yield "sharded", lambda: train(lazily=True)
    yield "sampling", lambda: load_pipeline(str(folder), {}, device)
