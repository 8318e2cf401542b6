"""A whole pipeline for making pictures, with LoRAs and embeddings."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from modules.config.ModelConfig import ModelConfig
from modules.families.registry import family_of
from modules.weights.BaseModel import BaseModel
from modules.weights.embedding_files import add_embedding
from modules.weights.errors import WeightsError, loading_reason
from modules.weights.inspect import BaseInfo, check_parts, inspect_base
from modules.weights.libraries import import_diffusers
from modules.weights.lora_files import load_lora

if TYPE_CHECKING:
    import torch
    from diffusers import DiffusionPipeline


def load_pipeline(
    base: str,
    loras: Sequence[str | Path],
    device: torch.device,
    config_folder: str = "",
    embeddings: Sequence[str | Path] = (),
    dtype: str = "",
) -> DiffusionPipeline:
    """The pipeline of a diffusers folder, Hub id or single file, with all `loras` at full strength, on `device`.

    config_folder: a diffusers folder that describes a single file; needed without internet.
    embeddings: files whose words prompts may then hold.
    dtype: as torch calls it; "": bfloat16 on a GPU that computes in it, else float32.
    Raises WeightsError, one sentence, for a base, LoRA or embedding that is missing, damaged or does not fit.
    """
    info = inspect_base(base)
    pipe = _single_file(base, info, config_folder) if info.kind == "single_file" else _folder(base, info)
    pipe.set_progress_bar_config(disable=True)
    if getattr(pipe, "safety_checker", None) is not None:
        pipe.safety_checker = None  # it would hand out black pictures without a word
    for embedding in embeddings:
        add_embedding(pipe, embedding)
    for lora in loras:
        load_lora(pipe, lora)
    if loras:
        adapters = sorted({name for names in pipe.get_list_adapters().values() for name in names})
        pipe.set_adapters(adapters)  # diffusers leaves only the last one active
    return pipe.to(device, _torch_dtype(dtype, device))


def _torch_dtype(name: str, device: torch.device) -> torch.dtype:
    import torch

    if name:
        return getattr(torch, name)
    has_bf16 = device.type == "cuda" and torch.cuda.is_bf16_supported(including_emulation=False)
    return torch.bfloat16 if has_bf16 else torch.float32


def _single_file(base: str, info: BaseInfo, config_folder: str) -> DiffusionPipeline:
    import torch

    family = family_of(info.index)
    if family is None:
        raise WeightsError(f"base {base!r}: is {info.detail}, of which a single file can't be read; give a folder.")
    return BaseModel(family, ModelConfig(base=base, config_folder=config_folder), torch.device("cpu")).pipe


def _folder(base: str, info: BaseInfo) -> DiffusionPipeline:
    from safetensors import SafetensorError

    if info.kind == "folder":
        try:
            check_parts(Path(base).expanduser())
        except WeightsError as error:
            raise WeightsError(f"base {error}") from error
    pipeline_class = import_diffusers().DiffusionPipeline
    try:
        index = pipeline_class.load_config(Path(base).expanduser())
        # of each part that a model goes without, as an SD 3 without its T5, diffusers wants to be told
        absent = {name: None for name, value in index.items() if isinstance(value, list) and value == [None, None]}
        return pipeline_class.from_pretrained(Path(base).expanduser(), **absent)
    except (OSError, ValueError, RuntimeError, SafetensorError) as error:  # RuntimeError: of sizes
        reason = loading_reason(error)
        raise WeightsError(f"base {base!r}: can't be loaded ({reason}); fetch the model again.") from error
