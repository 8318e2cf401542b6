"""Which parts of a model a single file has, told by the names of its tensors."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from modules.weights.errors import WeightsError
from modules.weights.safe import read_header, tensor_shapes
from modules.weights.single_file import SD3_PREFIXES, VAE_PREFIX

if TYPE_CHECKING:
    from modules.config.ModelConfig import ModelConfig
    from modules.families.Family import Family

# The layout of a family -> its text encoders -> what the names of their tensors begin with.
_TEXT_ENCODERS = {
    "ldm": {"text_encoder": "cond_stage_model."},
    "sgm": {"text_encoder": "conditioner.embedders.0.", "text_encoder_2": "conditioner.embedders.1."},
    "mmdit": SD3_PREFIXES,
}
_VAE_PREFIXES = (VAE_PREFIX, "vae.")  # as diffusers finds it


def has_vae(names: Iterable[str]) -> bool:
    """Whether a VAE is among the tensors of a single file."""
    return any(name.startswith(_VAE_PREFIXES) for name in names)


def check_single_file(model: ModelConfig, family: Family) -> None:
    """Raises WeightsError if the single file of model.base lacks a part, and no other setting names one."""
    assert family.single_file is not None  # `check_base` refuses the others
    names = tensor_shapes(read_header(Path(os.path.expanduser(model.base))))
    for part, start in _TEXT_ENCODERS[family.single_file].items():
        if part not in family.optional and not any(name.startswith(start) for name in names):
            raise WeightsError(
                f"model.base {model.base!r}: has no {part}, which {family.label} needs; choose a checkpoint that "
                "contains the complete model, and this file as model.denoiser."
            )
    if not model.vae and not has_vae(names):
        raise WeightsError(
            f"model.base {model.base!r}: has no VAE; set model.vae to that of a {family.label} model, or choose a "
            "checkpoint that contains the complete model."
        )
