"""Base models that are named by their name on the Hugging Face Hub."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING

from modules.config.errors import UserError
from modules.machine.hub import download_model, folder_on_disk, read_model
from modules.weights.errors import WeightsError
from modules.weights.inspect import BaseInfo, check_fits, describe_index

if TYPE_CHECKING:
    from modules.families.Family import Family


def check_on_hub(name: str, family: Family, replaced: Collection[str] = ()) -> None:
    """Raises WeightsError if a model is neither on this machine nor available, or if the family can't train it.

    It takes one answer of the Hub, before anything large is downloaded. replaced: as in `needed_files`.
    """
    if folder_on_disk(name, replaced) is not None:
        return
    try:
        model = read_model(name)
    except UserError as error:
        raise WeightsError.at("model.base", str(error)) from error
    if not model.index:
        raise WeightsError.at(
            "model.base", f"{name!r} is not in diffusers' format: download its single file and use that."
        )
    pipeline = str(model.index.get("_class_name"))
    info = BaseInfo("hub", pipeline, 0, describe_index(model.index), model.index)
    check_fits(name, info, family, replaced=replaced)


def published_config(file: Path, component: str) -> Path:
    """The folder with the config.json of a component of the published model that a single file is of, by diffusers.

    It is downloaded. Raises OSError if that fails.
    """
    from diffusers.loaders.single_file_utils import fetch_diffusers_config, load_single_file_checkpoint
    from huggingface_hub import hf_hub_download

    kind = fetch_diffusers_config(load_single_file_checkpoint(str(file)))
    return Path(hf_hub_download(kind["pretrained_model_name_or_path"], f"{component}/config.json")).parent


def download_folder(name: str, setting: str = "model.base", replaced: Collection[str] = ()) -> Path:
    """The folder of a model in the Hub's cache; what is missing there is downloaded.

    replaced: as in `needed_files`. Raises WeightsError, starting with `setting`, if that fails.
    """
    try:
        model = read_model(name, replaced)
        if not model.index:
            raise UserError(f"{name!r} is not in diffusers' format: download its single file and use that.")
        return download_model(model)
    except UserError as error:
        raise WeightsError.at(setting, str(error)) from error
