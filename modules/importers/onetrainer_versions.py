"""OneTrainer's settings of earlier versions, brought to the present one as OneTrainer does when it loads them.

Each function is a step from one version to the next. A file without `__version` is of version 0, unless it is one of
the built-in presets, whose names begin with # and which are loaded as they are.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

from modules.config.errors import UserError

VERSION = 11
Values = dict[str, Any]
PARTS = (
    "unet", "prior", "transformer", "text_encoder", "text_encoder_2", "text_encoder_3", "text_encoder_4", "vae",
    "effnet_encoder", "decoder", "decoder_text_encoder", "decoder_vqgan",
)  # fmt: skip
CASCADES = ("STABLE_CASCADE_1", "WUERSTCHEN_2")


def to_present(values: Values, is_preset: bool) -> Values:
    """The values of a file of any version as those of the present one.

    is_preset: whether it is a built-in preset.
    Raises UserError if its version is none or newer.
    """
    version = values.get("__version", VERSION if is_preset else 0)
    if isinstance(version, bool) or not isinstance(version, int) or version < 0:
        raise UserError(f"__version {version!r:.40} of the file is no version of OneTrainer's settings; it is damaged.")
    if version > VERSION:
        raise UserError(
            f"the file has version {version} of OneTrainer's settings, Chorus reads up to {VERSION}: update Chorus."
        )
    values = copy.deepcopy(values)
    for step in _STEPS[version:]:
        values = step(values)
    return values


def concept_to_present(concept: Values) -> Values:
    """A concept of any version as one of the present one."""
    concept = dict(concept)
    if "repeats" in concept:
        concept.setdefault("balancing", concept.pop("repeats"))
    if "validation_concept" in concept:
        is_validation = concept.pop("validation_concept")
        concept.setdefault("type", "VALIDATION" if is_validation is True else "STANDARD")
    return concept


def _from_0(values: Values) -> Values:
    """The optimizer gets a section."""
    if isinstance(values.get("optimizer"), dict):
        return values
    names = [name for name in values if name.startswith("optimizer") and name != "optimizer_defaults"]
    optimizer = {name.removeprefix("optimizer_"): values.pop(name) for name in names}
    if "optimizer" in optimizer:
        values["optimizer"] = optimizer
    return values


def _from_1(values: Values) -> Values:
    """The parts of the model get sections, and the embedding too."""
    for part in PARTS:
        section = _section(values, part)
        _move(values, f"train_{part}", section, "train")
        if f"train_{part}_epochs" in values:
            section["stop_training_after_unit"] = "EPOCH"
        _move(values, f"train_{part}_epochs", section, "stop_training_after")
        for name in ("learning_rate", "weight_dtype", "model_name"):
            _move(values, f"{part}_{name}", section, name)
    embedding: Values = {}
    for name in ("token_count", "initial_embedding_text"):
        _move(values, name, embedding, name)
    names = values.pop("embedding_model_names", None)
    if isinstance(names, list) and names:
        embedding["model_name"] = names[0]
    if embedding:
        values["embedding"] = embedding
    if "extra_model_name" in values:
        _move(values, "extra_model_name", values, "lora_model_name")
    return values


def _from_2(values: Values) -> Values:
    """Min-SNR gamma becomes one of several loss weights."""
    gamma = values.pop("min_snr_gamma", None)
    if gamma:
        values |= {"loss_weight_fn": "MIN_SNR_GAMMA", "loss_weight_strength": gamma}
    elif values.get("model_type") in CASCADES:
        values |= {"loss_weight_fn": "P2", "loss_weight_strength": 1.0}
    return values


def _from_3(values: Values) -> Values:
    """The noising bias is counted from the middle, and the distribution has a name."""
    weight, bias = values.pop("noising_weight", 0.0), values.pop("noising_bias", 0.5)
    if not weight:
        return {**values, "timestep_distribution": "UNIFORM", "noising_weight": 0.0, "noising_bias": 0.0}
    bias = bias - 0.5 if isinstance(bias, (int, float)) else bias
    return {**values, "timestep_distribution": "SIGMOID", "noising_weight": weight, "noising_bias": bias}


def _from_4(values: Values) -> Values:
    """Gradient checkpointing has three values."""
    values["gradient_checkpointing"] = "ON" if values.get("gradient_checkpointing", True) else "OFF"
    return values


def _from_5(values: Values) -> Values:
    for name in ("", "_unit"):
        _move(values, f"save_after{name}", values, f"save_every{name}")
    return values


def _from_6(values: Values) -> Values:
    """A fault of OneTrainer had written null."""
    if "lora_layer_preset" in values and values["lora_layer_preset"] is None:
        values["lora_layer_preset"] = "full"
    return values


def _from_7(values: Values) -> Values:
    _move(values, "lora_layers", values, "layer_filter")
    _move(values, "lora_layer_preset", values, "layer_filter_preset")
    _move(values, "lora_layers_regex", values, "layer_filter_regex")
    return values


def _from_8(values: Values) -> Values:
    """Transformers are no longer called priors."""
    if values.get("model_type") not in CASCADES and "prior" in values:
        values["transformer"] = copy.deepcopy(values["prior"])
    return values


def _from_9(values: Values) -> Values:
    """Parts without a precision of their own get that of the whole model."""
    common = values.pop("weight_dtype", None)
    for part in PARTS:
        section = values.get(part)
        if isinstance(section, dict) and section.get("weight_dtype") == "NONE":
            section["weight_dtype"] = common or "FLOAT_32"
    return values


def _from_10(values: Values) -> Values:
    """Checkpointing and offloading are settings of the parts; SAFETENSORS has other names."""
    checkpointing = values.pop("gradient_checkpointing", "ON")
    activations = values.pop("enable_activation_offloading", True)
    fraction = values.pop("layer_offload_fraction", 0.0)
    _move(values, "enable_async_offloading", values, "async_offloading")
    offloads = checkpointing == "CPU_OFFLOADED"
    for part in PARTS:
        section = values.get(part)
        if isinstance(section, dict):
            section["gradient_checkpointing"] = checkpointing != "OFF"
            section["activation_offloading"] = offloads and activations
            section["offload_fraction"] = fraction if offloads else 0.0
    return values


def _section(values: Values, name: str) -> Values:
    if not isinstance(values.get(name), dict):
        values[name] = {}
    return values[name]


def _move(values: Values, name: str, target: Values, new_name: str) -> None:
    if name in values:
        target[new_name] = values.pop(name)


_STEPS: tuple[Callable[[Values], Values], ...] = (
    _from_0, _from_1, _from_2, _from_3, _from_4, _from_5, _from_6, _from_7, _from_8, _from_9, _from_10,
)  # fmt: skip
