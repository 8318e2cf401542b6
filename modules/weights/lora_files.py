"""LoRA files: written in diffusers' format and in kohya's, which ComfyUI and A1111 read; loaded from either.

Shapes: r is the rank. A layer has `lora_A` [r, in] (of a convolution [r, in, kh, kw]), which kohya calls `lora_down`,
and `lora_B` [out, r] (of a convolution [out, r, 1, 1]), which kohya calls `lora_up`.
"""

from __future__ import annotations

import inspect
import json
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from modules.weights.errors import WeightsError
from modules.weights.safe import read_header, save_tensors, tensor_shapes

if TYPE_CHECKING:
    import torch
    from diffusers import DiffusionPipeline
    from torch import Tensor, nn

ADAPTER = "default"
# Component -> how kohya's names begin; only pipelines whose files other tools are known to read in this form.
KOHYA_PREFIXES = {"StableDiffusionPipeline": {"unet": "lora_unet", "text_encoder": "lora_te"}}


def save_lora(
    path: str | Path,
    components: Mapping[str, nn.Module],
    pipeline_class: type[DiffusionPipeline],
    fmt: Literal["diffusers", "single_file", "both"] = "diffusers",
    dtype: torch.dtype | None = None,
    metadata: Mapping[str, str] | None = None,
) -> list[Path]:
    """Write the LoRA of `components` to `<path>.safetensors` and, in kohya's form, `<path>_kohya.safetensors`.

    path: a file's name without its extension (".safetensors" is taken off); its folder is made.
    components: the pipeline's name of each -> the module into which PEFT put an adapter named "default".
    dtype: of the tensors in the file, None to keep them as they are.
    metadata: further texts for the files' headers.
    Returns the files written, each whole or not at all. Raises WeightsError if the format can't hold the adapters.
    """
    path = Path(path)
    stem = path.with_suffix("") if path.suffix == ".safetensors" else path
    if fmt != "diffusers":
        _check_kohya(components, pipeline_class)  # before the first file is written
    written = []
    if fmt in ("diffusers", "both"):
        file = stem.with_name(f"{stem.name}.safetensors")
        _save_diffusers(file, components, pipeline_class, dtype, metadata)
        written.append(file)
    if fmt in ("single_file", "both"):
        file = stem.with_name(f"{stem.name}_kohya.safetensors")
        prefixes = KOHYA_PREFIXES[pipeline_class.__name__]
        tensors: dict[str, Tensor] = {}
        for name, module in components.items():
            tensors |= _kohya_tensors(module, prefixes[name], dtype)
        save_tensors(file, tensors, metadata)
        written.append(file)
    return written


def load_lora(pipe: DiffusionPipeline, path: str | Path) -> None:
    """Load a LoRA file, in diffusers' or kohya's format, into a pipeline, as its `load_lora_weights` does.

    Raises WeightsError if the file is damaged, is no LoRA, or was made for another kind of model; the pipeline is
    then unchanged where that shows in the names and shapes of the file.
    """
    path = Path(path)
    _check_fits(pipe, path, tensor_shapes(read_header(path)))
    try:
        pipe.load_lora_weights(str(path.parent), weight_name=path.name, use_safetensors=True, local_files_only=True)
    except (RuntimeError, ValueError, KeyError, TypeError) as error:
        reason = str(error).strip().splitlines()[0][:200] if str(error).strip() else type(error).__name__
        raise WeightsError(
            f"'{path}': can't be loaded into a {type(pipe).__name__} ({reason}); choose a LoRA made for this model."
        ) from error


def _save_diffusers(
    file: Path,
    components: Mapping[str, nn.Module],
    pipeline_class: type[DiffusionPipeline],
    dtype: torch.dtype | None,
    metadata: Mapping[str, str] | None,
) -> None:
    """The pipeline class packs the tensors under its names; the file is written here, whole or not at all."""
    from diffusers.loaders.lora_base import LORA_ADAPTER_METADATA_KEY

    accepted = inspect.signature(pipeline_class.save_lora_weights).parameters
    layers, configs = {}, {}
    for name, module in components.items():
        if f"{name}_lora_layers" not in accepted:
            raise WeightsError(
                f"A LoRA file of a {pipeline_class.__name__} has no place for '{name}'; train without a LoRA there."
            )
        layers[f"{name}_lora_layers"] = _adapter_tensors(module, dtype)
        # Without it diffusers takes alpha for equal to the rank, and the LoRA's strength is silently another.
        configs |= {f"{name}.{key}": value for key, value in _adapter_config(module).items()}
    header = {**(metadata or {}), LORA_ADAPTER_METADATA_KEY: json.dumps(configs, indent=2, sort_keys=True)}
    file.parent.mkdir(parents=True, exist_ok=True)  # diffusers would only log that it can't be made
    pipeline_class.save_lora_weights(
        file.parent,
        weight_name=file.name,
        save_function=lambda tensors, _: save_tensors(file, tensors, header),
        **layers,
    )


def _adapter_tensors(module: nn.Module, dtype: torch.dtype | None) -> dict[str, Tensor]:
    from peft import get_peft_model_state_dict

    tensors = get_peft_model_state_dict(
        module,
        adapter_name=ADAPTER,
        save_embedding_layers=False,  # no embedding is adapted; "auto" would look for the base on the Hub
    )
    if type(module).__name__ == "CLIPTextModel":
        # transformers 5 has no `text_model.` level in memory; every reader looks for it in the file.
        tensors = {f"text_model.{name.removeprefix('text_model.')}": tensor for name, tensor in tensors.items()}
    return {name: tensor if dtype is None else tensor.to(dtype) for name, tensor in tensors.items()}


