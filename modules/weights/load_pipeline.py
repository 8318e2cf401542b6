"""Loads a complete pipeline for sampling, with LoRAs and embeddings."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from modules.config.model_index import MODULAR_INDEX, index_file, read_model_index
from modules.config.ModelConfig import ModelConfig
from modules.distributed.usable_gpus import supports_bf16
from modules.families.long_prompts import extend_prompts
from modules.families.registry import adapt_denoisers, family_of, family_of_pipeline
from modules.machine.hub import folder_on_disk
from modules.weights.BaseModel import BaseModel
from modules.weights.embedding_files import add_embedding
from modules.weights.errors import WeightsError, loading_reason
from modules.weights.hub_models import download_folder
from modules.weights.inspect import BaseInfo, check_parts, inspect_base
from modules.weights.libraries import import_diffusers, import_pipeline
from modules.weights.lora_files import load_lora
from modules.weights.own_parts import own_parts, put_own_parts
from modules.weights.processors import load_processors

if TYPE_CHECKING:
    import torch
    from diffusers.pipelines.pipeline_utils import DiffusionPipeline


def load_pipeline(
    base: str,
    loras: Mapping[str, float],
    device: torch.device,
    config_folder: str = "",
    embeddings: Sequence[str | Path] = (),
    dtype: str = "",
    text_chunks: int = 1,
    vae: str = "",
    denoiser: str = "",
    word_weights: bool = False,
    clip_skips: Sequence[int] = (),
    denoiser_2: str = "",
    warn: Callable[[str], None] | None = None,
) -> DiffusionPipeline:
    """The pipeline of a diffusers folder, Hub id or single file, with all `loras`, on `device`.

    loras: LoRA file -> strength.
    config_folder: a diffusers folder with the configuration of a single file; needed without internet access.
    embeddings: embedding files, whose words prompts can then contain.
    dtype: the torch name of a dtype; "" for bfloat16 on GPUs that support it, else float32.
    text_chunks, word_weights, clip_skips: as in ModelConfig, for models that have them; the images are then requested
        with the least of the skips. vae, denoiser, denoiser_2: as there.
    warn: as in `load_lora`.
    Raises WeightsError if the base model, a LoRA or an embedding is missing, damaged or does not fit.
    """
    info = inspect_base(base)
    pipe = _single_file(base, info, config_folder) if info.kind == "single_file" else _folder(base, info)
    if vae or denoiser or denoiser_2:
        _put_parts(pipe, base, ModelConfig(vae=vae, denoiser=denoiser, denoiser_2=denoiser_2))
    pipe.set_progress_bar_config(disable=True)
    if getattr(pipe, "safety_checker", None) is not None:
        pipe.safety_checker = None  # it would silently return black images
    for embedding in embeddings:
        add_embedding(pipe, embedding)
    strengths: dict[str, float] = {}
    for lora, strength in loras.items():
        load_lora(pipe, lora, warn)
        for name in _adapters(pipe) - strengths.keys():
            strengths[name] = strength
    if strengths:
        pipe.set_adapters(list(strengths), list(strengths.values()))  # by default, only the last one is active
    family = family_of_pipeline(pipe)
    if family:
        least = min(clip_skips, default=1)
        model = ModelConfig(
            clip_skip=least, clip_skips=[*clip_skips], text_chunks=text_chunks, word_weights=word_weights
        )
        extend_prompts(family.with_text_settings(model), pipe)
    return pipe.to(device, _torch_dtype(dtype, device))


def _put_parts(pipe: DiffusionPipeline, base: str, parts: ModelConfig) -> None:
    family = family_of_pipeline(pipe)
    if family is None:
        raise WeightsError(f"base {base!r}: is of no known family, so that it can't get another VAE or denoiser.")
    if parts.denoiser_2 and len(family.denoisers) == 1:
        raise WeightsError(f"model.denoiser_2 {parts.denoiser_2!r}: {family.label} has one denoiser; leave it out.")
    put_own_parts(pipe, family, own_parts(family, parts))
    if parts.denoiser or parts.denoiser_2:
        adapt_denoisers(pipe)


def _adapters(pipe: DiffusionPipeline) -> set[str]:
    return {name for names in pipe.get_list_adapters().values() for name in names}


def _torch_dtype(name: str, device: torch.device) -> torch.dtype:
    import torch

    if name:
        return getattr(torch, name)
    return torch.bfloat16 if device.type == "cuda" and supports_bf16(device) else torch.float32


def _single_file(base: str, info: BaseInfo, config_folder: str) -> DiffusionPipeline:
    import torch

    family = family_of(info.index)
    if family is None:
        raise WeightsError(f"base {base!r}: is {info.detail}, which can't be read from a single file; use a folder.")
    return BaseModel(family, ModelConfig(base=base, config_folder=config_folder), torch.device("cpu")).pipe


def _folder(base: str, info: BaseInfo) -> DiffusionPipeline:
    from safetensors import SafetensorError

    if info.kind == "folder":
        try:
            check_parts(Path(base).expanduser())
        except WeightsError as error:
            raise WeightsError(f"base {error}") from error
    pipeline_class = import_diffusers().DiffusionPipeline
    path = Path(base).expanduser()
    if info.kind == "hub":
        path = folder_on_disk(base) or download_folder(pipeline_class, base, "base")
    if index_file(path).name == MODULAR_INDEX and (family := family_of(read_model_index(path))):
        pipeline_class = import_pipeline(family.pipeline)
    try:
        index = pipeline_class.load_config(path)
        # diffusers must be told which components the model lacks, such as the T5 of an SD 3
        absent = {name: None for name, value in index.items() if isinstance(value, list) and value == [None, None]}
        pipe = pipeline_class.from_pretrained(path, **absent, **load_processors(path, index))
        adapt_denoisers(pipe)
        return pipe
    except (OSError, ValueError, RuntimeError, SafetensorError) as error:  # RuntimeError: mismatched shapes
        reason = loading_reason(error)
        raise WeightsError(f"base {base!r}: can't be loaded ({reason}); download the model again.") from error
