"""Estimate the GPU memory of a run from its settings alone, by adding up weights and tensors of the published models.

The numbers come from resources/families.json; docs/presets.md explains the rule.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any

from modules.config.clips import sample_frames
from modules.config.families import load_families
from modules.config.image_sizes import largest_area, sample_size
from modules.config.installation import ROOT
from modules.config.methods import facts_of
from modules.config.optimizers import facts_of_optimizer
from modules.config.quantizations import QUANTIZATIONS

if TYPE_CHECKING:
    from modules.config.TrainConfig import TrainConfig

GIB = 2**30
BYTES_OF = {"float64": 8, "float32": 4, "bfloat16": 2, "float16": 2}
SYSTEM_BYTES = GIB
"""Of each GPU, left to its display and other programs: what a preset for a class of memory may not count on."""
_LARGEST_SHARE = 0.95  # of a large GPU, that a preset may count on

_ROUNDED_WEIGHTS = 2**26  # that stochastic rounding holds in float32 at a time, in about four copies

_STATE_WEIGHTS = 2**24  # whose optimizer state is on the GPU together, see trainer/HostState.py
_VOCABULARY = 152_064 * 3584  # of Qwen2.5-VL-7B, the largest vocabulary of the text encoders

_INPUTS_ON_GPU = 3  # blocks whose inputs are there in spite of offloading, see weights/ActivationOffload.py

_GATHERED = 0.2  # of the denoiser's weights under FSDP: up to two blocks and the gradients of one, see ShardedRuntime

ALLOCATOR = 1.1
"""Fragmentation: activations of many sizes are allocated and freed."""
CUDA_BYTES = GIB // 2
"""Kernels and workspaces of torch and cuDNN in a process."""
_NCCL_BYTES = 0.25 * GIB  # its buffers between ranks
_LIBRARY_BYTES = 0.4 * GIB  # system memory of a process: 0.33 after importing torch and diffusers, 0.47 in the demo
_TEXT_LAYERS = 24  # of T5: without gradients, the activations of only one layer exist at a time
_VAE_WIDTH = 5 * 128  # values per pixel at the encoder's widest point
_ENCODED_PIXELS = 2**20  # encoded at once, or a single larger image; at most four, see data/LatentEncoder.py
_DECODER_WIDTH = 256  # channels of the decoder at its widest point, which is at the image's full size
_DENOISER_WIDTH = 2 * 228  # values of the denoiser per image pixel at its widest point, doubled by guidance


@dataclass(frozen=True)
class Activations:
    """Activations kept for the backward pass, in bytes per image pixel. part: with gradient checkpointing."""

    whole: float
    part: float


@dataclass(frozen=True)
class Blocks:
    """The blocks of a denoiser that can be swapped: their number, and the weights of all (in all denoisers) and of the
    largest one."""

    count: int
    weights: int
    largest: int


@dataclass(frozen=True)
class Architecture:
    """The size of a family's published model, as counted by `scripts/model_counts.py`.

    denoiser, text_encoders, connectors, vae: numbers of weights. quantizable_denoiser, quantizable_text: of those, the
    weights that quantization applies to. adapter: of a rank-1 LoRA, by `lora.targets`.
    text_adapters: the same for each text encoder's attention, 0 if it can't be adapted.
    lora, full: activations of the denoiser in mixed precision. vae_activations: in float32.
    held: bytes per pixel during sampling, by the "denoiser" in mixed precision and by the "vae" in float32.
    text_bytes: activations of each text encoder per caption.
    block_inputs: activations that checkpointing keeps for the sake of blocks alone, as "part" of `lora`.
    guidance_denoisers: how many further networks of the denoiser's size sampling needs.
    clip: bytes per pixel of a frame that "encoder" and "decoder" of a VAE of videos hold for a clip, in float32, and
        those that each of its frames adds ("encoder_frame", "decoder_frame").
    """

    denoiser: int
    quantizable_denoiser: int
    text_encoders: Sequence[int]
    quantizable_text: Sequence[int]
    adapter: Mapping[str, int]
    text_adapters: Sequence[int]
    lora: Activations
    full: Activations
    text_bytes: Sequence[int]
    vae: int
    vae_activations: Activations
    held: Mapping[str, int]
    blocks: Blocks
    block_inputs: int = 0
    clip: Mapping[str, int] = field(default_factory=dict)
    connectors: int = 0
    guidance_denoisers: int = 0


def _architecture(counted: Mapping[str, Any]) -> Architecture:
    figures = {name: value for name, value in counted.items() if name != "counted_from"}
    for each in fields(Architecture):
        if each.type == "Activations":
            figures[each.name] = Activations(**figures[each.name])
    figures["blocks"] = Blocks(**figures["blocks"])
    return Architecture(**figures)


ARCHITECTURES = {name: _architecture(info.memory) for name, info in load_families().items() if info.memory}
"""By family; those that are not in it are of unknown size."""


SIMULATED_FILE = ROOT / "resources" / "preset_memory.json"
CORRECTIONS: dict[str, dict[str, float]] = json.loads(SIMULATED_FILE.read_text(encoding="utf-8"))["corrections"]
"""Family -> what the simulation of its presets (scripts/memory.py) found to differ from the counts: by `backward_kind`,
the peak of a step over the activations kept for the backward pass; and FACTORED."""
FACTORED = "factored state"  # values per trained weight of an optimizer that factors matrices, but not kernels


@dataclass(frozen=True)
class MemoryEstimate:
    """Bytes on one GPU.

    weights, gradients, optimizer, average: held throughout the training. activations: held during forward and backward.
    stepping: held during the optimizer step, when there are no activations. caching: the total while images and
    captions are encoded before the training. sampling: the total while samples are made, 0 without sampling.
    process: used by torch itself.
    """

    weights: float
    gradients: float
    optimizer: float
    average: float
    activations: float
    stepping: float
    caching: float
    sampling: float
    process: float

    @property
    def training(self) -> float:
        lasting = self.weights + self.gradients + self.optimizer + self.average
        return lasting + max(self.activations, self.stepping) + self.process

    @property
    def peak(self) -> float:
        return max(self.training, self.caching, self.sampling)


def estimate_memory(config: TrainConfig, num_ranks: int | None = None) -> MemoryEstimate | None:
    """The estimate; None for a family of unknown size. num_ranks: over all machines; None: as set, or one."""
    model = ARCHITECTURES.get(config.family)
    if model is None:
        return None
    ranks = num_ranks or _named_ranks(config)
    trained = _trained_weights(config, model)
    is_small = not facts_of(config).trains_weights  # adapters or embeddings are added to the model, in float32 at least
    own = BYTES_OF[config.model.weight_dtype]
    trained_bytes = max(4, own) if is_small else own
    weights = _loaded_bytes(config, model) + (trained * trained_bytes if is_small else 0)
    is_mixed = config.model.mixed_precision != "no"
    num_sharing = sharing_ranks(config, ranks)
    if num_sharing > 1:
        weights = weights / num_sharing + _GATHERED * model.denoiser * (2 if is_mixed else own)
    elif is_mixed and own >= 4 and not frees_as_it_goes(config):
        weights += _autocast_weights(config, model) * 2
    held = trained / num_sharing  # by one rank
    process = CUDA_BYTES + (_NCCL_BYTES if ranks > 1 else 0)
    optimizer = held * _optimizer_bytes(config, trained_bytes)
    if num_sharing == 1 and config.ddp_shard_optimizer:
        optimizer /= ranks
    if config.optimizer.state_in_ram:
        optimizer = min(optimizer, _state_at_once(config, model, trained) * _optimizer_bytes(config, trained_bytes))
    average = held * max(4, trained_bytes) if config.ema.enabled else 0
    sampling = _sampling(config, model, ranks)
    if sampling:  # the gradients are freed by then
        sampling += weights + optimizer + average + process
        if config.ema.enabled and config.ema.sample and (trained_bytes < 4 or num_sharing > 1):
            sampling += held * trained_bytes  # the EMA in the weights' precision, or the shards that it replaces
    return MemoryEstimate(
        weights=weights,
        gradients=_gradients_at_once(config, model, held) * trained_bytes,
        optimizer=optimizer,
        average=average,
        activations=_activations(config, model, ranks) * ALLOCATOR,
        stepping=_stepping(config, _gradients_at_once(config, model, held), held, trained_bytes),
        caching=_caching(config, model) + process,
        sampling=sampling,
        process=process,
    )


def room_for_presets(memory: int) -> float:
    """The bytes that a preset for GPUs with `memory` GB may need."""
    return min(memory * GIB - SYSTEM_BYTES, _LARGEST_SHARE * memory * GIB)


def frees_as_it_goes(config: TrainConfig) -> bool:
    """Whether activations, and the copies that autocast makes of weights, are freed while gradients come to be, so that
    not all of them exist at once: in a step without accumulation that trains the weights themselves."""
    return facts_of(config).trains_weights and config.gradient_accumulation_steps == 1


def backward_kind(config: TrainConfig) -> str:
    """The kind of a step, for `Architecture.backward`."""
    method = facts_of(config)
    kind = "vae" if not method.uses_denoiser else "full" if method.trains_weights else "lora"
    checkpoints = " in parts" if config.model.gradient_checkpointing else ""
    return f"{kind}{checkpoints}{' at once' if frees_as_it_goes(config) else ''}"


def sharing_ranks(config: TrainConfig, num_ranks: int) -> int:
    """How many of the ranks share one copy of the model; one with the strategy auto, which depends on the GPUs.

    num_ranks: over all machines.
    """
    num_nodes = config.num_nodes if config.enable_multi_gpu else 1
    by_strategy = {"fsdp": num_ranks, "hsdp": config.sharding_group_size or max(1, num_ranks // num_nodes)}
    return by_strategy.get(config.distributed_strategy, 1)


def blocks_to_swap(config: TrainConfig, available_bytes: float, num_ranks: int) -> int:
    """The smallest number of swapped blocks with which the run fits in the memory of a GPU; all of them if none does.

    num_ranks: over all machines. A family of unknown size swaps none.
    """
    model = ARCHITECTURES.get(config.family)
    if model is None:
        return 0
    for count in range(model.blocks.count):
        estimate = estimate_memory(replace(config, model=replace(config.model, blocks_to_swap=count)), num_ranks)
        assert estimate is not None  # None only for families of unknown size
        if estimate.peak <= available_bytes:
            return count
    return model.blocks.count


def needed_bytes(config: TrainConfig, num_ranks: int | None = None, base_bytes: int | None = None) -> float | None:
    """The estimated memory on each device, scaled down for a base that is smaller than its family's model. None for a
    family of unknown size. base_bytes: size of the base's files; None: unknown."""
    estimate = estimate_memory(config, num_ranks)
    if estimate is None:
        return None
    typical = load_families()[config.family].typical_bytes
    # a model saved in half precision is twice as large in float32
    return estimate.peak * (min(1.0, 2 * base_bytes / typical) if base_bytes else 1.0)


