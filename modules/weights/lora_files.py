"""Writes LoRA files in diffusers' format and in kohya's, which ComfyUI and A1111 read; loads these and LyCORIS's."""

from __future__ import annotations

import inspect
import itertools
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol, cast

from modules.config.errors import first_line
from modules.families.registry import family_of, family_of_pipeline
from modules.weights.adapters.kinds import ADAPTER
from modules.weights.adapters.lora import KIND as LORA
from modules.weights.converted_loras import check_all_used, converted_sources, lost_tensors, refused_tensors
from modules.weights.embedding_files import add_bundled_words
from modules.weights.errors import WeightsError
from modules.weights.foreign_names import with_whole_groups
from modules.weights.lora_family import check_family
from modules.weights.lora_fitting import fitting_layers, path_in_module
from modules.weights.lora_layers import (
    ADAPTER_METADATA,
    DIFFUSERS_KINDS,
    NO_METADATA,
    Layers,
    LoraLayer,
    LoraMetadata,
    diffusers_tensors,
    kohya_tensors,
    magnitude_ending,
    with_dtype,
)
from modules.weights.lora_reading import is_read_by_name, read_layers
from modules.weights.LoraSource import LoraSource, is_of_norm
from modules.weights.lycoris_files import is_lycoris, load_lycoris, read_lycoris, read_norms
from modules.weights.pipeline_adapters import adapter_names, has_loader
from modules.weights.safe import save_tensors

if TYPE_CHECKING:
    import torch
    from diffusers.pipelines.pipeline_utils import DiffusionPipeline
    from torch import Tensor

    from modules.families.Family import Family
    from modules.weights.libraries import Model

_BIASES = (".bias", ".diff_b")
_LORA_BIASES = (".lora_A.bias", ".lora_B.bias")
LoraFormat = Literal["diffusers", "single_file", "both"]


class LoraPipeline(Protocol):
    """A class of diffusers' pipelines with LoRAs. Each declares its own arguments, named after its components."""

    def save_lora_weights(self, save_directory: Path, **options: Any) -> None: ...


@dataclass(frozen=True)
class AdaptedModel:
    """A model with LoRAs, and how they are divided into files.

    components: name in the pipeline -> module with a PEFT adapter named "default".
    experts: component -> the component name in its own file, `<path>_<component>`, from which diffusers loads it.
    """

    components: Mapping[str, Model]
    pipeline_class: type[DiffusionPipeline]
    experts: Mapping[str, str] = field(default_factory=dict)

    def files(self) -> dict[str, dict[str, Model]]:
        """Expert, "" for the file of all that has none -> the components in its file, by their names there."""
        files: dict[str, dict[str, Model]] = {}
        for name, module in self.components.items():
            is_expert = name in self.experts
            files.setdefault(name if is_expert else "", {})[self.experts.get(name, name)] = module
        return files


def save_lora(
    path: str | Path,
    model: AdaptedModel,
    fmt: LoraFormat = "diffusers",
    dtype: torch.dtype | None = None,
    metadata: LoraMetadata = NO_METADATA,
    bundle: Mapping[str, Tensor] | None = None,
) -> list[Path]:
    """Writes the LoRA of a model to `<path>.safetensors` and, in kohya's format, to `<path>_kohya.safetensors`.

    path: the file name without extension (".safetensors" is removed); its folder is created.
    dtype: of the saved tensors; None keeps their dtype.
    metadata: further metadata for the files.
    bundle: further tensors for the file in kohya's format, such as the words that were trained with it.
    Returns the files, which are written atomically. Raises WeightsError if the format can't represent the adapters.
    """
    path = Path(path)
    stem = path.with_suffix("") if path.suffix == ".safetensors" else path
    files = {expert: f"_{expert}" if expert else "" for expert in model.files()}
    # before the first file is written, because this raises if the format can't represent the adapters
    as_kohya = _kohya_files(model, dtype) if fmt != "diffusers" else {}
    written = []
    if fmt in ("diffusers", "both"):
        for expert, components in model.files().items():
            file = stem.with_name(f"{stem.name}{files[expert]}.safetensors")
            _save_diffusers(file, components, model.pipeline_class, dtype, metadata.of(expert))
            written.append(file)
    for expert, tensors in as_kohya.items():
        file = stem.with_name(f"{stem.name}_kohya{files[expert]}.safetensors")
        save_tensors(file, {**tensors, **((not expert and bundle) or {})}, metadata.of(expert))
        written.append(file)
    return written


