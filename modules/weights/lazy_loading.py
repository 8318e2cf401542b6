"""Builds a denoiser with its weights left in their files, for ranks of which each reads only some rows of them."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from modules.distributed.placeholders import placeholder
from modules.weights.load_component import weight_files
from modules.weights.safe import SAFETENSORS, load_tensors, read_header, tensor_shapes

if TYPE_CHECKING:
    from diffusers.models.modeling_utils import ModelMixin
    from torch import Tensor


def load_lazily(component_class: type[Any], folder: Path, dtype: torch.dtype) -> ModelMixin | None:
    """The model that diffusers' `from_pretrained` would load, with placeholders for its parameters.

    None if its files need more than to be read: pickles, old tensor names, or tensors that are used twice.
    Raises WeightsError for files that can't be used.
    """
    files = [path for path in weight_files(folder) if path.suffix == SAFETENSORS]
    sources = {name: (path, shape) for path in files for name, shape in tensor_shapes(read_header(path)).items()}
    component = _without_weights(component_class, folder, dtype)
    params = dict(component.named_parameters(remove_duplicate=False))
    state = component.state_dict()
    fits = all(name in sources and sources[name][1] == value.shape for name, value in state.items())
    is_plain = all(param.dim() and param.is_floating_point() for param in params.values())
    if not (fits and is_plain) or len(set(params.values())) < len(params):
        return None
    precise = set(component_class._keep_in_fp32_modules or ())
    for name, value in state.items():
        path, shape = sources[name]
        owner, _, key = name.rpartition(".")
        part = component.get_submodule(owner)
        own_dtype = torch.float32 if precise.intersection(name.split(".")) else dtype
        if name in params:
            reader = partial(_read_rows, path, name, own_dtype)
            part.register_parameter(key, placeholder(shape, own_dtype, reader))
        else:
            buffer = load_tensors(path, [name])[name]
            setattr(part, key, buffer.to(own_dtype) if value.is_floating_point() else buffer)
    component.register_to_config(_name_or_path=str(folder))
    return component.eval()


def _without_weights(component_class: type[Any], folder: Path, dtype: torch.dtype) -> Any:
    """The component with parameters on the meta device, but buffers with values: some are in no file."""
    from accelerate import init_empty_weights
    from diffusers.models.modeling_utils import no_init_weights

    with _default_dtype(dtype), no_init_weights(), init_empty_weights(include_buffers=False):
        return component_class.from_config(component_class.load_config(folder))


@contextlib.contextmanager
def _default_dtype(dtype: torch.dtype) -> Iterator[None]:
    # as in `from_pretrained`: some buffers are computed in it
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


def _read_rows(path: Path, name: str, dtype: torch.dtype, start: int, stop: int) -> Tensor:
    from safetensors import safe_open

    with safe_open(path, framework="pt", device="cpu") as file:
        return file.get_slice(name)[start:stop].to(dtype)