def least_rank_bytes(config: TrainConfig, base_bytes: int | None = None) -> float:
    """A lower bound of the system memory that a rank needs, in bytes; actual use may be several times higher.

    It covers the libraries and, on the CPU, the trained weights with gradients and optimizer state. Frozen weights
    don't count: all ranks map the same file.
    base_bytes: size of the base's files if the rank trains on the CPU; a base that is smaller than the published model,
    or in half precision, counts in proportion. None: on a GPU, or unknown. A family of unknown size counts libraries
    only.
    """
    model = ARCHITECTURES.get(config.family)
    if not base_bytes or model is None:
        return _LIBRARY_BYTES
    published_bytes = 4 * (model.denoiser + sum(model.text_encoders) + model.vae)
    share = min(1.0, base_bytes / published_bytes)
    memory = estimate_memory(config)
    assert memory is not None  # None only for families of unknown size
    whole = estimate_memory(replace(config, optimizer=replace(config.optimizer, fused_backward=False)))
    assert whole is not None  # as above
    weights = whole.gradients  # same number and dtype
    return _LIBRARY_BYTES + share * (weights + memory.gradients + memory.optimizer)


def _correction(config: TrainConfig, kind: str, otherwise: float) -> float:
    return CORRECTIONS.get(config.family, {}).get(kind, otherwise)


