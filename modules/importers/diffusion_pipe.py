"""diffusion-pipe: training files and dataset files."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from modules.importers.diffusion_pipe_data import OF_DATA, take_dataset
from modules.importers.diffusion_pipe_model import OF_MODEL
from modules.importers.diffusion_pipe_optimizer import OF_OPTIMIZER
from modules.importers.diffusion_pipe_training import OF_TRAINING
from modules.importers.DiffusionPipeTranslation import DiffusionPipeTranslation
from modules.importers.foreign_values import shown
from modules.importers.ImportResult import ImportResult
from modules.importers.ListEntry import entries

FILES = "diffusion-pipe's files of a training and of a dataset (.toml)"
_BESIDE = ("dataset", "output_dir", "optimizer", "adapter", "epochs")


def recognizes(path: Path, content: Any) -> bool:
    """Whether a file with this content is of diffusion-pipe."""
    if path.suffix.lower() != ".toml" or not isinstance(content, Mapping):
        return False
    return _is_dataset(content) or _is_training(content)


def translate(path: Path, content: Any) -> ImportResult:
    """The settings of a file that `recognizes` knows. Raises UserError if Chorus lacks its model."""
    if not _is_training(content):
        translation = DiffusionPipeTranslation({}, path.parent, content)
        take_dataset(translation)
        return translation.result
    t = DiffusionPipeTranslation(content, path.parent)
    t.take_line("family", t.family.name, shown("model.type", t["model.type"]), t.family_why)
    t.take_line("method", t.method.name, "[adapter]" if t.method.trains_adapters else "no [adapter]")
    t.take_line("lr_scaling", "none", "optimizer.lr", is_given=False)
    return t.run(OF_MODEL | OF_OPTIMIZER | OF_TRAINING | OF_DATA)


def _is_training(content: Mapping[str, Any]) -> bool:
    model = content.get("model")
    return isinstance(model, Mapping) and "type" in model and any(name in content for name in _BESIDE)


def _is_dataset(content: Mapping[str, Any]) -> bool:
    return any("path" in entry for entry in entries(content.get("directory")))
