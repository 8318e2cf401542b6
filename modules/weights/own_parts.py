"""Parts that take the place of the base model's: a VAE or denoisers, as folders or files, or files of text encoders."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Collection, Mapping
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from modules.config.ModelConfig import DENOISER_SETTINGS
from modules.config.quantizations import EIGHT_BITS
from modules.machine.hub_parts import CONFIG, PARTS
from modules.weights.errors import WeightsError, loading_reason, refusing
from modules.weights.file_kinds import kind_of
from modules.weights.gguf_files import check_gguf, is_gguf, put_quantized, shape_of
from modules.weights.hub_models import published_config
from modules.weights.hub_parts import with_parts_on_disk
from modules.weights.load_component import is_of_transformers, load_component
from modules.weights.part_files import denoiser_tensors, inner_tensors, vae_tensors
from modules.weights.part_names import INSIDE, found_inside, in_diffusers_names, surplus
from modules.weights.prequantized import stored_quantization
from modules.weights.quantization import Wanted, put_scaled_rows
from modules.weights.safe import read_header, tensor_shapes
from modules.weights.single_file_parts import has_part
from modules.weights.text_encoder_files import SETTING as ENCODERS_SETTING
from modules.weights.text_encoder_files import encoder_files
from modules.weights.text_encoder_loading import load_text_encoder

if TYPE_CHECKING:
    import torch
    from diffusers.pipelines.pipeline_utils import DiffusionPipeline
    from torch import Tensor

    from modules.config.ModelConfig import ModelConfig
    from modules.families.Family import Family
    from modules.weights.libraries import Model

_STATISTICS = (".running_mean", ".running_var")  # buffers that each file of a component with them has


def own_parts(family: Family, config: ModelConfig) -> dict[str, Path]:
    """Component -> the file, or the folder with a config.json, that it is read from instead of the base model.

    A denoiser's file can have the weights of a connector of the text encoder, too.
    Raises WeightsError, starting with the setting, if there is none, or the header of a file is damaged.
    """
    parts = {}
    if config.vae:
        parts[family.vae] = _vae_path(config.vae)
    files = config.denoiser_files(family.denoisers)
    for component, (setting, file) in zip(family.denoisers, files.items(), strict=True):
        if file:
            parts[component] = _denoiser_path(file, setting)
            parts |= dict.fromkeys(_inside(family, parts[component], setting), parts[component])
    return parts | encoder_files(family, config)


def _inside(family: Family, path: Path, setting: str) -> dict[str, bool]:
    """Connector of the text encoder that is in a denoiser's file -> whether all of it is."""
    published = family.published.connectors if family.published else ()
    kinds = {
        component: kind
        for component, one in zip(family.text.connectors, published, strict=False)
        if (kind := one.class_name.rpartition(".")[2]) in INSIDE
    }
    if not kinds or path.is_dir():
        return {}
    if not is_gguf(path):
        _check_header(path, setting)
    names = _names_in(path, setting)
    return {component: _is_whole(names, kind) for component, kind in kinds.items() if found_inside(names, kind)}


def _is_whole(names: Collection[str], kind: str) -> bool:
    """Whether a denoiser's file has all of a component in INSIDE."""
    return len(found_inside(names, kind)) == len(INSIDE[kind])


def _names_in(path: Path, setting: str) -> Collection[str]:
    return check_gguf(path, setting) if is_gguf(path) else tensor_shapes(read_header(path)).keys()


def replaced_parts(family: Family, config: ModelConfig) -> set[str]:
    """The components of which only the configs are needed: settings name a file for the weights, or nothing uses them.

    Text encoders whose file is still to be downloaded are left out: it tells which of them it has.
    Raises WeightsError, starting with the setting, if the header of a file is damaged, or a file of model.text_encoders
    is no text encoder of the model.
    """
    parts = {*family.unused, *encoder_files(family, with_parts_on_disk(config))}
    files = config.denoiser_files(family.denoisers)
    for component, (setting, file) in zip(family.denoisers, files.items(), strict=True):
        if file:
            parts.add(component)
        if (path := Path(os.path.expanduser(file))).is_file():  # else on the Hub, or refused by `own_parts`
            inside = _inside(family, path, setting)
            parts.update(component for component, is_whole in inside.items() if is_whole)
    return parts | {family.vae} if config.vae else parts


def setting_of(family: Family, component: str) -> str:
    """The setting that names the file of an own part."""
    if component in family.text.encoders:
        return ENCODERS_SETTING
    if component in family.text.connectors:
        return DENOISER_SETTINGS[0]
    return dict(zip(family.denoisers, DENOISER_SETTINGS, strict=False)).get(component, "model.vae")