def _optimizer_bytes(config: TrainConfig, weight_bytes: int) -> float:
    """The optimizer's state per trained weight, in bytes. weight_bytes: size of a weight."""
    facts = facts_of_optimizer(config.optimizer)
    value_bytes = 4 if _rounds_by_chance(config) else weight_bytes
    states = _correction(config, FACTORED, 0.0) if facts.factors and facts_of(config).trains_weights else facts.states
    return states * value_bytes + facts.state_bytes


def _trained_text_encoders(config: TrainConfig) -> list[int]:
    """Indexes of the text encoders that train, from 0."""
    count = len(load_families()[config.family].text_encoders)
    method = facts_of(config)
    if method.trains_words:
        return list(range(count))
    if not method.trains_text(config):
        return []
    return [number - 1 for number in config.text_encoder.only if number <= count] or list(range(count))


def _trained_weights(config: TrainConfig, model: Architecture) -> int:
    """The number of trained weights; an upper bound if only some layers train."""
    method = facts_of(config)
    if not method.uses_denoiser:
        return model.vae
    if method.trains_words and not method.trains_adapters:
        return 0  # a few thousand
    encoders = _trained_text_encoders(config)
    if method.trains_adapters:
        lora = config.lora
        rank = lora.largest_rank
        factor = 2 if lora.adapter == "loha" else 1  # two products; a LoKr is smaller than a LoRA
        texts = rank * sum(model.text_adapters[index] for index in encoders)
        denoiser = rank * model.adapter[lora.targets]
        if lora.targets == "linear_conv" and lora.conv_rank is not None:
            convolutions = model.adapter["linear_conv"] - model.adapter["linear"]
            denoiser += (lora.conv_rank - rank) * convolutions
        return factor * (texts + (round(denoiser * _trained_share(config)) if config.denoiser.train else 0))
    denoiser = round(model.denoiser * _trained_share(config)) if config.denoiser.train else 0
    return denoiser + sum(model.text_encoders[index] for index in encoders)


