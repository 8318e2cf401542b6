"""Converts models and LoRAs between formats; the direction follows from the source file."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from modules.config.installation import docs_page
from modules.families.registry import FAMILIES, family_of
from modules.weights.embedding_files import bundled_names
from modules.weights.errors import WeightsError
from modules.weights.inspect import inspect_base
from modules.weights.lora_family import LORA_MARKS, candidates, check_family
from modules.weights.LoraSource import LoraSource
from modules.weights.safe import METADATA, read_header, save_tensors

if TYPE_CHECKING:
    import torch

    from modules.families.Family import Family
    from modules.weights.inspect import BaseInfo

FloatName = Literal["float64", "float32", "float16", "bfloat16"]
# Names in safetensors' headers -> those of torch.
FLOATS: dict[str, FloatName] = {"F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16"}


def convert(
    source: str,
    target: str | Path,
    dtype: FloatName | Literal[""] = "",
    config_folder: str = "",
    family: str = "",
    warn: Callable[[str], None] = lambda text: None,
) -> Path:
    """Converts `source` to the other format and writes it to `target` atomically. Returns `target`.

    source: a diffusers folder, which becomes a single file; a single file, which becomes a folder (or another file if
        the target ends in .safetensors, to change the dtype); or a LoRA, in diffusers' or kohya's format.
    dtype: the torch name of the dtype to save in; "" for that of most of the source.
    config_folder: a diffusers folder with the configuration of a single file; needed without internet access.
    family: the family of a LoRA, if its names and shapes don't determine it.
    warn: told about what is left out of a LoRA: words that the other format can't hold, and layers of parts that get
        no LoRA in the family.
    Raises WeightsError if it can't be converted.
    """
    path, target = Path(source).expanduser(), Path(target).expanduser()
    check_free(target)
    file = LoraSource(path) if path.is_file() else None
    if file and any(mark in name for name in file.shapes for mark in LORA_MARKS):
        return _convert_lora(file, target, dtype, family, warn)
    return _convert_model(source, target, dtype, config_folder, family)


def _convert_lora(
    source: LoraSource, target: Path, dtype: FloatName | Literal[""], named: str, warn: Callable[[str], None]
) -> Path:
    from modules.weights.lora_layers import (
        ADAPTER_METADATA,
        adapter_metadata,
        diffusers_tensors,
        is_diffusers,
        kohya_tensors,
        with_dtype,
    )
    from modules.weights.lora_reading import read_layers

    check_suffix(target)
    known = [
        name for name, one in FAMILIES.items() if (one.kohya_prefixes or one.layer_names) and not one.takes_loras_of
    ]
    family = family_of_lora(source, named, known)
    layers = read_layers(source, family, note=warn)
    metadata = {name: text for name, text in source.metadata.items() if name not in (ADAPTER_METADATA, "format")}
    from_diffusers = is_diffusers(source.shapes, family)
    if not from_diffusers:
        tensors = diffusers_tensors(layers)
        metadata[ADAPTER_METADATA] = adapter_metadata(layers)
    else:
        tensors = kohya_tensors(layers, family)
    if dtype:
        tensors = with_dtype(tensors, torch_dtype(dtype))
    save_tensors(target, tensors, metadata)
    if not from_diffusers and (words := bundled_names(source.shapes)):
        listed = "', '".join(words)
        warn(
            f"'{source.path}': its words '{listed}' are left out, because a LoRA in diffusers' format can't hold them: "
            "load their own files, too."
        )
    return target


def family_of_lora(file: LoraSource, named: str, known: Iterable[str]) -> Family:
    """The family that a LoRA was made for. named: by the user, "" if not at all. known: those that can be named.

    Raises WeightsError if neither the file nor the user tells, or if they disagree.
    """
    known = list(known)
    found = candidates(file)
    if named:
        check_family(file, FAMILIES[named])
    may_be = [name for name in found.exact if name in known]
    name = named or found.best()
    if not name:
        choices = f"one of {', '.join(may_be)}" if may_be else f"{docs_page('families')} lists them"
        raise WeightsError(f"'{file.path}': does not say which model it was made for; specify the family: {choices}.")
    return FAMILIES[name]


def _convert_model(source: str, target: Path, dtype: FloatName | Literal[""], config_folder: str, named: str) -> Path:
    import torch

    from modules.config.ModelConfig import ModelConfig
    from modules.weights.BaseModel import BaseModel
    from modules.weights.model_files import save_folder
    from modules.weights.single_file import save_single_file

    info = inspect_base(source)
    if info.kind == "hub":
        raise WeightsError(f"'{source}': is not a folder or file on this machine; download it and name its folder.")
    family = _family_of_model(source, info, named)
    dtype = dtype or usual_dtype(source)
    settings = ModelConfig(base=source, config_folder=config_folder, weight_dtype=dtype, channels_last=False)
    to_file = info.kind == "folder" or target.suffix == ".safetensors"
    if to_file:
        check_suffix(target)
    base = BaseModel(family, settings, torch.device("cpu"))
    with base.using(*base.component_names, on_device=False) as pipe:
        if to_file:
            save_single_file(target, family, pipe.components, torch_dtype(dtype), {"family": family.name})
        else:
            save_folder(pipe, target, torch_dtype(dtype))
    return target


def _family_of_model(source: str, info: BaseInfo, named: str) -> Family:
    family, detail = family_of(info.index), info.detail
    if family is None or family.single_file is None:
        raise WeightsError(
            f"'{source}': is {detail}, which can't be converted; choose a model or a LoRA of another family "
            f"({docs_page('families')})."
        )
    if named and named != family.name:
        raise WeightsError(f"'{source}': is {detail}; its family is {family.name}, not {named}: leave the family out.")
    return family


def usual_dtype(source: str) -> FloatName:
    """The dtype of most of a model's bytes; float32 if it is not a floating-point dtype of FLOATS."""
    path = Path(source).expanduser()
    files = [path] if path.is_file() else sorted(path.rglob("*.safetensors"))
    sizes: Counter[str] = Counter()
    for file in files:
        for name, entry in read_header(file).items():
            if name != METADATA:
                begin, end = entry["data_offsets"]
                sizes[entry["dtype"]] += end - begin
    floats = [name for name, _ in sizes.most_common() if name in FLOATS]
    return FLOATS[floats[0]] if floats else "float32"


def torch_dtype(name: str) -> torch.dtype:
    import torch

    return getattr(torch, name)


def check_free(target: Path) -> None:
    """Raises WeightsError if there is something at `target`."""
    if target.exists():
        raise WeightsError(f"'{target}': already exists; choose another name.")


def check_suffix(target: Path) -> None:
    """Raises WeightsError if `target` is no name for a single file."""
    if target.suffix != ".safetensors":
        raise WeightsError(f"'{target}': a single file is saved as .safetensors; choose a name with this extension.")