def _denoiser_path(file: str, setting: str) -> Path:
    path = Path(os.path.expanduser(file))
    if path.is_dir():
        return _folder(file, setting, "transformer or U-Net")
    if path.is_file() and is_gguf(path):
        check_gguf(path, setting)
        return path
    return _file(file, setting)


def _vae_path(name: str) -> Path:
    is_folder = Path(os.path.expanduser(name)).is_dir()
    return _folder(name, "model.vae", "VAE") if is_folder else _file(name, "model.vae")


def _folder(name: str, setting: str, kind: str) -> Path:
    """The folder of a part, by that or the one of a whole model. kind: of the part, as people call it."""
    path = Path(os.path.expanduser(name))
    places = (path, *(path / folder for folder in PARTS[setting.removeprefix("model.")]))
    folder = next((one for one in places if (one / CONFIG).is_file()), None)
    if folder is None:
        raise WeightsError.at(
            setting, f"{name!r}: has no {CONFIG}; choose the folder of a {kind}, that of a model, or a file."
        )
    try:
        stored = stored_quantization(folder)
    except ValueError as error:
        raise WeightsError.at(setting, f"{name!r}: {error}; choose one that is not quantized.") from error
    if stored != "none":
        raise WeightsError.at(setting, f"{name!r}: is stored in {stored}; choose one that is not quantized.")
    for file in sorted(folder.glob("*.safetensors")):
        _check_header(file, setting)
    return folder


def _file(name: str, setting: str) -> Path:
    path = Path(os.path.expanduser(name))
    if not path.is_file() or path.suffix != ".safetensors":
        raise WeightsError.at(setting, f"{name!r}: is not a .safetensors file; choose one.")
    _check_header(path, setting)
    return path


def _check_header(path: Path, setting: str) -> None:
    try:
        read_header(path)
    except WeightsError as error:
        raise WeightsError.at(setting, str(error)) from error


def check_places(family: Family, parts: Mapping[str, Path], components: Collection[str], base: str) -> None:
    """Raises WeightsError for the file of a text encoder that the base model goes without.

    parts: as from `own_parts`. components: those that the base model has.
    """
    for name in family.text.encoders:
        if name in parts and name not in components:
            raise WeightsError.at(
                ENCODERS_SETTING,
                f"'{parts[name]}': is the {name} of {family.label}, and model.base {base!r} goes "
                "without; leave it out, or choose a base model that has one.",
            )


def put_own_parts(pipe: DiffusionPipeline, family: Family, parts: Mapping[str, Path], config: ModelConfig) -> None:
    """Puts parts, as from `own_parts`, in place of those of the loaded pipeline of model.base. Raises WeightsError."""
    check_places(family, parts, [name for name, one in pipe.components.items() if one is not None], config.base)
    for name, path in parts.items():
        own = getattr(pipe, name)
        with tempfile.TemporaryDirectory() as folder:
            (own.config.save_pretrained if is_of_transformers(type(own)) else own.save_config)(folder)
            setattr(pipe, name, load_own_part(family, name, type(own), path, Path(folder), own.dtype, config))


def take_missing(
    parts: dict[str, Path], names: Collection[str], family: Family, config: ModelConfig, dtype: torch.dtype
) -> dict[str, Model]:
    """The VAE and the text encoders that a single file has none of to take the architecture from, by component.

    parts: as from `own_parts`; those that are returned are removed. names: of the tensors in the single file.
    Raises WeightsError, and OSError if a config can't be downloaded.
    """
    assert family.published is not None  # as of all families that are read from single files
    encoders = zip(family.text.encoders, family.published.text_encoders, strict=True)
    classes = {family.vae: family.published.vae} | {name: one for name, (one, _) in encoders}
    taken = {}
    for name in [name for name in parts if name in classes and not has_part(names, name, family)]:
        path, (library, _, class_name) = parts.pop(name), classes[name].class_name.rpartition(".")
        if config.config_folder:
            config_folder = Path(os.path.expanduser(config.config_folder)) / name
        else:
            config_folder = path if path.is_dir() else published_config(Path(os.path.expanduser(config.base)), name)
        component_class = getattr(import_module(library), class_name)
        taken[name] = load_own_part(family, name, component_class, path, config_folder, dtype, config)
    return taken