def _trained_share(config: TrainConfig) -> float:
    """Of all denoisers, those that train: one of two experts is half of them."""
    family = load_families()[config.family]
    return 1 / len(family.denoisers) if family.experts and config.denoiser.expert != "both" else 1.0


def _loaded_share(config: TrainConfig) -> float:
    """Of all denoisers, those that are loaded: the other expert only for samples, or to be saved with the model."""
    facts = facts_of(config)
    trains_one = facts.trains_adapters and config.denoiser.train and not config.sampling.makes_samples
    return _trained_share(config) if trains_one else 1.0


def _loaded_bytes(config: TrainConfig, model: Architecture) -> float:
    """The weights on the GPU during training; text encoders are unloaded if all captions are cached."""
    if not facts_of(config).uses_denoiser:
        return model.vae * BYTES_OF[config.model.weight_dtype]
    return _denoiser_bytes(config, model) + (_text_bytes(config, model) if _trained_text_encoders(config) else 0)


def _denoiser_bytes(config: TrainConfig, model: Architecture) -> float:
    """The denoiser's weights on the GPU: without the swapped blocks, but with room for two of them."""
    quantization, blocks = config.model.denoiser_quantization, model.blocks
    share = _loaded_share(config)
    if share < 1:
        return share * _denoiser_bytes(replace(config, denoiser=replace(config.denoiser, expert="both")), model)
    whole = _held_bytes(config, quantization, model.denoiser, model.quantizable_denoiser)
    swapped = blocks.count if config.model.blocks_to_swap is None else min(config.model.blocks_to_swap, blocks.count)
    if not swapped:
        return whole
    quantizable = min(model.quantizable_denoiser, blocks.weights)  # few others are outside of these blocks
    in_blocks = _held_bytes(config, quantization, blocks.weights, quantizable)
    num_denoisers = len(load_families()[config.family].denoisers)
    slots = min(swapped, 2) * num_denoisers * blocks.largest * in_blocks / blocks.weights
    return whole - in_blocks * swapped / blocks.count + min(slots, in_blocks * swapped / blocks.count)


