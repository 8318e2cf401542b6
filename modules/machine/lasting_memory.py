"""The part of the memory estimate that lasts: weights, their gradients and the optimizer's state."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import TYPE_CHECKING

from modules.config.adapters import facts_of_adapter
from modules.config.families import load_families
from modules.config.methods import facts_of
from modules.config.optimizers import facts_of_optimizer
from modules.config.quantizations import QUANTIZATIONS
from modules.machine.architectures import FACTORED, Architecture, correction

if TYPE_CHECKING:
    from modules.config.TrainConfig import TrainConfig

BYTES_OF = {"float64": 8, "float32": 4, "bfloat16": 2, "float16": 2}
ROUNDED_WEIGHTS = 2**26  # that stochastic rounding holds in float32 at a time, in about four copies
_STATE_WEIGHTS = 2**24  # whose optimizer state is on the GPU together, see trainer/HostState.py
_VOCABULARY = 152_064 * 3584  # of Qwen2.5-VL-7B, the largest vocabulary of the text encoders


def loaded_bytes(config: TrainConfig, model: Architecture) -> float:
    """The weights on the GPU during training; text encoders are unloaded if all captions are cached."""
    if not facts_of(config).uses_denoiser:
        return model.vae * BYTES_OF[config.model.weight_dtype]
    return denoiser_bytes(config, model) + (text_encoder_bytes(config, model) if trained_text_encoders(config) else 0)


def denoiser_bytes(config: TrainConfig, model: Architecture) -> float:
    """The denoiser's weights on the GPU: without the swapped blocks, but with room for two of them."""
    share = _loaded_share(config)
    if share < 1:
        return share * denoiser_bytes(_with_both_experts(config), model)
    quantized, blocks = quantized_denoiser_bytes(config, model), model.blocks
    whole = held_bytes(config, quantized, model.denoiser, model.quantizable_denoiser)
    count, swapped = _num_swapped(config, model), swapped_bytes(config, model)
    if not count:
        return whole
    num_denoisers = len(load_families()[config.family].denoisers)
    slots = min(count, 2) * num_denoisers * blocks.largest * swapped * blocks.count / count / blocks.weights
    return whole - swapped + min(slots, swapped)


def swapped_bytes(config: TrainConfig, model: Architecture) -> float:
    """The denoiser's weights in swapped blocks, which are in system memory; of all blocks if their number is open."""
    share = _loaded_share(config)
    if share < 1:
        return share * swapped_bytes(_with_both_experts(config), model)
    quantizable = min(model.quantizable_denoiser, model.blocks.weights)  # few others are outside of these blocks
    quantized = quantized_denoiser_bytes(config, model)
    in_blocks = held_bytes(config, quantized, model.blocks.weights, quantizable)
    return in_blocks * _num_swapped(config, model) / max(1, model.blocks.count)


def _num_swapped(config: TrainConfig, model: Architecture) -> int:
    wanted = config.model.blocks_to_swap
    return model.blocks.count if wanted is None else min(wanted, model.blocks.count)


def _with_both_experts(config: TrainConfig) -> TrainConfig:
    """For a run that loads one of two: the run that loads two of its kind."""
    file = config.model.denoiser if config.denoiser.expert == "high" else config.model.denoiser_2
    files = replace(config.model, denoiser=file, denoiser_2=file)
    return replace(config, model=files, denoiser=replace(config.denoiser, expert="both"))


def text_encoder_bytes(config: TrainConfig, model: Architecture) -> float:
    quantized = _weight_bytes(config.model.text_encoder_quantization)
    connectors = model.connectors * BYTES_OF[config.model.weight_dtype]
    return connectors + held_bytes(config, quantized, sum(model.text_encoders), sum(model.quantizable_text))


def held_bytes(config: TrainConfig, quantized: float | None, count: int, quantizable: int) -> float:
    """Bytes of `count` weights, of which `quantizable` take `quantized` bytes each if that is not None."""
    own = BYTES_OF[config.model.weight_dtype]
    return count * own if quantized is None else (count - quantizable) * own + quantizable * quantized


def quantized_denoiser_bytes(config: TrainConfig, model: Architecture) -> float | None:
    """Bytes per weight of the denoiser's quantized layers; None if it has none.

    GGUF files may mix formats, so they follow from their sizes; the weights that are not quantized are in half
    precision.
    """
    files = config.model.denoiser_files(load_families()[config.family].denoisers).values()
    packed = [file for file in files if file.lower().endswith(".gguf")]
    if not packed:
        return _weight_bytes(config.model.denoiser_quantization)
    try:
        in_files = sum(os.path.getsize(os.path.expanduser(file)) for file in packed)
    except OSError:  # refused before a start
        return None
    unquantized = model.denoiser - model.quantizable_denoiser
    # a model with one such file among several is refused before a start
    return max(0.0, in_files * len(files) / len(packed) - 2 * unquantized) / model.quantizable_denoiser


