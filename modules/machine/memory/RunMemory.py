"""What a run takes of a GPU's memory: weights and tensors of the family's published model, added up.

docs/presets.md explains the rule.
"""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING

from modules.config.adapters import facts_of_adapter
from modules.config.clips import frames_in_pass
from modules.config.families import load_families
from modules.config.image_sizes import largest_area
from modules.config.LoraConfig import TARGETS
from modules.config.methods import facts_of
from modules.config.optimizers import facts_of_optimizer
from modules.config.quantizations import QUANTIZATIONS
from modules.config.rules.conditions import rules_of
from modules.machine.architectures import FACTORED, Architecture, correction
from modules.machine.memory.SampleMemory import ALLOCATOR, SampleMemory, images_at_once
from modules.machine.memory.StepKind import StepKind
from modules.machine.published_layers import trained_share

if TYPE_CHECKING:
    from modules.config.families import FamilyInfo
    from modules.config.methods import MethodFacts
    from modules.config.TrainConfig import TrainConfig

VOCABULARY = 152_064 * 3584
"""The weights of the largest vocabulary of the text encoders, that of Qwen2.5-VL-7B."""
BYTES_OF = {"float64": 8, "float32": 4, "bfloat16": 2, "float16": 2}
ROUNDED_WEIGHTS = 2**26  # that stochastic rounding holds in float32 at a time, in about four copies
_STATE_WEIGHTS = 2**24  # whose optimizer state is on the GPU together, see trainer/HostState.py
_INPUTS_ON_GPU = 3  # blocks whose inputs are there in spite of offloading, see layers/ActivationOffload.py
_TEXT_LAYERS = 24  # of T5: without gradients, the activations of only one layer exist at a time
_VAE_WIDTH = 5 * 128  # values per pixel at the encoder's widest point
_ENCODED_PIXELS = 2**20  # encoded at once, or a single larger image; at most four, see data/LatentEncoder.py
_GATHERED = 0.2  # of the denoiser's weights under FSDP: up to two blocks and the gradients of one, see ShardedRuntime