def _adapter_config(module: nn.Module) -> dict[str, Any]:
    """What of PEFT's config differs from its defaults and matters to a reader, as plain data.

    Not all of it: an older PEFT refuses fields that it does not know, the first values of the weights are history,
    and the path of the base model on this machine is nobody else's business.
    """
    config = module.peft_config[ADAPTER]
    defaults = type(config)().to_dict()
    always = ("r", "lora_alpha", "target_modules")
    never = ("base_model_name_or_path", "auto_mapping", "inference_mode", "init_lora_weights", "peft_version")
    # diffusers adds adapters in training mode: told of a dropout, it would go on dropping out in every picture
    never += ("lora_dropout",)
    return {
        key: sorted(value) if isinstance(value, set) else value
        for key, value in config.to_dict().items()
        if key not in never and (key in always or value != defaults.get(key))
    }


def _check_kohya(components: Mapping[str, nn.Module], pipeline_class: type[DiffusionPipeline]) -> None:
    prefixes = KOHYA_PREFIXES.get(pipeline_class.__name__)
    if prefixes is None:
        raise WeightsError(
            f"A LoRA of a {pipeline_class.__name__} can't be written in kohya's format; choose the diffusers format."
        )
    for name, module in components.items():
        if name not in prefixes:
            raise WeightsError(f"kohya's format has no names for a LoRA on '{name}'; choose the diffusers format.")
        if module.peft_config[ADAPTER].use_dora:
            raise WeightsError(
                f"The DoRA on '{name}' can't be written in kohya's format, whose readers differ on it; "
                "choose the diffusers format."
            )


def _kohya_tensors(module: nn.Module, prefix: str, dtype: torch.dtype | None) -> dict[str, Tensor]:
    """`<prefix>_<path with underscores>.lora_down.weight`, `.lora_up.weight` and `.alpha` of every adapted layer.

    All layers get one alpha: diffusers 0.42 loses those of single layers when it reads this format. Where a layer has
    another, the ratio is put into its `lora_up`, which gives the same product in every reader.
    """
    import torch

    tensors = _adapter_tensors(module, None)
    alphas = _alphas(module, tensors)
    alpha = Counter(alphas.values()).most_common(1)[0][0]
    converted = {}
    for name, tensor in tensors.items():
        layer, kind, _ = name.rsplit(".", 2)
        key = f"{prefix}_{layer.replace('.', '_')}"
        if kind == "lora_A":
            converted[f"{key}.lora_down.weight"] = tensor
            converted[f"{key}.alpha"] = torch.tensor(alpha)
        elif kind == "lora_B":
            converted[f"{key}.lora_up.weight"] = tensor * (alphas[layer] / alpha)
        else:
            raise WeightsError(f"kohya's format has no place for '{name}'; choose the diffusers format.")
    return converted if dtype is None else {name: tensor.to(dtype) for name, tensor in converted.items()}


def _alphas(module: nn.Module, tensors: Mapping[str, Tensor]) -> dict[str, float]:
    """Layer -> the alpha that with its rank gives its scale: alphas of single layers and rsLoRA's rule are in it."""
    alphas = {}
    for name, tensor in tensors.items():
        layer, kind, _ = name.rsplit(".", 2)
        if kind == "lora_A":
            scaling = module.get_submodule(_in_memory(module, layer)).scaling[ADAPTER]
            alphas[layer] = float(scaling * tensor.shape[0])
    return alphas


def _in_memory(module: nn.Module, layer: str) -> str:
    """A layer's path in memory from its path in a file."""
    return layer if hasattr(module, "text_model") else layer.removeprefix("text_model.")


def _check_fits(pipe: DiffusionPipeline, path: Path, shapes: Mapping[str, tuple[int, ...]]) -> None:
    """Refuse a file that was made for another model, by the layers it names and the width of their inputs.

    diffusers skips what it has no layer for without a word, so a LoRA of another family would load and do nothing.
    """
    if not any("lora" in name for name in shapes):
        raise WeightsError(f"'{path}': is not a LoRA; choose a LoRA file.")
    kohya = KOHYA_PREFIXES.get(type(pipe).__name__, {})
    widths = _input_widths(pipe, kohya)
    for name, shape in shapes.items():
        is_kohya = name.startswith(("lora_unet_", "lora_te"))
        if is_kohya and not kohya:
            continue  # diffusers converts it, or says that it can't
        layer, fits = name, is_kohya or name.split(".")[0] in pipe.components
        if name.endswith((".lora_A.weight", ".lora_down.weight")):
            layer = name.rsplit(".", 2)[0]
            fits = shape[1:2] == (widths.get(layer),)
        if not fits:
            raise WeightsError(
                f"'{path}': was made for another kind of model, its layer '{layer}' does not fit a "
                f"{type(pipe).__name__}; choose a LoRA made for this model."
            )


def _input_widths(pipe: DiffusionPipeline, kohya: Mapping[str, str]) -> dict[str, int]:
    """Layer as a LoRA file may name it -> its input features or channels, for every layer of a pipeline."""
    import torch

    widths = {}
    for component, module in pipe.components.items():
        if not isinstance(module, torch.nn.Module):
            continue
        for path, layer in module.named_modules():
            weight = getattr(layer, "weight", None)
            if weight is None or weight.dim() < 2:
                continue
            for name in {path, path if hasattr(module, "text_model") else f"text_model.{path}"}:
                widths[f"{component}.{name}"] = weight.shape[1]
                if component in kohya:
                    widths[f"{kohya[component]}_{name.replace('.', '_')}"] = weight.shape[1]
    return widths
