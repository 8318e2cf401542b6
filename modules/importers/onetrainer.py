"""OneTrainer: settings files of every version, its built-in presets, and files of concepts and of samples."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from modules.config.errors import UserError
from modules.config.families import load_families
from modules.config.other_programs import load_program
from modules.importers.ImportResult import ImportResult
from modules.importers.onetrainer_data import take_concepts, take_samples
from modules.importers.onetrainer_model import OF_MODEL
from modules.importers.onetrainer_optimizer import OF_OPTIMIZER
from modules.importers.onetrainer_parts import OF_PARTS
from modules.importers.onetrainer_training import OF_TRAINING
from modules.importers.onetrainer_versions import to_present
from modules.importers.Translation import Translation

NAME = "onetrainer"
FILES = "OneTrainer's .json files of settings, presets, concepts and samples"
_OF_SETTINGS = {"training_method", "base_model_name", "train_unet", "concept_file_name", "output_model_destination"}
_OF_CONCEPTS = {"image_variations", "text_variations", "include_subdirectories", "image", "text"}
_OF_SAMPLES = {"diffusion_steps", "cfg_scale", "noise_scheduler", "random_seed"}


def recognizes(path: Path, content: Any) -> bool:
    """Whether a file with this content is of OneTrainer."""
    if isinstance(content, Mapping):
        has_type = isinstance(content.get("model_type"), str) and content["model_type"].isupper()
        return path.suffix.lower() == ".json" and (has_type or len(_OF_SETTINGS & content.keys()) > 1)
    return _are(content, _OF_CONCEPTS) or _are(content, _OF_SAMPLES)


def translate(path: Path, content: Any) -> ImportResult:
    """The settings of a file that `recognizes` knows.

    path: where relative paths of the file are looked for.
    Raises UserError if Chorus lacks the model, or the version is unknown.
    """
    program = load_program(NAME)
    if isinstance(content, list):
        translation = Translation(program, {})
        result = translation.result
        if _are(content, _OF_CONCEPTS):
            take_concepts(translation, content)
        else:
            take_samples(translation, content, "")
        return result
    given = to_present(dict(content), path.name.startswith("#"))
    translation = Translation(program, given)
    translation.folder = path.parent
    model = translation["model_type"]
    if program.facts["families"].get(model) not in load_families():
        raise UserError(
            f"model_type {model!r} of OneTrainer: Chorus does not train this model; import its concepts alone."
        )
    return translation.run(OF_MODEL | OF_OPTIMIZER | OF_PARTS | OF_TRAINING)


def _are(content: Any, names: set[str]) -> bool:
    is_list = isinstance(content, list) and bool(content)
    return is_list and all(isinstance(entry, Mapping) and names & entry.keys() for entry in content)