@dataclass(frozen=True)
class RunMemory:
    """One question each, in bytes on one GPU unless it says otherwise.

    model: of the family's published model. num_ranks: over all machines.
    """

    config: TrainConfig
    model: Architecture
    num_ranks: int = 1

    @cached_property
    def method(self) -> MethodFacts:
        return facts_of(self.config)

    @cached_property
    def _family(self) -> FamilyInfo:
        return load_families()[self.config.family]

    @property
    def weight_bytes(self) -> int:
        """Of a weight of the model, if it is not quantized."""
        return BYTES_OF[self.config.model.weight_dtype]

    @property
    def is_mixed(self) -> bool:
        return self.config.model.mixed_precision != "no"

    # --- weights ------------------------------------------------------------------------------------------------------

    @property
    def weights(self) -> float:
        """Of the model and its adapters during the training, with what autocast and FSDP hold beside them."""
        weights = self._loaded
        if not self.method.trains_weights:  # adapters or embeddings are added to the model
            weights += self.num_trained * self.trained_weight_bytes
        if self.sharing_ranks > 1:
            gathered = _GATHERED * self.model.denoiser * (2 if self.is_mixed else self.weight_bytes)
            return weights / self.sharing_ranks + gathered
        if self.is_mixed and self.weight_bytes >= 4 and not self.frees_as_it_goes:
            weights += self._num_copied_by_autocast * 2
        return weights

    @property
    def sharing_ranks(self) -> int:
        return sharing_ranks(self.config, self.num_ranks)

    @property
    def sharing_state(self) -> int:
        """The number of ranks that share the optimizer's state, where they don't share the weights."""
        return self.num_ranks if self.sharing_ranks == 1 and self.config.ddp_shard_optimizer else 1

    @property
    def _loaded(self) -> float:
        """Of the model during the training; text encoders are unloaded if all captions are cached."""
        if not self.method.uses_denoiser:
            return self.model.vae * self.weight_bytes
        return self.denoiser + (self.text_encoders if self.trained_text_encoders else 0)

    @cached_property
    def denoiser(self) -> float:
        """The denoiser's weights: without the swapped blocks, but with room for two of them."""
        if self._loaded_share < 1:
            return self._loaded_share * self._with_both_experts.denoiser
        count, blocks = self._num_swapped, self.model.blocks
        if not count:
            return self.whole_denoiser
        slots = min(count, 2) * len(self._family.denoisers) * blocks.largest * self.swapped * blocks.count / count
        return self.whole_denoiser - self.swapped + min(slots / blocks.weights, self.swapped)

    @cached_property
    def whole_denoiser(self) -> float:
        """The weights of all denoisers, wherever they are."""
        return self._held(self._quantized_denoiser, self.model.denoiser, self.model.quantizable_denoiser)

    @cached_property
    def swapped(self) -> float:
        """The denoiser's weights in swapped blocks, in system memory; of all blocks if their number is open."""
        if self._loaded_share < 1:
            return self._loaded_share * self._with_both_experts.swapped
        blocks = self.model.blocks
        quantizable = min(self.model.quantizable_denoiser, blocks.weights)  # few others are outside of these blocks
        in_blocks = self._held(self._quantized_denoiser, blocks.weights, quantizable)
        return in_blocks * self._num_swapped / max(1, blocks.count)

    @property
    def _num_swapped(self) -> int:
        wanted = self.config.model.blocks_to_swap
        return self.model.blocks.count if wanted is None else min(wanted, self.model.blocks.count)

    @cached_property
    def _with_both_experts(self) -> RunMemory:
        """For a run that loads one of two: the run that loads two of its kind."""
        config = self.config
        file = config.model.denoiser if config.denoiser.expert == "high" else config.model.denoiser_2
        files = replace(config.model, denoiser=file, denoiser_2=file)
        return replace(self, config=replace(config, model=files, denoiser=replace(config.denoiser, expert="both")))

    @property
    def text_encoders(self) -> float:
        quantized = _quantized_bytes(self.config.model.text_encoder_quantization)
        connectors = self.model.connectors * self.weight_bytes
        return connectors + self._held(quantized, sum(self.model.text_encoders), sum(self.model.quantizable_text))

    def _held(self, quantized: float | None, count: int, quantizable: int) -> float:
        """Bytes of `count` weights, of which `quantizable` take `quantized` bytes each if that is not None."""
        if quantized is None:
            return count * self.weight_bytes
        return (count - quantizable) * self.weight_bytes + quantizable * quantized

    @cached_property
    def _quantized_denoiser(self) -> float | None:
        """Bytes per weight of the denoiser's quantized layers; None if it has none.

        GGUF files may mix formats, so they follow from their sizes; the weights that are not quantized are in half
        precision.
        """
        model = self.model
        files = self.config.model.denoiser_files(self._family.denoisers).values()
        packed = [file for file in files if file.lower().endswith(".gguf")]
        if not packed:
            return _quantized_bytes(self.config.model.denoiser_quantization)
        try:
            in_files = sum(os.path.getsize(os.path.expanduser(file)) for file in packed)
        except OSError:  # refused before a start
            return None
        unquantized = model.denoiser - model.quantizable_denoiser
        # a model with one such file among several is refused before a start
        return max(0.0, in_files * len(files) / len(packed) - 2 * unquantized) / model.quantizable_denoiser

    @property
    def _num_copied_by_autocast(self) -> int:
        """The number of loaded weights that autocast copies: all but the quantized ones."""
        if not self.method.uses_denoiser:
            return self.model.vae
        copied = self.model.denoiser
        if self._quantized_denoiser is not None:
            copied -= self.model.quantizable_denoiser
        if self.trained_text_encoders:
            copied += sum(self.model.text_encoders)
            if self.config.model.text_encoder_quantization != "none":
                copied -= sum(self.model.quantizable_text)
        return copied

    # --- what trains: gradients, optimizer, average -------------------------------------------------------------------

    @cached_property
    def num_trained(self) -> int:
        """The number of trained weights."""
        method, model, lora = self.method, self.model, self.config.lora
        if not method.uses_denoiser:
            return model.vae
        if method.trains_words and not method.trains_adapters:
            return 0  # a few thousand
        if not method.trains_adapters:
            return self._trained_of(model.denoiser, model.text_encoders)
        texts = [lora.rank * each for each in model.text_adapters]
        return facts_of_adapter(lora).weights_of_lora * self._trained_of(lora.rank * model.adapter[lora.targets], texts)

    def _trained_of(self, denoiser: int, text_encoders: Sequence[int]) -> int:
        """The number of weights that train of so many in all denoisers and in each text encoder."""
        config, names = self.config, self._family.text_encoders
        share = self._trained_share * trained_share(config, self._family.denoisers[0], config.denoiser)
        texts = (
            text_encoders[index] * trained_share(config, names[index], config.text_encoder)
            for index in self.trained_text_encoders
        )
        return round(sum(texts) + (denoiser * share if config.denoiser.train else 0))

    @property
    def trained_weight_bytes(self) -> int:
        """Of a trained weight. Adapters and embeddings are added to the model, in float32 at least."""
        return self.weight_bytes if self.method.trains_weights else max(4, self.weight_bytes)

    @cached_property
    def trained_text_encoders(self) -> list[int]:
        """Indexes of the text encoders that train, from 0."""
        count = len(self._family.text_encoders)
        if self.method.trains_words:
            return list(range(count))
        if not self.method.trains_text(self.config):
            return []
        return [number - 1 for number in self.config.text_encoder.only if number <= count] or list(range(count))

    @cached_property
    def _trained_share(self) -> float:
        """Of all denoisers, those that train: one of two experts is half of them."""
        one_of_several = self._family.experts and self.config.denoiser.expert != "both"
        return 1 / len(self._family.denoisers) if one_of_several else 1.0

    @cached_property
    def _loaded_share(self) -> float:
        """Of all denoisers, those that are loaded: the other expert only for samples, or to be saved with the model."""
        trains_one = self.method.trains_adapters and self.config.denoiser.train
        return self._trained_share if trains_one and not self.config.sampling.makes_samples else 1.0

    @property
    def held_trained(self) -> float:
        """The number of trained weights that one rank holds."""
        return self.num_trained / self.sharing_ranks

    @property
    def _num_gradients(self) -> float:
        """The number of weights that have a gradient at once: those of the largest matrix if the backward pass updates
        each of them."""
        return min(self.held_trained, self._largest_matrix) if self.steps_as_it_goes else self.held_trained

    @property
    def gradients(self) -> float:
        return self._num_gradients * self.trained_weight_bytes

    @property
    def _largest_matrix(self) -> float:
        """The number of weights in the largest matrix that trains; of text encoders the vocabulary is the largest."""
        texts = [min(VOCABULARY, self.model.text_encoders[index] / 2) for index in self.trained_text_encoders]
        return max([self.model.matrix, *texts])

    @cached_property
    def state_bytes(self) -> float:
        """The optimizer's state per trained weight."""
        facts = facts_of_optimizer(self.config.optimizer)
        value_bytes = 4 if self._uses_stochastic_rounding else self.trained_weight_bytes
        states: float = facts.states
        if facts.factors and self.method.trains_weights:
            states = correction(self.config, FACTORED, otherwise=0.0)
        return states * value_bytes + facts.state_bytes

    @property
    def optimizer(self) -> float:
        """The optimizer's state; of one in system memory, what is on the GPU at once."""
        whole = self.held_trained * self.state_bytes / self.sharing_state
        if not self.config.optimizer.state_in_ram:
            return whole
        largest = self._largest_matrix if self.method.trains_weights else 0
        at_once = min(self.num_trained, 2 * max(_STATE_WEIGHTS, largest))
        return min(whole, at_once * self.state_bytes)

    @property
    def average(self) -> float:
        return self.held_trained * max(4, self.trained_weight_bytes) if self.config.ema.enabled else 0

    @property
    def _uses_stochastic_rounding(self) -> bool:
        is_wanted = self.config.optimizer.stochastic_rounding and self.config.model.weight_dtype == "bfloat16"
        return is_wanted and self.method.trains_weights

    @property
    def stepping(self) -> float:
        """During the optimizer's step, without activations unless `steps_as_it_goes`."""
        stepped, each = self._num_gradients, self.trained_weight_bytes
        if self._uses_stochastic_rounding:
            # a fused backward pass steps each matrix by itself, however large it is
            working = 4 * 4 * (stepped if self.steps_as_it_goes else min(stepped, ROUNDED_WEIGHTS))
        else:
            working = 0 if facts_of_optimizer(self.config.optimizer).steps_in_place else stepped * each
        is_averaged = self.config.ema.enabled and each < 4
        averaging = 4 * min(self.held_trained, ROUNDED_WEIGHTS) if is_averaged else 0  # in float32
        return max(working, averaging)

    # --- activations --------------------------------------------------------------------------------------------------

    @property
    def frees_as_it_goes(self) -> bool:
        """Whether the backward pass frees activations and autocast's copies as it produces gradients, so that they
        never all exist at once: true for full fine-tuning without accumulation."""
        return self.method.trains_weights and self.config.gradient_accumulation_steps == 1

    @property
    def steps_as_it_goes(self) -> bool:
        """Whether a weight matrix is updated while the activations below it still exist."""
        return self.config.optimizer.fused_backward and self.method.trains_weights

    @cached_property
    def step_kind(self) -> StepKind:
        method = self.method
        return StepKind(
            "vae" if not method.uses_denoiser else "full" if method.trains_weights else "lora",
            self.config.lora.targets if method.trains_adapters else "",
            self.config.model.gradient_checkpointing,
            "fused" if self.steps_as_it_goes else "at once" if self.frees_as_it_goes else "",
            method.num_predictions,
        )

    @property
    def step_correction(self) -> float:
        """Of a kind that no preset has, that of the same step with or without accumulation, with adapters on other
        layers, on more of them if there is one, so that it is not too low; or of one prediction."""
        kind = self.step_kind
        if kind.frees == "fused":
            return correction(self.config, str(kind))
        other = replace(kind, frees="" if kind.frees else "at once")
        place = TARGETS.index(self.config.lora.targets)
        targets = (*TARGETS[place + 1 :], *reversed(TARGETS[:place])) if kind.targets else ()
        others = [kind, other, *(replace(kind, targets=each) for each in targets)]
        others += [replace(each, predictions=1) for each in others if each.predictions > 1]
        return correction(self.config, *map(str, others))

    @property
    def activations(self) -> float:
        """During forward and backward, with what a fused backward pass takes for its steps."""
        return self._activations * ALLOCATOR + (self.stepping if self.steps_as_it_goes else 0)

    @property
    def graphs(self) -> float:
        """What CUDA graphs keep for good: activations of the largest pass, and the gradients that they add up.

        Passes that are not captured take as much again while they run.
        """
        is_on = self.config.model.cuda_graphs == "on" and self.method.uses_denoiser
        return self.activations + self.gradients if is_on else 0.0

    @property
    def _activations(self) -> float:
        method, model, config = self.method, self.model, self.config
        kept = (model.full if method.trains_weights else model.lora) if method.uses_denoiser else model.vae_activations
        each = self._trained_pixels * (kept.part if config.model.gradient_checkpointing else kept.whole)
        each *= self._precision * self.step_correction
        staying = min(1.0, _INPUTS_ON_GPU / max(1, model.blocks.count))
        each -= (1 - staying) * self._offloaded_each
        if method.keeps_old_model:  # of all predictions that get gradients
            each *= method.num_predictions + config.loss.output_preservation + config.loss.blank_preservation
        chunks = config.model.text_chunks if self._family.takes_chunks else 1
        each += chunks * sum(model.text_bytes[index] for index in self.trained_text_encoders)
        return each * self._micro_batch + self._composed

    @property
    def offloaded(self) -> float:
        """The inputs of blocks that wait in system memory."""
        return self._offloaded_each * self._micro_batch

    @property
    def _offloaded_each(self) -> float:
        """`offloaded` of one sample."""
        is_on = self.config.model.activation_offloading and self.config.model.gradient_checkpointing
        if not is_on or not self.method.uses_denoiser:
            return 0.0
        return self._trained_pixels * self.model.block_inputs * self._precision

    @cached_property
    def _trained_pixels(self) -> float:
        """Of one sample."""
        pixels = largest_area(self.config) * self.latent_frames(self.config.data.frames) * images_at_once(self.config)
        return pixels + sum(rules.further_pixels(self.config) for rules in rules_of(self.config))

    @property
    def _precision(self) -> float:
        """How large activations are, relative to half precision."""
        is_whole = not self.is_mixed and self.config.model.weight_dtype == "float32"
        return 2.0 if is_whole and self.method.uses_denoiser else 1.0

    @property
    def _composed(self) -> float:
        """What adapters that compose it add to each weight, which is kept for the backward pass; of a LoRA, nothing."""
        lora = self.config.lora
        composes_weights = self.method.trains_adapters and facts_of_adapter(lora).composes_weights
        if not composes_weights or not self.config.denoiser.train:
            return 0.0
        weights = self.model.quantizable_denoiser * self.model.adapter[lora.targets] / self.model.adapter["linear"]
        if self.config.model.gradient_checkpointing:
            weights /= self.model.blocks.count  # those of one block at a time
        return weights * (2 if self.is_mixed else 4)

    def latent_frames(self, num_frames: int) -> int:
        """The latent frames of a clip, or of a section of it: the denoiser treats each of them as an image."""
        step = self._family.frames_per_token
        return (frames_in_pass(num_frames, self._family) - 1) // step + 1 if step else 1

    @property
    def _micro_batch(self) -> int:
        if self.config.batch_size_mode == "per_device":
            return self.config.batch_size
        return math.ceil(self.config.batch_size / (self.num_ranks * self.config.gradient_accumulation_steps))

    # --- before the training: caching ---------------------------------------------------------------------------------

    @property
    def caching(self) -> float:
        """Either all text encoders, or the VAE with the images that it encodes at once, whichever is larger."""
        is_cached = not self.trained_text_encoders
        text = self.text_encoders + max(self.model.text_bytes) / _TEXT_LAYERS if is_cached else 0
        if not self.method.uses_denoiser:  # of the samples' prompts; the VAE is loaded already
            return text + self.model.vae * self.weight_bytes if self.config.sampling.makes_samples else 0
        of_conditions = (facts.get("pixels", 0) for facts in self._family.conditions.values())
        largest = max([largest_area(self.config), *of_conditions])
        pixels = max(largest, min(4 * largest, _ENCODED_PIXELS))
        width: float = _VAE_WIDTH
        if self._has_clips:
            clip = self.model.clip
            pixels, width = largest, (clip["encoder"] + clip["encoder_frame"] * self.config.data.frames) / 4
        encoding = (self.model.vae + pixels * width * ALLOCATOR) * self.weight_bytes
        return self.caching_correction * max(text, encoding)

    @property
    def caching_kind(self) -> str:
        """The kind of what is encoded before the training, for `load_corrections`."""
        return self._kind_with_encoders(self.config.model.text_encoder_quantization)

    def _kind_with_encoders(self, quantization: str) -> str:
        """Quantized encoders are a kind of their own, because a language head, for one, is dequantized whole."""
        encoded = "clips" if self._has_clips else "images"
        return f"encoded {encoded}{'' if quantization == 'none' else f', encoders in {quantization}'}"

    @property
    def caching_correction(self) -> float:
        """Of a kind that no preset has, that of encoders in another quantization."""
        is_quantized = self.config.model.text_encoder_quantization != "none"
        others = QUANTIZATIONS if is_quantized else ()
        return correction(self.config, self.caching_kind, *(self._kind_with_encoders(each) for each in others))

    @property
    def _has_clips(self) -> bool:
        return self.latent_frames(self.config.data.frames) > 1

    @property
    def samples(self) -> SampleMemory:
        return SampleMemory(self)


def sharing_ranks(config: TrainConfig, num_ranks: int) -> int:
    """How many of the ranks share one copy of the model; one with the strategy auto, which depends on the GPUs.

    num_ranks: over all machines.
    """
    num_nodes = config.num_nodes if config.enable_multi_gpu else 1
    by_strategy = {"fsdp": num_ranks, "hsdp": config.sharding_group_size or max(1, num_ranks // num_nodes)}
    return by_strategy.get(config.distributed_strategy, 1)


def _quantized_bytes(quantization: str) -> float | None:
    """Of a quantized weight; None without quantization."""
    return None if quantization == "none" else QUANTIZATIONS[quantization].weight_bytes
