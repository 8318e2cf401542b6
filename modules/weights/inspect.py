"""Identifies base models from file names and headers, without reading weights, and without torch except for pickles.

Used by the checks before a start and by the model picker of the window.
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from itertools import takewhile
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from modules.config.errors import ModelFileError
from modules.config.families import SCHEDULER_CONFIG
from modules.config.model_index import index_file, names_component, read_json
from modules.config.ModelConfig import DENOISER_SETTINGS
from modules.families.registry import FAMILIES, family_of
from modules.machine.hub import HUB_NAME, read_index, shards_in
from modules.machine.weight_files import INDEX, loaded_weights
from modules.weights.component_classes import refused_class
from modules.weights.errors import WeightsError
from modules.weights.lora_family import LORA_MARKS
from modules.weights.safe import PICKLE_SUFFIXES, check_pickle, read_header, tensor_shapes

if TYPE_CHECKING:
    from modules.config.ModelConfig import ModelConfig
    from modules.families.Family import Family

Shapes = Mapping[str, tuple[int, ...]]

WEIGHT_SUFFIXES = (".safetensors", ".gguf", *PICKLE_SUFFIXES)
CHOOSE = "choose a diffusers folder, a .safetensors file or a model's name on the Hugging Face Hub"
# Labels of unsupported pipelines, for error messages.
OTHER_LABELS = {
    "StableDiffusionInstructPix2PixPipeline": "InstructPix2Pix",
    "StableDiffusionXLImg2ImgPipeline": "Stable Diffusion XL refiner",
}
# The files of a component that say how it is made. Vocabularies are left to the libraries: they may be large.
CONFIGS = (
    "config.json",
    "scheduler_config.json",
    "tokenizer_config.json",
    "preprocessor_config.json",
    "processor_config.json",
)
UNKNOWN_LAYOUT = "a model with an unknown layout of tensors"


@dataclass(frozen=True)
class BaseInfo:
    """A description of `model.base`.

    pipeline: the diffusers class name; None if unknown (a Hub id or an unknown file).
    size_bytes: of all files, 0 for a Hub id.
    detail: a description for users.
    index: the model_index.json of a folder; for a file, the part of it that its tensors reveal.
    """

    kind: Literal["folder", "single_file", "hub"]
    pipeline: str | None
    size_bytes: int
    detail: str
    index: Mapping[str, Any] = field(default_factory=dict)


def inspect_base(base: str) -> BaseInfo:
    """Identifies the folder, file or Hub id `base`, without accessing the Hub.

    Raises WeightsError, starting with the path, if it does not exist or can't be read.
    """
    path = Path(os.path.expanduser(base))
    if base and path.is_dir():
        return _inspect_folder(path)
    if base and path.is_file():
        return _inspect_file(path)
    if HUB_NAME.fullmatch(base) and not base.lower().endswith(WEIGHT_SUFFIXES):
        return BaseInfo("hub", None, 0, "a model on the Hugging Face Hub")
    raise WeightsError(f"'{base}': no such folder or file; {CHOOSE}.")


def check_base(base: str, family: Family, setting: str = "model.base", replaced: Collection[str] = ()) -> BaseInfo:
    """Raises WeightsError, starting with `setting`, if the family can't train the base model. Returns what it is.

    replaced: as from `replaced_parts`.
    A model on the Hub is accepted unchecked: `hub_models.check_on_hub` asks the Hub, `check_fits` suits its files.
    """
    try:
        info = inspect_base(base)
        if info.kind == "folder":
            check_components(Path(os.path.expanduser(base)), family.unused, replaced)
    except WeightsError as error:
        raise WeightsError.at(setting, str(error)) from error
    if info.kind != "hub":
        check_fits(base, info, family, setting, replaced)
    return info


def check_config_folder(config: ModelConfig, family: Family) -> None:
    """Raises WeightsError if model.config_folder is not a folder that can describe a single file of the family."""
    if not config.config_folder:
        return
    setting, path = "model.config_folder", Path(os.path.expanduser(config.config_folder))
    if not path.is_dir():
        text = f"{config.config_folder!r}: no such folder; name a diffusers folder of the same kind."
        raise WeightsError.at(setting, text)
    if not index_file(path).is_file():
        return  # diffusers says what it misses
    try:
        refused = refused_class(_index_of(path), family, family.unused)
    except WeightsError as error:
        raise WeightsError.at(setting, str(error)) from error
    if refused:
        raise component_error(setting, repr(config.config_folder), *refused)


def check_fits(
    base: str, info: BaseInfo, family: Family, setting: str = "model.base", replaced: Collection[str] = ()
) -> None:
    """Raises WeightsError if `base` belongs to another family, has a format that the family can't be read from, or is
    distilled where its makers have another denoiser for training.

    replaced: as from `replaced_parts`.
    """
    may_fit = info.pipeline in family.pipelines or info.detail == UNKNOWN_LAYOUT
    if info.kind == "single_file" and family.single_file is None and may_fit:
        settings = " or ".join(DENOISER_SETTINGS[: len(family.denoisers)])
        raise WeightsError.at(
            setting,
            f"'{base}': is {info.detail} in a single file, and {family.label} is read from diffusers "
            "folders; choose a folder or a model's name on the Hugging Face Hub, and this file as "
            f"{settings} if it has the transformer.",
        )
    fitting = family_of(info.index)
    if fitting is None or fitting.name != family.name:
        remedy = f"choose family {fitting.name} or another base" if fitting else "choose another base"
        raise WeightsError.at(
            setting, f"'{base}': is {info.detail}; the family {family.name} needs {family.label}: {remedy}."
        )
    if info.kind == "folder":
        _check_complete(base, info.index, family, setting)
    _check_distilled(base, info.index, family, setting, replaced)
    if refused := refused_class(info.index, family, family.unused):
        raise component_error(setting, repr(base), *refused)


def _check_distilled(
    base: str, index: Mapping[str, Any], family: Family, setting: str, replaced: Collection[str]
) -> None:
    whole, denoiser = family.undistilled, family.denoisers[0]
    if whole is None or denoiser in replaced or whole.is_met(index.get(SCHEDULER_CONFIG, whole.schedule)):
        return
    raise WeightsError.at(
        setting,
        f"'{base}': its {denoiser} is distilled to few steps, which training would undo; set model.denoiser to "
        f"'{base}/{whole.folder}', the one to train, or choose another {family.label}.",
    )


def component_error(setting: str, model: str, name: str, reason: str) -> WeightsError:
    """The refusal of a component. model: the value of the setting, as it is shown. reason: a clause."""
    text = f"{model}: its {name} can't be loaded ({reason}); download the model again or choose another."
    return WeightsError.at(setting, text)


def _check_complete(base: str, index: Mapping[str, Any], family: Family, setting: str) -> None:
    """Raises WeightsError if the folder goes without a component that the family needs."""
    for name in (*family.denoisers, family.vae, *family.text_components, *family.condition_components):
        if name not in family.optional and not _is_present(index.get(name)):
            raise WeightsError.at(
                setting,
                f"'{base}': has no {name}, which {family.label} needs; load it with diffusers, give the "
                "pipeline the missing component, save it to a folder and choose that.",
            )


def _is_present(value: object) -> bool:
    return names_component(value) and value != [None, None]


def check_components(path: Path, unused: Collection[str] = (), replaced: Collection[str] = ()) -> None:
    """Checks that the weights of all components are complete and safe to load, before minutes are spent on loading.

    path: a diffusers folder. unused: components to skip. replaced: those whose weights come from elsewhere, so that
    only their configs are checked. Raises WeightsError, starting with the path.
    """
    for name, value in _index_of(path).items():
        if _is_present(value) and name not in unused:
            _check_part(path, name, name not in replaced)


def _check_part(path: Path, name: str, with_weights: bool) -> None:
    """Raises WeightsError for a component's folder with files that can't be used. path: of the model."""
    if not (path / name).is_dir():
        raise WeightsError(f"'{path}': lacks the folder '{name}' named in model_index.json; download it again.")
    for file in sorted((path / name).iterdir()):
        if file.exists() and not (file.is_file() or file.is_dir()):  # a pipe: who opens it, waits for ever
            raise WeightsError(f"'{file}': is not a file; download the model again.")
    if with_weights:
        for file in sorted((path / name).glob("*.safetensors")):
            read_header(file)
        for file in _pickles(path / name):
            check_pickle(file)
    for file in sorted((path / name).glob("*.json")):
        try:
            if file.name in CONFIGS:
                _check_config(file)
            elif INDEX.fullmatch(file.name):
                shards_in(file)
        except ModelFileError as error:
            raise WeightsError(str(error)) from error
        except OSError as error:
            raise WeightsError(f"'{file}': can't be read ({error.strerror}); download the model again.") from error


def _check_config(file: Path) -> None:
    """Raises ModelFileError if it is no JSON object, or names code of the Hub to compute with."""
    if kernel := _kernel_of(read_json(file)):
        raise ModelFileError(f"'{file}': names code of the Hub, {kernel!r}; leave attn_implementation out.")


def _kernel_of(config: dict[str, Any]) -> str:
    """The attn_implementation in a config, or in one inside it, that is code of the Hub; "" if there is none.

    transformers would download and run it where the package kernels is installed.
    """
    values: list[Any] = [config]
    while values:
        value = values.pop()
        if isinstance(value, dict):
            named = [value.get(key) for key in ("attn_implementation", "_attn_implementation")]
            if kernels := [name for name in named if isinstance(name, str) and "/" in name]:
                return kernels[0]
            values.extend(value.values())
        elif isinstance(value, list):
            values.extend(value)
    return ""


def _inspect_folder(path: Path) -> BaseInfo:
    index = index_file(path)
    if not index.is_file():
        if (path / "adapter_config.json").is_file():
            raise WeightsError(f"'{path}': is a LoRA, not a base model; choose the model that it was trained on.")
        raise WeightsError(f"'{path}': has no model_index.json, so it is not a diffusers folder; {CHOOSE}.")
    content = _index_of(path)
    size_bytes = sum(file.stat().st_size for file in path.rglob("*") if file.is_file())
    return BaseInfo("folder", content["_class_name"], size_bytes, describe_index(content), content)


def _index_of(path: Path) -> dict[str, Any]:
    try:
        return read_index(path)
    except ModelFileError as error:
        raise WeightsError(str(error)) from error
    except OSError as error:
        raise WeightsError(f"'{error.filename or path}': can't be read ({error.strerror}); {CHOOSE}.") from error


def _inspect_file(path: Path) -> BaseInfo:
    shapes = tensor_shapes(read_header(path))
    pipeline, detail = _guess(shapes)
    return BaseInfo("single_file", pipeline, path.stat().st_size, detail, {"_class_name": pipeline})


def _pickles(part: Path) -> list[Path]:
    """The files of a component that would be unpickled: its weights, if they are not saved as safetensors."""
    names = loaded_weights([file.name for file in part.iterdir()])
    return [part / name for name in names if name.endswith(PICKLE_SUFFIXES)]


def _guess(shapes: Shapes) -> tuple[str | None, str]:
    """(pipeline, detail) of a single file, from the names and shapes of its tensors."""
    if any(mark in name for name in shapes for mark in LORA_MARKS):
        return None, "a LoRA, not a base model"
    names = {name.removeprefix("model.diffusion_model.") for name in shapes}
    if any(name.startswith("joint_blocks.") for name in names):
        return "StableDiffusion3Pipeline", _named("StableDiffusion3Pipeline")
    if any(name.startswith("double_blocks.") for name in names):
        pipeline = "FluxPipeline"
        if any(name.startswith("distilled_guidance_layer.") for name in names):
            pipeline = "ChromaPipeline"
        elif any(name.startswith("single_stream_modulation.") for name in names):
            has_guidance = any(name.startswith("guidance_in.") for name in names)
            pipeline = "Flux2Pipeline" if has_guidance else "Flux2KleinPipeline"
        return pipeline, _named(pipeline)
    if "model.diffusion_model.input_blocks.0.0.weight" in shapes:
        return _guess_unet(shapes)
    if any(name.startswith(("encoder.down", "first_stage_model.")) for name in names):
        return None, "a VAE alone, not a whole model"
    if "conv_in.weight" in names or "time_embedding.linear_1.weight" in names:
        return None, "a single part of a diffusers folder, not a whole model"
    if names and names <= {"emb_params", "string_to_param", "clip_l", "clip_g", "<concept>"}:
        return None, "an embedding, not a base model"
    return None, UNKNOWN_LAYOUT


def _guess_unet(shapes: Shapes) -> tuple[str, str]:
    """(pipeline, detail) of a Stable Diffusion U-Net, from its input channels and the width of its text."""
    in_channels = shapes["model.diffusion_model.input_blocks.0.0.weight"][1]
    text_width = next((shape[-1] for name, shape in shapes.items() if name.endswith("attn2.to_k.weight")), None)
    of_sdxl = ("conditioner.embedders.1.", "conditioner.embedders.0.transformer.")  # the refiner's has another layout
    if any(name.startswith(of_sdxl) for name in shapes) or text_width == 2048:
        pipeline = "StableDiffusionXLInpaintPipeline" if in_channels == 9 else "StableDiffusionXLPipeline"
    elif any(name.startswith("conditioner.embedders.0.") for name in shapes) or text_width == 1280:
        pipeline = "StableDiffusionXLImg2ImgPipeline"
    elif in_channels == 9:
        pipeline = "StableDiffusionInpaintPipeline"
    elif in_channels == 8:
        pipeline = "StableDiffusionInstructPix2PixPipeline"
    else:
        versions: dict[int | None, str] = {768: "Stable Diffusion 1.x", 1024: "Stable Diffusion 2.x"}
        exact = versions.get(text_width)
        return "StableDiffusionPipeline", f"a {exact} model" if exact else _named("StableDiffusionPipeline")
    return pipeline, _named(pipeline)


def _named(pipeline: str) -> str:
    return describe_index({"_class_name": pipeline})


def _label_of_other(index: Mapping[str, Any]) -> str:
    """Of a model that no family has; "" if it isn't known."""
    pipeline = index["_class_name"]
    named = (one.other_model(index) for one in FAMILIES.values() if pipeline in one.pipelines)
    return next(filter(None, named), OTHER_LABELS.get(pipeline, ""))


def describe_index(index: Mapping[str, Any]) -> str:
    """What the model of a model_index.json is, such as "a Stable Diffusion XL model"."""
    pipeline, family = index["_class_name"], family_of(index)
    label = family.label if family else _label_of_other(index)
    if not label:
        return f"a model of the pipeline {pipeline}"
    return f"{_article(label)} {label} model"


def _article(label: str) -> str:
    letters = "".join(takewhile(str.isupper, label))
    spelled_out = len(letters) > 1 and not re.search("[AEIOU]", letters)  # LTX, but not FLUX
    return "an" if label[0] in ("AEFHILMNORSX" if spelled_out else "AEIO") else "a"
