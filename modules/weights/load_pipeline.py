"""Loads a complete pipeline for sampling, with LoRAs and embeddings."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from modules.config.errors import UserError
from modules.config.model_index import names_component
from modules.config.ModelConfig import ModelConfig
from modules.distributed.usable_gpus import supports_bf16
from modules.families.long_prompts import extend_prompts
from modules.families.registry import adapt_denoisers, family_of, family_of_pipeline
from modules.families.sampling_package import check_sampling_package
from modules.layers.quiet_imports import imported_when_used
from modules.machine.hub import folder_on_disk, is_complete, known_index, read_index
from modules.machine.weight_files import loaded_variant
from modules.weights.BaseModel import BaseModel
from modules.weights.clip_layers import check_layers
from modules.weights.component_classes import NO_PAIR, component_class, component_names
from modules.weights.convert import torch_dtype
from modules.weights.embedding_files import add_embedding
from modules.weights.errors import WeightsError, loading_reason, refusing
from modules.weights.hub_models import download_folder
from modules.weights.hub_parts import with_downloaded_parts
from modules.weights.inspect import BaseInfo, check_components, component_error, inspect_base
from modules.weights.libraries import import_diffusers, import_pipeline
from modules.weights.load_component import load_component
from modules.weights.lora_files import load_lora
from modules.weights.own_parts import check_places, load_own_part, own_parts, replaced_parts
from modules.weights.pipeline_adapters import adapter_names, set_strengths
from modules.weights.processors import CHOOSING, check_tokenizer, load_processors
from modules.weights.schedulers import scheduler_by_files

if TYPE_CHECKING:
    import torch
    from diffusers.pipelines.pipeline_utils import DiffusionPipeline

    from modules.families.Family import Family


SETTINGS = (bool, int, float, str, list, tuple)  # of a pipeline, beside its components


def load_pipeline(
    base: str | Path,
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
    text_encoders: Sequence[str] = (),
    warn: Callable[[str], None] | None = None,
    note: Callable[[str], None] | None = None,
    with_unused: bool = False,
) -> DiffusionPipeline:
    """The pipeline of a diffusers folder, Hub id or single file, with all `loras`, in system memory.

    device: what it will be used on, by which its precision is chosen. loras: LoRA file -> strength.
    config_folder: a diffusers folder with the configuration of a single file; needed without internet access.
    embeddings: embedding files, whose words prompts can then contain.
    dtype: the torch name of the dtype that weights are loaded in, but for those that their makers keep in float32; ""
        for bfloat16 on GPUs that support it, else float32.
    text_chunks, word_weights, clip_skips: as in ModelConfig, for models that have them; the images are then requested
        with the least of the skips. vae, denoiser, denoiser_2, text_encoders: as there.
    warn, note: as in `load_lora`.
    with_unused: also of a Hub id, download the components that neither training nor sampling uses, for saving them.
    Raises WeightsError if the base model, a LoRA or an embedding is missing, damaged or does not fit.
    """
    base = str(base)
    info = inspect_base(base)
    parts: dict[str, Any] = {"vae": vae, "denoiser": denoiser, "denoiser_2": denoiser_2}
    model = ModelConfig(base=base, config_folder=config_folder, text_encoders=[*text_encoders], **parts)
    weight_dtype: Any = dtype or _usual_dtype(device)  # one of the setting's
    model = replace(with_downloaded_parts(model), weight_dtype=weight_dtype)
    pipe = _single_file(info, model) if info.kind == "single_file" else _folder(info, model, with_unused)
    pipe.set_progress_bar_config(disable=True)
    if getattr(pipe, "safety_checker", None) is not None:
        pipe.safety_checker = None  # it would silently return black images
    for embedding in embeddings:
        add_embedding(pipe, embedding)
    add_loras(pipe, loras, warn, note)
    family = family_of_pipeline(pipe)
    if family:
        least = min(clip_skips, default=1)
        model = ModelConfig(
            clip_skip=least, clip_skips=[*clip_skips], text_chunks=text_chunks, word_weights=word_weights
        )
        encoders = {name: getattr(pipe, name, None) for name in family.text.encoders}
        check_layers(model, family, {name: one.config.to_dict() for name, one in encoders.items() if one is not None})
        extend_prompts(family.with_text_settings(model), pipe)
    return pipe


def check_sampling(base: str) -> None:
    """Raises UserError if a package is missing that the base model's license asks for where images are made."""
    family = family_of(inspect_base(base).index or known_index(base))
    if family is not None:
        check_sampling_package(family.sampling_package, family.label)