def _weight_bytes(quantization: str) -> float | None:
    return None if quantization == "none" else QUANTIZATIONS[quantization].weight_bytes


def autocast_weights(config: TrainConfig, model: Architecture) -> int:
    """The number of loaded weights that autocast copies: all but the quantized ones."""
    if not facts_of(config).uses_denoiser:
        return model.vae
    copied = model.denoiser
    if quantized_denoiser_bytes(config, model) is not None:
        copied -= model.quantizable_denoiser
    if trained_text_encoders(config):
        copied += sum(model.text_encoders)
        if config.model.text_encoder_quantization != "none":
            copied -= sum(model.quantizable_text)
    return copied


def trained_weights(config: TrainConfig, model: Architecture) -> int:
    """The number of trained weights; an upper bound if only some layers train."""
    method = facts_of(config)
    if not method.uses_denoiser:
        return model.vae
    if method.trains_words and not method.trains_adapters:
        return 0  # a few thousand
    encoders = trained_text_encoders(config)
    if method.trains_adapters:
        lora = config.lora
        rank = lora.largest_rank
        factor = facts_of_adapter(lora).weights_of_lora
        texts = rank * sum(model.text_adapters[index] for index in encoders)
        denoiser = rank * model.adapter[lora.targets]
        if lora.targets == "linear_conv" and lora.conv_rank is not None:
            convolutions = model.adapter["linear_conv"] - model.adapter["linear"]
            denoiser += (lora.conv_rank - rank) * convolutions
        return factor * (texts + (round(denoiser * _trained_share(config)) if config.denoiser.train else 0))
    denoiser = round(model.denoiser * _trained_share(config)) if config.denoiser.train else 0
    return denoiser + sum(model.text_encoders[index] for index in encoders)


def trained_weight_bytes(config: TrainConfig) -> int:
    """The size of a trained weight. Adapters and embeddings are added to the model, in float32 at least."""
    own = BYTES_OF[config.model.weight_dtype]
    return own if facts_of(config).trains_weights else max(4, own)


def trained_text_encoders(config: TrainConfig) -> list[int]:
    """Indexes of the text encoders that train, from 0."""
    count = len(load_families()[config.family].text_encoders)
    method = facts_of(config)
    if method.trains_words:
        return list(range(count))
    if not method.trains_text(config):
        return []
    return [number - 1 for number in config.text_encoder.only if number <= count] or list(range(count))


def _trained_share(config: TrainConfig) -> float:
    """Of all denoisers, those that train: one of two experts is half of them."""
    family = load_families()[config.family]
    return 1 / len(family.denoisers) if family.experts and config.denoiser.expert != "both" else 1.0


def _loaded_share(config: TrainConfig) -> float:
    """Of all denoisers, those that are loaded: the other expert only for samples, or to be saved with the model."""
    facts = facts_of(config)
    trains_one = facts.trains_adapters and config.denoiser.train and not config.sampling.makes_samples
    return _trained_share(config) if trains_one else 1.0


def gradients_at_once(config: TrainConfig, model: Architecture, trained: float) -> float:
    """The number of `trained` weights that have a gradient at once: those of the largest matrix if the backward pass
    updates each of them."""
    if not (config.optimizer.fused_backward and facts_of(config).trains_weights):
        return trained
    return min(trained, _largest_matrix(config, model))


def state_at_once(config: TrainConfig, model: Architecture, trained: float) -> float:
    """The number of `trained` weights whose state is on the GPU at once, if it is in system memory."""
    largest = _largest_matrix(config, model) if facts_of(config).trains_weights else 0
    return min(trained, 2 * max(_STATE_WEIGHTS, largest))


def _largest_matrix(config: TrainConfig, model: Architecture) -> float:
    """The number of weights in the largest matrix that trains; of text encoders the vocabulary is the largest."""
    texts = [min(_VOCABULARY, model.text_encoders[index] / 2) for index in trained_text_encoders(config)]
    return max([model.matrix, *texts])


def state_bytes(config: TrainConfig, weight_bytes: int) -> float:
    """The optimizer's state per trained weight, in bytes. weight_bytes: size of a weight."""
    facts = facts_of_optimizer(config.optimizer)
    value_bytes = 4 if rounds_by_chance(config) else weight_bytes
    states: float = facts.states
    if facts.factors and facts_of(config).trains_weights:
        states = correction(config, FACTORED, otherwise=0.0)
    return states * value_bytes + facts.state_bytes


def rounds_by_chance(config: TrainConfig) -> bool:
    is_wanted = config.optimizer.stochastic_rounding and config.model.weight_dtype == "bfloat16"
    return is_wanted and facts_of(config).trains_weights
