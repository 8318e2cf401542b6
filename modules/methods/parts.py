"""Determines which components of a model train, from the settings."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from modules.config.counted import counted
from modules.config.errors import UserError
from modules.config.methods import facts_of

if TYPE_CHECKING:
    from modules.config.PartConfig import PartConfig
    from modules.config.TrainConfig import TrainConfig
    from modules.families.Family import Family
    from modules.methods.Method import Method
    from modules.weights.BaseModel import BaseModel
    from modules.weights.libraries import Model


def trained_parts(family: Family, config: TrainConfig, trainable: set[str]) -> dict[str, PartConfig]:
    """The denoisers and text encoders that the settings train, with their settings.

    trainable: the components that the method can train.
    Raises UserError if text_encoder.only names an encoder that the family lacks or the method can't train, or if
    there are settings of single encoders for more than it has.
    """
    encoders = family.text.encoders
    only = config.text_encoder.only if config.text_encoder.train else []
    for number in only:
        if number > len(encoders):
            raise UserError.at(
                "text_encoder.only",
                f"{number}: {family.label} has {len(encoders)} text encoder"
                f"{'s' if len(encoders) > 1 else ''}; use 1 to {len(encoders)}, or leave it empty.",
            )
        if encoders[number - 1] not in trainable:
            others = [str(other) for other, name in enumerate(encoders, start=1) if name in trainable]
            raise UserError.at(
                "text_encoder.only",
                f"{number}: method {config.method!r} can't train that encoder of {family.label}; use "
                f"{' or '.join(others)}.",
            )
    chosen = [encoders[number - 1] for number in only] or encoders
    denoisers = family.denoisers_of(config.denoiser.expert)
    parts = {name: getattr(config, part_path(family, name)) for name in (*denoisers, *encoders)}
    for setting, own in (("learning_rate", "learning_rates"), ("stop_after", "stops_after")):
        values = getattr(config.text_encoder, own) if config.text_encoder.train else []
        if len(values) > len(encoders):
            raise UserError.at(
                f"text_encoder.{own}",
                f"{', '.join(map(str, values))}: {family.label} has "
                f"{counted(len(encoders), 'text encoder')}; leave out what is too much.",
            )
        for name, value in zip(encoders, values, strict=False):
            parts[name] = replace(parts[name], **{setting: value})
    return {
        name: part
        for name, part in parts.items()
        if part.train and name in trainable and (name in family.denoisers or name in chosen)
    }


def part_path(family: Family, component: str) -> str:
    """The section of the settings that a component belongs to."""
    return "denoiser" if component in family.denoisers else "text_encoder"


def trained_in(method: Method, base: BaseModel, config: TrainConfig) -> dict[str, PartConfig]:
    """The trained components that this base model has: Stable Diffusion 3, for example, also comes without T5.

    Raises UserError if text_encoder.only names an encoder that this base model lacks.
    """
    parts = method.components(base.family, config)
    encoders = base.family.text.encoders
    # other methods choose their encoders themselves
    for number in config.text_encoder.only if config.text_encoder.train and facts_of(config).chooses_parts else ():
        if encoders[number - 1] not in base.component_names:
            raise UserError.at(
                "text_encoder.only",
                f"{number}: model.base {config.model.base!r} does not have this text encoder; remove "
                f"{number}, or choose a base model that has it.",
            )
    return {name: part for name, part in parts.items() if name in base.component_names}


def prepare_for_training(module: Model, gradient_checkpointing: bool) -> None:
    """Sets training mode and, if requested, gradient checkpointing."""
    from diffusers.models.modeling_utils import ModelMixin

    module.train()
    if gradient_checkpointing:
        # neither library may use reentrant autograd, which DistributedDataParallel does not support
        if isinstance(module, ModelMixin):
            module.enable_gradient_checkpointing()
        elif hasattr(module, "activation_checkpointing_enable"):
            module.activation_checkpointing_enable(activation_checkpointing_kwargs={"use_reentrant": False})
        else:  # older transformers, on Python 3.10
            module.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