def check_lora(model: AdaptedModel, fmt: LoraFormat) -> None:
    """Raises WeightsError if `save_lora` would, so that it can be called before training."""
    if fmt != "single_file":
        for components in model.files().values():
            _check_places(components, model.pipeline_class)
    if fmt != "diffusers":
        _kohya_files(model, None)


def kohya_bytes(model: AdaptedModel, dtype: torch.dtype) -> int:
    """The size of the tensors in the files in kohya's format."""
    return sum(tensor.nbytes for tensors in _kohya_files(model, dtype).values() for tensor in tensors.values())


def load_lora(
    pipe: DiffusionPipeline,
    path: str | Path,
    warn: Callable[[str], None] | None = None,
    note: Callable[[str], None] | None = None,
) -> None:
    """Loads a LoRA file of any program, or a LoHa, LoKr, OFT or IA3, into a pipeline.

    warn: told about what diffusers leaves out of a file of another program; None: such a file is refused.
    note: told about layers for parts that the pipeline or its model lacks, which are left out; None: `warn` is.
    Raises WeightsError if the file is damaged, is not a LoRA, or was made for another kind of model. The pipeline is
    unchanged if the names and shapes of the file show this.
    """
    file, family = LoraSource(path), family_of_pipeline(pipe)
    note = note or warn or _refuse
    if not has_loader(pipe) and family is None:
        raise WeightsError(f"'{path}': diffusers can't load LoRAs into a {type(pipe).__name__}; leave it out.")
    adapter = _free_name(pipe)
    if family and is_lycoris(file.shapes):
        load_lycoris(pipe, file.path, read_lycoris(file, family), adapter, note)
        return
    if family:
        check_family(file, family)
    try:
        if family and not _has_more(pipe, file, family):
            layers = read_layers(file, family, True, note)
            modules = {component: getattr(pipe, component, None) for component in layers}
            _add_layers(pipe, file, family, fitting_layers(file.path, layers, modules, note), adapter, note)
        else:
            _add_converted(pipe, file, adapter, warn)
        if not adapter_names(pipe):
            raise ValueError("it fits none of its layers")
    except (RuntimeError, ValueError, KeyError, TypeError, AttributeError) as error:
        if refused := refused_tensors(error, file.shapes):
            raise WeightsError(
                f"{_cant_apply(path, refused)}, and refuses the file; choose a LoRA for this model without them."
            ) from error
        reason = first_line(error)[:200]
        raise WeightsError(
            f"'{path}': can't be loaded into a {type(pipe).__name__} ({reason}); choose a LoRA made for this model."
        ) from error


def _has_more(pipe: DiffusionPipeline, file: LoraSource, family: Family) -> bool:
    """Whether a file has more than LoRAs, of which only diffusers knows what it can apply."""
    if not has_loader(pipe):
        return False  # `read_layers` refuses what it has beside them
    if file.changes() or any(name.endswith(_LORA_BIASES) for name in file.shapes):
        return True
    return not is_read_by_name(file, family) and bool(lost_tensors(file, type(pipe)))


def _refuse(text: str) -> None:
    raise WeightsError(f"{text.removesuffix('.')}: choose a LoRA without, or one made for this model.")


def _add_layers(
    pipe: DiffusionPipeline,
    file: LoraSource,
    family: Family,
    layers: Layers,
    adapter: str,
    note: Callable[[str], None],
) -> None:
    """Adds what was read of a file by its names: its layers, norms and words."""
    for expert in family.denoisers[1:]:  # diffusers loads it as the first one, told where it belongs
        if expert in layers:
            own = {family.denoisers[0]: layers.pop(expert)}
            pipe.load_lora_weights(_tensors(own), adapter_name=adapter, **{f"load_into_{expert}": True})
    if layers and has_loader(pipe):
        pipe.load_lora_weights(_tensors(layers), adapter_name=adapter)
    elif layers:
        for component, of_component in layers.items():
            LORA.add(getattr(pipe, component), of_component, adapter=adapter, trains=False)
    load_lycoris(pipe, file.path, read_norms(file, family), adapter, note)
    add_bundled_words(pipe, file.path, file.tensors, family)