def add_loras(
    pipe: DiffusionPipeline,
    loras: Mapping[str, float],
    warn: Callable[[str], None] | None = None,
    note: Callable[[str], None] | None = None,
) -> None:
    """Load LoRA files, each with its strength, into a pipeline that has none. Raises WeightsError, as `load_lora`."""
    strengths: dict[str, float] = {}
    for lora, strength in loras.items():
        load_lora(pipe, lora, warn, note)
        for name in adapter_names(pipe) - strengths.keys():
            strengths[name] = strength
    if strengths:
        set_strengths(pipe, strengths)  # by default, only the last one is active


def _usual_dtype(device: torch.device) -> Literal["bfloat16", "float32"]:
    return "bfloat16" if device.type == "cuda" and supports_bf16(device) else "float32"


def _single_file(info: BaseInfo, model: ModelConfig) -> DiffusionPipeline:
    import torch

    family = family_of(info.index)
    if family is None:
        raise WeightsError(
            f"base {model.base!r}: is {info.detail}, which can't be read from a single file; use a folder."
        )
    _check_own_parts(model, family)
    loaded = BaseModel(family, model, torch.device("cpu"))
    loaded.require(*loaded.component_names, on_device=False)
    return loaded.pipe


def _check_own_parts(model: ModelConfig, family: Family | None) -> None:
    """Raises WeightsError for parts that the pipeline can't be given."""
    if family is None:
        if _has_own_parts(model):
            raise WeightsError(
                f"base {model.base!r}: is of no known family, so that it can't get another VAE, denoiser or text "
                "encoder."
            )
    elif model.denoiser_2 and len(family.denoisers) == 1:
        raise WeightsError.at(
            "model.denoiser_2", f"{model.denoiser_2!r}: {family.label} has one denoiser; leave it out."
        )


def _has_own_parts(model: ModelConfig) -> bool:
    return bool(model.vae or model.denoiser or model.denoiser_2 or model.text_encoders)


def _folder(info: BaseInfo, model: ModelConfig, with_unused: bool) -> DiffusionPipeline:
    base, path, dtype = model.base, Path(model.base).expanduser(), torch_dtype(model.weight_dtype)
    replaced = _replaced(info, model, with_unused or info.kind == "folder")
    if info.kind == "folder":
        try:
            check_components(path, _lacking(path, info.index), replaced)
        except WeightsError as error:
            raise WeightsError(f"base {error}") from error
    else:
        path = folder_on_disk(base, replaced) or download_folder(base, "base", replaced)
    index = read_index(path)
    family = family_of(index)
    pipeline_class = import_pipeline(family.pipeline) if family else _other_pipeline(base, index["_class_name"])
    _check_classes(base, pipeline_class, index, family)
    _check_own_parts(model, family)
    with refusing(partial(_error, base)), imported_when_used():  # a scheduler imports those it can be exchanged for
        # diffusers must be told which components the model lacks, such as the T5 of an SD 3
        absent = {name: None for name, value in index.items() if isinstance(value, list) and value == [None, None]}
        absent |= dict.fromkeys(component_names(pipeline_class).intersection(_lacking(path, index)))
        own = load_processors(path, {name: value for name, value in index.items() if name not in absent})
        chosen = {name: part for name, part in own.items() if index[name][1] in CHOOSING}
        given = {**absent, **own, **dict.fromkeys(chosen)}  # diffusers knows no part by the name of such a class
        given |= _own_parts(pipeline_class, path, index, family, model)
        others = {name: index[name] for name in index.keys() - given.keys()}
        given |= _variants(pipeline_class, path, others, family, dtype)
        exact = family.exact_components & others.keys() if family else ()
        dtypes = {"default": dtype, **dict.fromkeys(exact, torch_dtype("float32"))} if exact else dtype
        with warnings.catch_warnings():
            # of the name `dtype`, which diffusers 0.41, the last for Python 3.10, does not know
            warnings.filterwarnings("ignore", message="`torch_dtype` is deprecated")
            pipe = pipeline_class.from_pretrained(path, trust_remote_code=False, torch_dtype=dtypes, **given)
        if chosen:
            options = {name: pipe.config[name] for name in pipeline_class._get_signature_keys(pipeline_class)[1]}
            pipe = pipeline_class(**{**pipe.components, **chosen}, **options)
        for name, part in pipe.components.items():
            check_tokenizer(part)
            if hasattr(part, "parameters") and any(param.is_meta for param in part.parameters()):
                raise component_error("base", repr(base), name, "tensors are missing from its files")
        adapt_denoisers(pipe)
        if family:
            pipe.scheduler = scheduler_by_files(pipe.scheduler, family, model)
        return pipe


