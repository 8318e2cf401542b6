"""Makes the samples of a run again after its end, with the model that it has saved."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from modules.config.clips import clip_fps
from modules.config.methods import facts_of
from modules.config.ModelConfig import ModelConfig
from modules.data.concepts import caption_prompts, captions
from modules.data.prepare import prepare_data
from modules.data.sample_images import settings_of_captions
from modules.distributed.Runtime import Runtime
from modules.families.registry import FAMILIES
from modules.families.sampling_package import check_sampling_package
from modules.sampling.generation import autocast_denoiser, with_prompts, with_sizes
from modules.sampling.SamplePrompts import SamplePrompts
from modules.sampling.SampleRound import SampleRound
from modules.session.out_of_memory import must_fit
from modules.session.RunFolder import is_word
from modules.session.TrainCommands import TrainCommands
from modules.trainer.attach_method import num_swapped_blocks
from modules.trainer.autocasting import autocast
from modules.weights.BaseModel import BaseModel
from modules.weights.embedding_files import add_embedding
from modules.weights.lora_files import load_lora

if TYPE_CHECKING:
    import torch

    from modules.config.SamplingConfig import SamplingConfig
    from modules.config.TrainConfig import TrainConfig
    from modules.session.TrainCallbacks import TrainCallbacks


def sample_model(
    config: TrainConfig,
    model: Sequence[Path],
    sampling: SamplingConfig,
    folder: Path,
    step: int,
    device: torch.device,
    callbacks: TrainCallbacks,
) -> None:
    """Makes the enabled samples of `sampling`, in the precision and with the quantization of the run.

    config: of the run. model: the files or folders that it has saved after `step` steps.
    Raises UserError if a file can't be loaded, or the captions for samples without a prompt can't be read.
    """
    facts = facts_of(config)
    family = FAMILIES[config.family].with_text_settings(config.model)
    has_own_weights = facts.trains_weights
    saved = as_saved(config.model, model[0]) if has_own_weights else config.model
    check_sampling_package(family.sampling_package, family.label)
    base = BaseModel(family, saved, device)
    base.num_swapped = num_swapped_blocks(config, device, 1)
    prompts = SamplePrompts(base)
    settings = with_sizes(with_captions(config, sampling), config)
    samples = SampleRound(settings, prompts, Runtime(device), callbacks, TrainCommands(), clip_fps(config))
    words = [path for path in model if facts.trains_words and is_word(path)]
    if facts.trains_words:
        base.require(*family.text_components)
        for path in words:
            add_embedding(base.pipe, path)
    elif facts.trains_adapters and facts.trains_text(config):
        base.require(*family.text_components)  # the LoRA is loaded into them, too
    else:
        with must_fit("the text encoders", "model.text_encoder_quantization"):
            samples.encode_prompts()
    with must_fit("the model", "model.denoiser_quantization"):
        base.require(*family.denoisers)
    for path in (path for path in model if facts.trains_adapters and path not in words):
        load_lora(base.pipe, path, callbacks.on_warning)
    for name in family.denoisers if base.num_swapped else ():
        base.swap_blocks(name)
    samples.make(folder, step, partial(_in_precision, base, config.model.mixed_precision))


def as_saved(model: ModelConfig, path: Path) -> ModelConfig:
    """The settings of the whole model that a run has saved, which has the parts that it was given in it."""
    return replace(model, base=str(path), vae="", denoiser="", denoiser_2="", text_encoders=[])


def with_captions(config: TrainConfig, sampling: SamplingConfig) -> SamplingConfig:
    """The samples, of which those without a prompt take captions and what belongs to them, as in a run."""
    if all(sample.prompt for sample in sampling.samples if sample.enabled):
        return sampling
    family = FAMILIES[config.family]
    dataset, _ = prepare_data(config, family)
    texts = captions(dataset)
    prompts = caption_prompts(texts, dataset.concepts, len(sampling.samples))
    return with_prompts(sampling, prompts, settings_of_captions(dataset, texts, family))


@contextmanager
def _in_precision(base: BaseModel, mixed_precision: str) -> Iterator[None]:
    """Inside, the denoisers predict in the run's mixed precision."""
    with ExitStack() as stack:
        for name in base.family.denoisers:
            cast = partial(autocast, base.device, mixed_precision)
            stack.enter_context(autocast_denoiser(base.module(name), cast))
        yield
