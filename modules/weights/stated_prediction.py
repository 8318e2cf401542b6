"""What a base model says that it predicts: in its scheduler's config, or in a single file. Reads no weights."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from modules.config.errors import ModelFileError
from modules.config.model_index import read_json
from modules.weights.safe import METADATA, read_header
from modules.weights.single_file import V_PREDICTION_MARK, ZERO_SNR_MARK

if TYPE_CHECKING:
    from modules.config.ModelConfig import ModelConfig
    from modules.families.Family import Family
    from modules.weights.inspect import BaseInfo

# The field of Stability AI's ModelSpec, which sd-scripts and others write. "epsilon" is not believed: it is also what
# programs write that don't know.
_FIELD, _V = "modelspec.prediction_type", ("v", "v_prediction")


def changes_by_file(header: Mapping[str, Any]) -> dict[str, Any]:
    """What a single file says of its noise schedule, as options of a scheduler.

    header: as from `read_header`. The file says it by empty tensors or in its metadata.
    """
    changes: dict[str, Any] = {}
    if V_PREDICTION_MARK in header or header.get(METADATA, {}).get(_FIELD) in _V:
        changes["prediction_type"] = "v_prediction"
    if ZERO_SNR_MARK in header:
        # trailing: sampling must start at the last timestep, which is pure noise
        changes |= {"rescale_betas_zero_snr": True, "timestep_spacing": "trailing"}
    return changes


def files_with_denoiser(model: ModelConfig) -> Iterator[tuple[str, Path]]:
    """(setting, path) of the single safetensors files that model.base and model.denoiser name."""
    for setting, name in (("model.base", model.base), ("model.denoiser", model.denoiser)):
        path = Path(os.path.expanduser(name))
        if name and path.suffix == ".safetensors" and path.is_file():
            yield setting, path


def stated_prediction(model: ModelConfig, family: Family, base: BaseInfo) -> str:
    """What the denoiser predicts and who says so, such as "v, by the file"; "" where that is not known or no choice.

    Raises WeightsError if a file can't be read.
    """
    if family.objective != "ddpm":
        return ""
    if model.prediction_type != "auto":
        return _told(model.prediction_type, "model.prediction_type")
    for setting, path in files_with_denoiser(model):
        if said := changes_by_file(read_header(path)).get("prediction_type"):
            return _told(said, "the file" if setting == "model.base" else "the file of model.denoiser")
    folder = model.base if base.kind == "folder" else model.config_folder if base.kind == "single_file" else ""
    if folder:
        try:
            scheduler = read_json(Path(os.path.expanduser(folder)) / "scheduler" / "scheduler_config.json")
        except (OSError, ModelFileError):
            return ""  # other checks refuse it where it is needed
        where = "its scheduler" if base.kind == "folder" else "model.config_folder"
        return _told(str(scheduler.get("prediction_type", "epsilon")), where)  # the default of diffusers
    if base.kind == "single_file":
        return "what published models of its kind do; the file doesn't say, and model.prediction_type can"
    return ""


def _told(predicted: str, who: str) -> str:
    return f"{predicted.removesuffix('_prediction')}, by {who}"