def _tensors(layers: Layers) -> dict[str, Tensor]:
    # diffusers takes the alphas of single layers from the metadata of files alone
    return diffusers_tensors(_with_scale(layers))


def _add_converted(pipe: DiffusionPipeline, file: LoraSource, adapter: str, warn: Callable[[str], None] | None) -> None:
    """Has diffusers convert a file of another program, and says what it drops."""
    used = converted_sources(file, type(pipe))
    if used is not None:
        check_all_used(file, used)
    lost = lost_tensors(file, type(pipe))
    if lost and warn is None:
        raise WeightsError(f"{_cant_apply(file.path, lost)}, which would be lost; choose a LoRA without.")
    options: dict[str, Any] = {f"load_into_{file.expert}": True} if file.expert else {}
    if any(name.endswith(_BIASES) for name in file.shapes):
        # else the biases of layers for which the file has none would be on the meta device
        options["low_cpu_mem_usage"] = False
    options |= {"adapter_name": adapter, "use_safetensors": True, "local_files_only": True}
    pipe.load_lora_weights(str(file.path.parent), weight_name=file.path.name, **options)
    if lost and warn:
        warn(f"{_cant_apply(file.path, lost)}: images differ from those of programs that do.")


def _free_name(pipe: DiffusionPipeline) -> str:
    """A name for the adapters of one file, which none of the pipeline's components has for those of another.

    diffusers counts the adapters of each component by itself, so that one name may stand for several files.
    """
    taken = adapter_names(pipe)
    return next(name for number in itertools.count() if (name := f"default_{number}") not in taken)


def _cant_apply(path: str | Path, lost: Sequence[str]) -> str:
    return f"'{path}': diffusers can't apply {len(lost)} of its tensors, such as '{lost[0]}'"


def _save_diffusers(
    file: Path,
    components: Mapping[str, Model],
    pipeline_class: type[DiffusionPipeline],
    dtype: torch.dtype | None,
    metadata: Mapping[str, str] | None,
) -> None:
    """The pipeline class names the tensors; the file is written here, atomically."""
    _check_places(components, pipeline_class)
    tensors: dict[str, dict[str, Tensor]] = {}
    configs: dict[str, Any] = {}
    for name, module in components.items():
        ending = magnitude_ending(name)
        own = {key.replace(".lora_magnitude_vector", ending): t for key, t in _adapter_tensors(module).items()}
        tensors[name] = {key: t if dtype is None else t.to(dtype) for key, t in own.items()}
        # Without it, diffusers assumes that alpha equals the rank, which silently changes the strength of the LoRA.
        configs |= {f"{name}.{key}": value for key, value in _adapter_config(module).items()}
    header = {**(metadata or {}), ADAPTER_METADATA: json.dumps(configs, indent=2, sort_keys=True)}
    file.parent.mkdir(parents=True, exist_ok=True)  # diffusers would only log an error
    if not has_loader(pipeline_class):  # then each component loads its own of the file, by the prefix
        save_tensors(file, {f"{name}.{key}": t for name, of in tensors.items() for key, t in of.items()}, header)
        return
    cast("LoraPipeline", pipeline_class).save_lora_weights(
        file.parent,
        weight_name=file.name,
        save_function=lambda named, _: save_tensors(file, named, header),
        **{f"{name}_lora_layers": of_component for name, of_component in tensors.items()},
    )


def _check_places(components: Iterable[str], pipeline_class: type[DiffusionPipeline]) -> None:
    if not has_loader(pipeline_class):
        return
    accepted = inspect.signature(cast("LoraPipeline", pipeline_class).save_lora_weights).parameters
    for name in components:
        if f"{name}_lora_layers" not in accepted:
            raise WeightsError(
                f"A LoRA file for a {pipeline_class.__name__} can't contain '{name}'; train without a LoRA for it."
            )


