"""The part of the memory estimate that comes and goes: in a step, and while a run encodes and makes samples."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from modules.config.adapters import facts_of_adapter
from modules.config.clips import sample_frames
from modules.config.families import load_families
from modules.config.image_sizes import largest_area, sample_size
from modules.config.LoraConfig import TARGETS
from modules.config.methods import facts_of
from modules.config.optimizers import facts_of_optimizer
from modules.config.quantizations import QUANTIZATIONS
from modules.config.rules.conditions import rules_of
from modules.machine.architectures import Architecture, correction
from modules.machine.lasting_memory import (
    BYTES_OF,
    ROUNDED_WEIGHTS,
    denoiser_bytes,
    held_bytes,
    quantized_denoiser_bytes,
    rounds_by_chance,
    text_encoder_bytes,
    trained_text_encoders,
)

if TYPE_CHECKING:
    from modules.config.TrainConfig import TrainConfig

_INPUTS_ON_GPU = 3  # blocks whose inputs are there in spite of offloading, see weights/ActivationOffload.py
ALLOCATOR = 1.1
"""Fragmentation: activations of many sizes are allocated and freed."""
_TEXT_LAYERS = 24  # of T5: without gradients, the activations of only one layer exist at a time
_VAE_WIDTH = 5 * 128  # values per pixel at the encoder's widest point
_ENCODED_PIXELS = 2**20  # encoded at once, or a single larger image; at most four, see data/LatentEncoder.py
_DECODER_WIDTH = 256  # channels of the decoder at its widest point, which is at the image's full size
_DENOISER_WIDTH = 2 * 228  # values of the denoiser per image pixel at its widest point, doubled by guidance

_COUNTED_TARGETS = "attention"  # the layers with adapters in the counts of activations, see scripts/model_counts.py
_TRAINED_SIZE, _OTHER_SIZE = "samples", "samples of another size"
_AT_ONCE = " at once"  # ends the kind of a step without accumulation, see frees_as_it_goes
_FUSED = " fused"  # ends the kind of a step that uses up gradients as it goes


def frees_as_it_goes(config: TrainConfig) -> bool:
    """Whether activations, and the copies that autocast makes of weights, are freed while gradients come to be, so that
    not all of them exist at once: in a step without accumulation that trains the weights themselves."""
    return facts_of(config).trains_weights and config.gradient_accumulation_steps == 1


def steps_as_it_goes(config: TrainConfig) -> bool:
    """Whether a weight matrix is updated while the activations below it still exist."""
    return config.optimizer.fused_backward and facts_of(config).trains_weights


def backward_kind(config: TrainConfig) -> str:
    """The kind of a step, for `load_corrections`."""
    return _kind_with_adapters(config, config.lora.targets)


def _kind_with_adapters(config: TrainConfig, targets: str) -> str:
    """That of a step with adapters on these layers: each keeps its input for the backward pass."""
    method = facts_of(config)
    kind = "vae" if not method.uses_denoiser else "full" if method.trains_weights else "lora"
    adapters = f" on {targets}" if method.trains_adapters and targets != _COUNTED_TARGETS else ""
    checkpoints = " in parts" if config.model.gradient_checkpointing else ""
    fused = _FUSED if steps_as_it_goes(config) else ""
    return f"{kind}{adapters}{checkpoints}{fused or (_AT_ONCE if frees_as_it_goes(config) else '')}"


def backward_correction(config: TrainConfig) -> float:
    """Of a kind that no preset has, that of the same step with or without accumulation, or with adapters on other
    layers: on more of them, if there is one, so that it is not too low."""
    kind = backward_kind(config)
    if kind.endswith(_FUSED):
        return correction(config, kind)
    other = kind.removesuffix(_AT_ONCE) if kind.endswith(_AT_ONCE) else kind + _AT_ONCE
    place = TARGETS.index(config.lora.targets)
    targets = (*TARGETS[place + 1 :], *reversed(TARGETS[:place]))
    return correction(config, kind, other, *(_kind_with_adapters(config, each) for each in targets))


def activation_bytes(config: TrainConfig, model: Architecture, num_ranks: int) -> float:
    method = facts_of(config)
    kept = (model.full if method.trains_weights else model.lora) if method.uses_denoiser else model.vae_activations
    pixels, precision = _trained_pixels(config), _precision(config)
    each = pixels * (kept.part if config.model.gradient_checkpointing else kept.whole) * precision
    each *= backward_correction(config)
    staying = min(1.0, _INPUTS_ON_GPU / max(1, model.blocks.count))
    each -= (1 - staying) * _offloaded_each(config, model)
    if method.keeps_old_model and config.loss.output_preservation:
        each *= 2  # of both predictions that get gradients
    chunks = config.model.text_chunks if load_families()[config.family].takes_chunks else 1
    each += chunks * sum(model.text_bytes[index] for index in trained_text_encoders(config))
    return each * _micro_batch(config, num_ranks) + _composed_bytes(config, model)


def offloaded_bytes(config: TrainConfig, model: Architecture, num_ranks: int) -> float:
    """The inputs of blocks that wait in system memory. num_ranks: over all machines."""
    return _offloaded_each(config, model) * _micro_batch(config, num_ranks)


def _offloaded_each(config: TrainConfig, model: Architecture) -> float:
    """`offloaded_bytes` of one sample."""
    is_on = config.model.activation_offloading and config.model.gradient_checkpointing
    if not is_on or not facts_of(config).uses_denoiser:
        return 0.0
    return _trained_pixels(config) * model.block_inputs * _precision(config)


def _trained_pixels(config: TrainConfig) -> float:
    """Of one sample."""
    pixels = largest_area(config) * _latent_frames(config, config.data.frames) * images_at_once(config)
    return pixels + sum(rules.further_pixels(config) for rules in rules_of(config))


def _precision(config: TrainConfig) -> float:
    """How large activations are, relative to half precision."""
    is_whole = config.model.mixed_precision == "no" and config.model.weight_dtype == "float32"
    return 2.0 if is_whole and facts_of(config).uses_denoiser else 1.0


def _composed_bytes(config: TrainConfig, model: Architecture) -> float:
    """What adapters that compose it add to each weight, which is kept for the backward pass; of a LoRA, nothing."""
    composes_weights = facts_of(config).trains_adapters and facts_of_adapter(config.lora).composes_weights
    if not composes_weights or not config.denoiser.train:
        return 0.0
    weights = model.quantizable_denoiser * model.adapter[config.lora.targets] / model.adapter["linear"]
    if config.model.gradient_checkpointing:
        weights /= model.blocks.count  # those of one block at a time
    return weights * (2 if config.model.mixed_precision != "no" else 4)


def caching_kind(config: TrainConfig) -> str:
    """The kind of what is encoded before the training, for `load_corrections`."""
    return _kind_with_encoders(config, config.model.text_encoder_quantization)


def _kind_with_encoders(config: TrainConfig, quantization: str) -> str:
    """Quantized encoders are a kind of their own, because a language head, for one, is dequantized whole."""
    encoded = "clips" if _has_clips(config) else "images"
    return f"encoded {encoded}{'' if quantization == 'none' else f', encoders in {quantization}'}"


def caching_correction(config: TrainConfig) -> float:
    """Of a kind that no preset has, that of encoders in another quantization."""
    is_quantized = config.model.text_encoder_quantization != "none"
    others = QUANTIZATIONS if is_quantized else ()
    return correction(config, caching_kind(config), *(_kind_with_encoders(config, each) for each in others))


def _has_clips(config: TrainConfig) -> bool:
    return _latent_frames(config, config.data.frames) > 1


def _latent_frames(config: TrainConfig, num_frames: int) -> int:
    """The latent frames of a clip: the denoiser treats each of them as an image."""
    step = load_families()[config.family].frames_per_token
    return (num_frames - 1) // step + 1 if step else 1


def images_at_once(config: TrainConfig) -> int:
    """How many images the latents of a sample hold, beside the frames of a clip: an image and its layers, for one."""
    return math.prod(rules.images_at_once(config) for rules in rules_of(config))


def _micro_batch(config: TrainConfig, num_ranks: int) -> int:
    if config.batch_size_mode == "per_device":
        return config.batch_size
    return math.ceil(config.batch_size / (num_ranks * config.gradient_accumulation_steps))


def stepping_bytes(config: TrainConfig, stepped: float, trained: float, weight_bytes: int) -> float:
    """stepped: the number of weights that are updated at once."""
    if rounds_by_chance(config):
        # a fused backward pass steps each matrix by itself, however large it is
        working = 4 * 4 * (stepped if steps_as_it_goes(config) else min(stepped, ROUNDED_WEIGHTS))
    else:
        working = 0 if facts_of_optimizer(config.optimizer).steps_in_place else stepped * weight_bytes
    averaging = 4 * min(trained, ROUNDED_WEIGHTS) if config.ema.enabled and weight_bytes < 4 else 0  # in float32
    return max(working, averaging)


def caching_bytes(config: TrainConfig, model: Architecture) -> float:
    """Either all text encoders, or the VAE with the images that it encodes at once, whichever is larger."""
    own = BYTES_OF[config.model.weight_dtype]
    is_cached = not trained_text_encoders(config)
    text = text_encoder_bytes(config, model) + max(model.text_bytes) / _TEXT_LAYERS if is_cached else 0
    if not facts_of(config).uses_denoiser:  # of the samples' prompts; the VAE is loaded already
        return text + model.vae * own if config.sampling.makes_samples else 0
    of_conditions = (facts.get("pixels", 0) for facts in load_families()[config.family].conditions.values())
    largest = max([largest_area(config), *of_conditions])
    pixels = max(largest, min(4 * largest, _ENCODED_PIXELS))
    width: float = _VAE_WIDTH
    if _has_clips(config):
        pixels, width = largest, (model.clip["encoder"] + model.clip["encoder_frame"] * config.data.frames) / 4
    return caching_correction(config) * max(text, (model.vae + pixels * width * ALLOCATOR) * own)


def sampling_kind(config: TrainConfig) -> str:
    """The kind of the samples, for `load_corrections`."""
    is_own = any(sample.enabled and (sample.width or sample.height) for sample in config.sampling.samples)
    return _OTHER_SIZE if is_own else _TRAINED_SIZE


def sampling_correction(config: TrainConfig) -> float:
    """Of a kind that no preset has, that of samples of another size."""
    kind = sampling_kind(config)
    other = _TRAINED_SIZE if kind == _OTHER_SIZE else _OTHER_SIZE
    return correction(config, kind, other)


def sampling_bytes(config: TrainConfig, model: Architecture, num_ranks: int) -> float:
    """Additional memory for sampling, in bytes; 0 if the run makes no samples.

    Prompts are encoded before the training, and the VAE is loaded while it decodes. So it is the larger of two: the
    activations of the denoiser for one batch of images, at least 456 bytes per pixel in half precision, doubled by
    guidance; or the VAE with those of its decoder for the image being decoded. At full size that has 256 channels going
    into a norm, 256 coming out of it and 256 out of the activation behind it: in float32 3 x 256 x 4 = 3,072 bytes per
    pixel, more in video models. Mixed precision applies to the denoiser only. Source: scripts/model_counts.py.
    """
    settings = config.sampling
    if not settings.makes_samples:
        return 0
    samples = [sample for sample in settings.samples if sample.enabled]
    own = BYTES_OF[config.model.weight_dtype]
    trains_denoiser = facts_of(config).uses_denoiser
    absent = 0 if trains_denoiser else denoiser_bytes(config, model)
    quantized = quantized_denoiser_bytes(config, model)
    absent += model.guidance_denoisers * held_bytes(config, quantized, model.denoiser, model.quantizable_denoiser)
    vae = model.vae * own if trains_denoiser else 0
    pictures = min(settings.batch_size, math.ceil(sum(sample.count for sample in samples) / num_ranks))
    sizes = [math.prod(sample_size(sample, config.data)) for sample in samples]
    frames = [sample_frames(sample, config) for sample in samples]
    pixels = max(sizes)
    # SDXL's pipeline decodes in float32 if the weights are float16, in which its VAE overflows
    value_bytes = 4 if config.model.weight_dtype == "float16" else own
    decoding = pixels * max(_DECODER_WIDTH * 3, model.held["vae"] / 4) * value_bytes
    if max(frames) > 1:
        decoding = max(
            size * (model.clip["decoder"] + model.clip["decoder_frame"] * count) / 4 * value_bytes
            for size, count in zip(sizes, frames, strict=True)
        )
        pixels = max(size * _latent_frames(config, count) for size, count in zip(sizes, frames, strict=True))
    pixels *= images_at_once(config)
    denoiser_value_bytes = own if config.model.mixed_precision == "no" else 2
    # counted in half precision for one of the two passes that guidance needs
    denoising = pictures * pixels * max(_DENOISER_WIDTH, model.held["denoiser"]) * denoiser_value_bytes
    passing = absent + max(denoising * ALLOCATOR, vae + decoding * ALLOCATOR)
    return passing * sampling_correction(config)