def _own_parts(
    pipeline_class: type[DiffusionPipeline],
    path: Path,
    index: Mapping[str, Any],
    family: Family | None,
    model: ModelConfig,
) -> dict[str, Any]:
    """The parts that the settings put in place of the base's, whose weights may therefore be missing."""
    loaded: dict[str, Any] = {}
    if family is None:
        return loaded
    parts = own_parts(family, model)
    check_places(family, parts, [one for one, pair in index.items() if pair != [None, None]], model.base)
    for name, own in parts.items():
        kind = component_class(pipeline_class, name, tuple(index[name]), family)
        loaded[name] = load_own_part(family, name, kind, own, path / name, torch_dtype(model.weight_dtype))
    return loaded


def _variants(
    pipeline_class: type[DiffusionPipeline],
    path: Path,
    index: Mapping[str, Any],
    family: Family | None,
    dtype: torch.dtype,
) -> dict[str, Any]:
    """The components whose weights are those of a variant: diffusers would take one of all components, or none."""
    loaded = {}
    for name in component_names(pipeline_class) & index.keys():
        if not names_component(index[name]) or not (path / name).is_dir():
            continue
        if loaded_variant([file.name for file in (path / name).iterdir()]):
            kind = component_class(pipeline_class, name, tuple(index[name]), family)
            loaded[name], missing = load_component(kind, path, name, dtype)
            if missing:
                raise ValueError(f"the weights of its {name} lack {missing}")
    return loaded


def _lacking(path: Path, index: Mapping[str, Any]) -> list[str]:
    """The parts that a folder does without, because neither training nor sampling uses them."""
    family = family_of(index)
    unused = family.unused if family else ()
    return [name for name in unused if names_component(index.get(name)) and not is_complete(path / name)]


def _replaced(info: BaseInfo, model: ModelConfig, with_unused: bool) -> set[str]:
    try:
        family = family_of(info.index or known_index(model.base))
    except UserError as error:
        raise WeightsError(f"base {error}") from error
    if family is None:
        return set()
    return replaced_parts(family, model) - ({*family.unused} if with_unused else set())


def _other_pipeline(base: str, name: str) -> type[DiffusionPipeline]:
    """A pipeline of diffusers that belongs to no family."""
    diffusers = import_diffusers()
    found = getattr(diffusers, name, None)
    if not (isinstance(found, type) and issubclass(found, diffusers.DiffusionPipeline)):
        raise WeightsError(f"base {base!r}: is a model of the pipeline {name}, which diffusers lacks; choose another.")
    return found


def _check_classes(
    base: str, pipeline_class: type[DiffusionPipeline], index: Mapping[str, Any], family: Family | None
) -> None:
    for name in component_names(pipeline_class) & index.keys():
        pair, kinds = index[name], pipeline_class._get_signature_types().get(name, ())
        try:
            if names_component(pair):
                if pair[0] is not None:
                    component_class(pipeline_class, name, (pair[0], pair[1]), family)
            elif not any(kind in SETTINGS for kind in kinds):
                raise ValueError(NO_PAIR)
        except ValueError as error:
            raise component_error("base", repr(base), name, str(error)) from error


def _error(base: str, error: Exception) -> WeightsError:
    return WeightsError(f"base {base!r}: can't be loaded ({loading_reason(error)}); download the model again.")
