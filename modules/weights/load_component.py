"""Loads one component of a model from its folder, as diffusers or transformers does."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from modules.machine.hub import shards_in
from modules.machine.weight_files import loaded_variant, loaded_weights
from modules.weights.component_classes import no_code
from modules.weights.errors import WeightsError
from modules.weights.safe import SAFETENSORS, read_header, tensor_types

if TYPE_CHECKING:
    import torch

STAYING = {"F32", "I64", "I32", "BOOL"}  # the types of tensors that a component in float32 keeps


def load_component(component_class: type[Any], folder: Path, name: str, dtype: torch.dtype) -> tuple[Any, str]:
    """The component, and one of the tensors that its files lack, which the libraries initialize at random; else "".

    folder: of the model. name: of the component's folder in it, "" if `folder` is the component's.
    Raises whatever the libraries raise.
    """
    variant = loaded_variant([file.name for file in (folder / name).iterdir()])
    options = {"dtype" if is_of_transformers(component_class) else "torch_dtype": dtype, "variant": variant}
    component, report = component_class.from_pretrained(
        folder, subfolder=name or None, output_loading_info=True, **options, **no_code(component_class)
    )
    return component, min(report["missing_keys"], default="")


def is_cast(folder: Path, dtype: torch.dtype) -> bool:
    """Whether loading a component may cast weights: all but those of safetensors files that are float32 and stay so.

    Of other types, both libraries keep some in float32 (`_keep_in_fp32_modules`). folder: of the component.
    """
    if str(dtype) != "torch.float32":
        return True
    try:
        files = weight_files(folder)
        if any(path.suffix != SAFETENSORS for path in files):
            return True
        return not all(tensor_types(read_header(path)) <= STAYING for path in files)
    except (WeightsError, OSError):  # which loading it will tell
        return True


def weight_files(folder: Path) -> list[Path]:
    """The files with the weights of a component, without their index."""
    names = loaded_weights([file.name for file in folder.iterdir()])
    index = next((name for name in names if name.endswith(".json")), "")
    return [folder / name for name in (shards_in(folder / index) if index else names)]


def is_of_transformers(component_class: type[Any]) -> bool:
    """Also whether it is a model that a pipeline of diffusers brings along, based on transformers' classes."""
    from transformers import PreTrainedModel

    return issubclass(component_class, PreTrainedModel)