def _kohya_files(model: AdaptedModel, dtype: torch.dtype | None) -> dict[str, dict[str, Tensor]]:
    """Expert -> the tensors of its file in kohya's format."""
    files = model.files().items()
    return {expert: _kohya_tensors(components, model.pipeline_class, dtype) for expert, components in files}


def _kohya_tensors(
    components: Mapping[str, Model], pipeline_class: type[DiffusionPipeline], dtype: torch.dtype | None
) -> dict[str, Tensor]:
    family = family_of({"_class_name": pipeline_class.__name__})
    if family is None or not (family.kohya_prefixes or family.layer_names):
        raise WeightsError(
            f"A LoRA for a {pipeline_class.__name__} can't be saved in kohya's format; choose the diffusers format."
        )
    layers = {name: adapter_layers(module) for name, module in components.items()}
    for name, names in family.layer_names.items():
        if name in layers:
            layers[name] = with_whole_groups(layers[name], components[name], names)
    tensors = kohya_tensors(layers, family)
    return tensors if dtype is None else with_dtype(tensors, dtype)


def adapter_layers(module: Model) -> dict[str, LoraLayer]:
    """The layers that PEFT's adapter named "default" has in a module, by their paths as in a file of diffusers.

    Raises WeightsError for weights of another kind than those of LoRA and DoRA.
    """
    from peft.tuners.lora import LoraLayer as AdaptedLayer

    parts: dict[str, dict[str, Tensor]] = {}
    for name, tensor in _adapter_tensors(module).items():
        ending = next((ending for ending in DIFFUSERS_KINDS if name.endswith(ending)), None)
        if ending is None:
            raise WeightsError(f"kohya's format can't contain '{name}'; choose the diffusers format.")
        parts.setdefault(name.removesuffix(ending), {})[DIFFUSERS_KINDS[ending]] = tensor
    layers = {}
    for path, tensors in parts.items():
        # the alpha that with the rank gives the layer's scale: alphas of single layers and rsLoRA's rule are in it
        adapted = module.get_submodule(path_in_module(module, path))
        assert isinstance(adapted, AdaptedLayer)
        layers[path] = LoraLayer(alpha=float(adapted.scaling[ADAPTER] * tensors["down"].shape[0]), **tensors)
    return layers


def _adapter_tensors(module: Model) -> dict[str, Tensor]:
    from peft import get_peft_model_state_dict

    tensors = get_peft_model_state_dict(
        module,
        adapter_name=ADAPTER,
        save_embedding_layers=False,  # no embedding is adapted; "auto" would look for the base on the Hub
    )
    if type(module).__name__ == "CLIPTextModel":
        # transformers 5 dropped the `text_model.` level, which other programs expect in files
        tensors = {f"text_model.{name.removeprefix('text_model.')}": tensor for name, tensor in tensors.items()}
    return {name: tensor for name, tensor in tensors.items() if not is_of_norm(name)}  # they are no LoRA


def _adapter_config(module: Model) -> dict[str, Any]:
    """The fields of PEFT's config that matter for loading and differ from the defaults, as plain data.

    Other fields are omitted: older PEFT versions reject unknown fields, the initialization no longer matters, and the
    path of the base model on this machine is private.
    """
    from peft import PeftConfig

    config = module.peft_config[ADAPTER]
    assert isinstance(config, PeftConfig)
    defaults = type(config)().to_dict()
    always = ("r", "lora_alpha", "target_modules")
    never = (
        "base_model_name_or_path",
        "auto_mapping",
        "inference_mode",
        "init_lora_weights",
        "peft_version",
        "lora_dropout",  # diffusers adds adapters in training mode, so it would also be applied when sampling
    )
    return {
        key: sorted(value) if isinstance(value, set) else value
        for key, value in config.to_dict().items()
        if key not in never and (key in always or value != defaults.get(key))
    }


def _with_scale(layers: Layers) -> Layers:
    """The layers scaled so that every alpha equals the rank, as diffusers assumes for tensors without settings."""
    return {
        component: {
            path: replace(layer, up=layer.up * (layer.alpha / layer.rank), alpha=float(layer.rank))
            for path, layer in of_component.items()
        }
        for component, of_component in layers.items()
    }
