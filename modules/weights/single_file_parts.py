"""Which parts of a model a single file has, told by the names of its tensors."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from modules.weights.errors import WeightsError
from modules.weights.hub_parts import with_parts_on_disk
from modules.weights.safe import read_header, tensor_shapes
from modules.weights.single_file import SD3_PREFIXES, VAE_PREFIX
from modules.weights.text_encoder_files import encoder_files

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


def has_part(names: Iterable[str], component: str, family: Family) -> bool:
    """Whether the VAE or a text encoder is among the tensors of a single file."""
    assert family.single_file is not None  # `check_base` refuses the others
    starts = _VAE_PREFIXES if component == family.vae else _TEXT_ENCODERS[family.single_file][component]
    return any(name.startswith(starts) for name in names)


def check_single_file(model: ModelConfig, family: Family) -> None:
    """Raises WeightsError if the single file of model.base lacks a part, and no other setting names one."""
    names = tensor_shapes(read_header(Path(os.path.expanduser(model.base))))
    on_disk = with_parts_on_disk(model)
    given = {*family.optional, *encoder_files(family, on_disk)}
    is_known = len(on_disk.text_encoders) == len(model.text_encoders)  # files tell which text encoder they have
    for part in family.text.encoders if is_known else ():
        if part not in given and not has_part(names, part, family):
            raise WeightsError.at(
                "model.base",
                f"{model.base!r}: has no {part}, which {family.label} needs; add its file to "
                "model.text_encoders, or choose a checkpoint that contains the complete model.",
            )
    if not model.vae and not has_part(names, family.vae, family):
        raise WeightsError.at(
            "model.base",
            f"{model.base!r}: has no VAE; set model.vae to that of a {family.label} model, or choose a "
            "checkpoint that contains the complete model.",
        )