def load_own_part(
    family: Family,
    name: str,
    component_class: type[Any],
    path: Path,
    config_folder: Path,
    dtype: torch.dtype,
    config: ModelConfig | None = None,
) -> Model:
    """A component from its own file or folder.

    name: of the component. config_folder: of the base model's component, whose architecture a file must have, in the
    tensor names of diffusers or transformers, or in those of the original, as far as they are known. config: says how
    the layers of denoisers and text encoders are to be held; those that a file has in this form are QuantizedLinear at
    once.
    Raises WeightsError, starting with the setting, if it can't be read or is of another kind.
    """
    setting = setting_of(family, name)
    with refusing(lambda error: _error(setting, path, component_class, loading_reason(error))):
        wanted = Wanted(family, name, config if name in (*family.denoisers, *family.text.encoders) else None)
        if name in family.text.encoders:
            component, missing = load_text_encoder(component_class, path, config_folder, dtype, wanted)
        elif path.is_dir():
            component, missing = _from_folder(component_class, path, dtype)
        else:
            component, missing = _from_file(component_class, path, config_folder, dtype, wanted)
    if missing:
        raise _error(setting, path, component_class, f"its weights lack {missing}")
    return component


def _from_folder(component_class: type[Any], path: Path, dtype: torch.dtype) -> tuple[Any, str]:
    kind = component_class.load_config(path).get("_class_name")
    if kind != component_class.__name__:
        raise ValueError(f"it is a {kind}")
    return load_component(component_class, path, "", dtype)


def _from_file(
    component_class: type[Any], path: Path, config_folder: Path, dtype: torch.dtype, wanted: Wanted
) -> tuple[Any, str]:
    import torch
    from accelerate import init_empty_weights

    is_vae = setting_of(wanted.family, wanted.name) == "model.vae"
    config = component_class.load_config(config_folder)
    with init_empty_weights():  # buffers have values: some are in no file
        component = component_class.from_config(config)
    expected = component.state_dict().keys()
    if component_class.__name__ in INSIDE:
        tensors = inner_tensors(path, dtype, component_class.__name__)
        if not _is_whole(_names_in(path, DENOISER_SETTINGS[0]), component_class.__name__):
            own, _ = load_component(component_class, config_folder, "", dtype)
            tensors = {**own.state_dict(), **tensors}
    else:
        tensors = vae_tensors(path) if is_vae else denoiser_tensors(path, dtype, expected, wanted.quantization)
        if not expected <= tensors.keys():
            tensors = in_diffusers_names(component_class, tensors, config, expected)
    if not is_vae and (name := surplus(tensors.keys(), expected)):
        raise ValueError(f"it has a {name}, and that of model.base has none")
    if is_vae:
        tensors = _like_linear(tensors, component.state_dict())
    for name, value in component.state_dict().items():
        if name in tensors and shape_of(tensors[name]) != value.shape:
            shapes = f"{shape_of(tensors[name])} and that of model.base {tuple(value.shape)}"
            raise ValueError(f"its {name} has the shape {shapes}")
    if is_gguf(path):
        put_quantized(component, tensors, dtype)
    if wanted.quantization in EIGHT_BITS:
        put_scaled_rows(component, tensors, wanted.rotations(component, dtype), wanted.quantization)
    missing = next((name for name in expected if name.endswith(_STATISTICS) and name not in tensors), "")
    exact = set(component_class._keep_in_fp32_modules or ())  # as diffusers loads it from a folder
    weights = component.state_dict()
    for name in weights.keys() & tensors.keys():
        value = tensors.pop(name)  # or it would be held in both dtypes
        own_dtype = dtype if exact.isdisjoint(name.split(".")) else torch.float32
        weights[name] = value.to(own_dtype) if value.is_floating_point() else value
    component.load_state_dict(weights, assign=True)
    return component.eval(), missing or next(
        (name for name, value in component.state_dict().items() if value.is_meta), ""
    )


def _like_linear(tensors: dict[str, Tensor], weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The tensors, those in the shapes of weights that differ only in axes of length 1: a convolution of 1 x 1 computes
    what a linear layer does, and one over a single frame what one without frames does."""

    def same(name: str, tensor: Tensor) -> bool:
        sides = [[side for side in one.shape if side != 1] for one in (tensor, weights[name])]
        return sides[0] == sides[1]

    return {
        name: tensor.reshape(weights[name].shape) if name in weights and same(name, tensor) else tensor
        for name, tensor in tensors.items()
    }


def _error(setting: str, path: Path, component_class: type[Any], reason: str) -> WeightsError:
    kind = "" if path.is_dir() or is_gguf(path) else kind_of(tensor_shapes(read_header(path)))
    if kind:
        reason = f"{reason}; by the names of its tensors, it is {kind}"
    return WeightsError.at(
        setting,
        f"'{path}': can't be read as the {component_class.__name__} of model.base ({reason}); choose one "
        "that was made for this kind of model.",
    )
