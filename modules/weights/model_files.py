"""Saves a complete trained model as a diffusers folder and a single-file checkpoint."""

from __future__ import annotations

import copy
import inspect
import json
from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING

from modules.session.atomic import new_folder
from modules.weights.errors import WeightsError
from modules.weights.safe import errors_of_the_disk, load_tensors, save_tensors
from modules.weights.single_file import save_single_file, single_file_tensors

if TYPE_CHECKING:
    import torch
    from diffusers.pipelines.pipeline_utils import DiffusionPipeline
    from torch import nn

    from modules.config.OutputConfig import OutputConfig
    from modules.families.Family import Family
    from modules.weights.BaseModel import BaseModel


def save_model(base: BaseModel, output: OutputConfig, folder: Path, name: str, metadata: dict[str, str]) -> list[Path]:
    """Saves the model in the requested formats: `folder/name/` (diffusers) and `folder/name.safetensors`.

    The folder is made. Components that did not train are read from the base again where they are not in memory.
    """
    import torch

    check_format(base.family, output)
    dtype = getattr(torch, output.dtype)
    folder.mkdir(parents=True, exist_ok=True)
    has_single_file = base.family.single_file is not None
    written = []
    with base.using(*base.component_names, on_device=False) as pipe:
        if output.format in ("diffusers", "both"):
            save_folder(pipe, folder / name, dtype, base.family.exact_components)
            written.append(folder / name)
        if output.format in ("single_file", "both") and has_single_file:
            path = folder / f"{name}.safetensors"
            save_single_file(path, base.family, pipe.components, dtype, metadata, output.float8_denoiser)
            written.append(path)
    return written


def model_bytes(base: BaseModel, output: OutputConfig) -> int:
    """The approximate number of bytes that `save_model` writes."""
    import torch

    modules = (base.meta_module(name) for name in base.component_names)
    states = [module.state_dict(keep_vars=True) for module in modules if hasattr(module, "state_dict")]
    written = {id(tensor): tensor for state in states for tensor in state.values()}  # tied weights are saved once
    numbers = sum(tensor.numel() for tensor in written.values())
    num_formats = 2 if output.format == "both" and base.family.single_file is not None else 1
    return num_formats * numbers * getattr(torch, output.dtype).itemsize


def check_names(base: BaseModel, output: OutputConfig) -> None:
    """Raises WeightsError if a single file is requested that has no names for some layers of this model."""
    if output.format != "diffusers" and base.family.single_file is not None:
        single_file_tensors(base.family, {name: base.meta_module(name) for name in base.component_names})


def check_format(family: Family, output: OutputConfig) -> None:
    """Raises WeightsError if only a single file is requested and the family has no layout for it."""
    if output.format == "single_file" and family.single_file is None:
        raise WeightsError.at(
            "output.format", f"'single_file': {family.label} can only be saved in diffusers' format; use diffusers."
        )


def save_folder(pipe: DiffusionPipeline, path: Path, dtype: torch.dtype, exact: Collection[str] = ()) -> None:
    """Writes a diffusers folder atomically, without changing the pipeline.

    exact: the components that are not cast to `dtype`, as in Condition.
    """
    dtypes: dict[str, torch.dtype | None] = {**dict.fromkeys(pipe.components, dtype), **dict.fromkeys(exact)}
    components = {
        name: _copy_on_cpu(component, dtypes[name]) if hasattr(component, "parameters") else component
        for name, component in pipe.components.items()
    }
    taken = inspect.signature(type(pipe).__init__).parameters
    options = {name: value for name, value in pipe.config.items() if name in taken and name not in components}
    with new_folder(path) as temporary:
        with errors_of_the_disk(path):
            type(pipe)(**components, **options).save_pretrained(temporary, safe_serialization=True)
        _name_clip_keys(temporary)
        _forget_source(temporary)


def _copy_on_cpu(component: nn.Module, dtype: torch.dtype | None) -> nn.Module:
    """A copy for saving, so that training weights stay unchanged; on the CPU, because GPU memory may be too small."""
    import torch

    def cast(tensor: torch.Tensor) -> torch.Tensor:
        is_cast = dtype is not None and tensor.is_floating_point()
        return tensor.detach().to("cpu", dtype if is_cast else tensor.dtype, copy=True)

    # deepcopy uses the entries of its memo instead of copying
    memo: dict[int, torch.Tensor] = {}
    memo |= {id(param): torch.nn.Parameter(cast(param), requires_grad=False) for param in component.parameters()}
    memo |= {id(buffer): cast(buffer) for buffer in component.buffers()}
    # computed of others in each forward pass, as by `weight_norm`: not saved, and of a graph that can't be copied
    attributes = [value for module in component.modules() for value in vars(module).values()]
    memo |= {id(value): value.detach() for value in attributes if isinstance(value, torch.Tensor)}
    return copy.deepcopy(component, memo)


def _name_clip_keys(folder: Path) -> None:
    """Adds the `text_model.` level to CLIP's keys, which transformers 5 dropped and other programs expect."""
    for path in folder.glob("text_encoder*/model.safetensors"):
        tensors = load_tensors(path)
        if "embeddings.token_embedding.weight" in tensors:
            levels = ("embeddings.", "encoder.", "final_layer_norm.")
            named = {f"text_model.{name}" if name.startswith(levels) else name: t for name, t in tensors.items()}
            save_tensors(path, named)


def _forget_source(folder: Path) -> None:
    """Removes the local path of the base model, which diffusers stores, from the configuration files."""
    for path in folder.glob("*/config.json"):
        config = json.loads(path.read_text(encoding="utf-8"))
        if config.pop("_name_or_path", None) is not None:
            path.write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
