"""Loads one component of a model from its folder, as diffusers or transformers does."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from modules.machine.weight_files import loaded_variant
from modules.weights.component_classes import no_code

if TYPE_CHECKING:
    import torch


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


def is_of_transformers(component_class: type[Any]) -> bool:
    """Also whether it is a model that a pipeline of diffusers brings along, based on transformers' classes."""
    from transformers import PreTrainedModel

    return issubclass(component_class, PreTrainedModel)