def _text_bytes(config: TrainConfig, model: Architecture) -> float:
    quantization = config.model.text_encoder_quantization
    connectors = model.connectors * BYTES_OF[config.model.weight_dtype]
    return connectors + _held_bytes(config, quantization, sum(model.text_encoders), sum(model.quantizable_text))


def _held_bytes(config: TrainConfig, quantization: str, count: int, quantizable: int) -> float:
    """Bytes of `count` weights, of which `quantizable` are held in the format `quantization`, if it is not "none"."""
    own = BYTES_OF[config.model.weight_dtype]
    if quantization == "none":
        return count * own
    return (count - quantizable) * own + quantizable * QUANTIZATIONS[quantization].weight_bytes


def _autocast_weights(config: TrainConfig, model: Architecture) -> int:
    """The number of loaded weights that autocast copies: all but the quantized ones."""
    if not facts_of(config).uses_denoiser:
        return model.vae
    copied = model.denoiser
    if config.model.denoiser_quantization != "none":
        copied -= model.quantizable_denoiser
    if _trained_text_encoders(config):
        copied += sum(model.text_encoders)
        if config.model.text_encoder_quantization != "none":
            copied -= sum(model.quantizable_text)
    return copied


def _activations(config: TrainConfig, model: Architecture, num_ranks: int) -> float:
    method = facts_of(config)
    kept = (model.full if method.trains_weights else model.lora) if method.uses_denoiser else model.vae_activations
    precision = 1.0
    if method.uses_denoiser and config.model.mixed_precision == "no" and config.model.weight_dtype == "float32":
        precision = 2.0
    pixels = (largest_area(config) + _reference_pixels(config)) * _latent_frames(config, config.data.frames)
    each = pixels * (kept.part if config.model.gradient_checkpointing else kept.whole) * precision
    each *= _correction(config, backward_kind(config), 1.0)
    if config.model.activation_offloading and config.model.gradient_checkpointing and method.uses_denoiser:
        staying = min(1.0, _INPUTS_ON_GPU / max(1, model.blocks.count))
        each -= pixels * model.block_inputs * (1 - staying) * precision
    if method.keeps_old_model and config.loss.output_preservation:
        each *= 2  # of both predictions that get gradients
    chunks = config.model.text_chunks if load_families()[config.family].takes_chunks else 1
    each += chunks * sum(model.text_bytes[index] for index in _trained_text_encoders(config))
    return each * _micro_batch(config, num_ranks) + _composed_bytes(config, model)


def _composed_bytes(config: TrainConfig, model: Architecture) -> float:
    """What a LoHa or LoKr adds to each weight, which is kept for the backward pass; of a LoRA, nothing."""
    if not facts_of(config).trains_adapters or not config.lora.composes_weights or not config.denoiser.train:
        return 0.0
    weights = model.quantizable_denoiser * model.adapter[config.lora.targets] / model.adapter["linear"]
    if config.model.gradient_checkpointing:
        weights /= model.blocks.count  # those of one block at a time
    return weights * (2 if config.model.mixed_precision != "no" else 4)


def _latent_frames(config: TrainConfig, num_frames: int) -> int:
    """The latent frames of a clip: the denoiser treats each of them as an image."""
    step = load_families()[config.family].frame_step
    return (num_frames - 1) // step + 1 if step else 1


def _reference_pixels(config: TrainConfig) -> int:
    """The area of an image's reference, if it has one; a model that takes just one, or needs one, is made for it."""
    family = load_families()[config.family]
    has_folder = any(concept.enabled and concept.reference_folder for concept in config.concepts)
    if family.max_references == 1 or family.needs_references or (family.max_references > 1 and has_folder):
        return family.reference_pixels or largest_area(config)
    return 0


def _micro_batch(config: TrainConfig, num_ranks: int) -> int:
    if config.batch_size_mode == "per_device":
        return config.batch_size
    return math.ceil(config.batch_size / (num_ranks * config.gradient_accumulation_steps))


def _named_ranks(config: TrainConfig) -> int:
    if not config.enable_multi_gpu:
        return 1
    return (config.world_size or len(config.device_indexes) or 1) * config.num_nodes


def _gradients_at_once(config: TrainConfig, model: Architecture, trained: float) -> float:
    """The number of `trained` weights that have a gradient at once: those of the largest matrix if the backward pass
    updates each of them."""
    if not (config.optimizer.fused_backward and facts_of(config).trains_weights):
        return trained
    return min(trained, _largest_matrix(config, model))


def _state_at_once(config: TrainConfig, model: Architecture, trained: float) -> float:
    """The number of `trained` weights whose state is on the GPU at once, if it is in system memory."""
    largest = _largest_matrix(config, model) if facts_of(config).trains_weights else 0
    return min(trained, 2 * max(_STATE_WEIGHTS, largest))


def _largest_matrix(config: TrainConfig, model: Architecture) -> float:
    """An upper bound of the number of weights in a matrix that trains: a block of the denoiser is larger than any, and
    of text encoders the vocabulary is the largest."""
    texts = [min(_VOCABULARY, model.text_encoders[index] / 2) for index in _trained_text_encoders(config)]
    return max([model.blocks.largest, *texts])


def _stepping(config: TrainConfig, stepped: float, trained: float, weight_bytes: int) -> float:
    """stepped: the number of weights that are updated at once."""
    if _rounds_by_chance(config):
        working = 4 * 4 * min(stepped, _ROUNDED_WEIGHTS)
    else:
        working = 0 if facts_of_optimizer(config.optimizer).steps_in_place else stepped * weight_bytes
    averaging = 4 * min(trained, _ROUNDED_WEIGHTS) if config.ema.enabled and weight_bytes < 4 else 0  # in float32
    return max(working, averaging)


def _caching(config: TrainConfig, model: Architecture) -> float:
    """Either all text encoders, or the VAE with the images that it encodes at once, whichever is larger."""
    own = BYTES_OF[config.model.weight_dtype]
    is_cached = not _trained_text_encoders(config)
    text = _text_bytes(config, model) + max(model.text_bytes) / _TEXT_LAYERS if is_cached else 0
    if not facts_of(config).uses_denoiser:  # of the samples' prompts; the VAE is loaded already
        return text + model.vae * own if config.sampling.makes_samples else 0
    largest = max(largest_area(config), load_families()[config.family].reference_pixels)
    pixels = max(largest, min(4 * largest, _ENCODED_PIXELS))
    width: float = _VAE_WIDTH
    if _latent_frames(config, config.data.frames) > 1:
        pixels, width = largest, (model.clip["encoder"] + model.clip["encoder_frame"] * config.data.frames) / 4
    return max(text, (model.vae + pixels * width * ALLOCATOR) * own)


def _sampling(config: TrainConfig, model: Architecture, num_ranks: int) -> float:
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
    absent = 0 if trains_denoiser else _denoiser_bytes(config, model)
    quantization = config.model.denoiser_quantization
    absent += model.guidance_denoisers * _held_bytes(config, quantization, model.denoiser, model.quantizable_denoiser)
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
    denoiser_bytes = own if config.model.mixed_precision == "no" else 2
    # counted in half precision for one of the two passes that guidance needs
    denoising = pictures * pixels * max(_DENOISER_WIDTH, model.held["denoiser"]) * denoiser_bytes
    return absent + max(denoising * ALLOCATOR, vae + decoding * ALLOCATOR)


def _rounds_by_chance(config: TrainConfig) -> bool:
    is_wanted = config.optimizer.stochastic_rounding and config.model.weight_dtype == "bfloat16"
    return is_wanted and facts_of(config).trains_weights
