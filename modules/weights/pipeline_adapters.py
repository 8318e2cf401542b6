"""Adapters in pipelines and models, whether or not diffusers loads LoRAs into them.

Some of its pipelines have no loader, though most of their denoisers are models that take adapters. Into others, PEFT
puts them by itself: it needs nothing of a model but its layers.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from diffusers.pipelines.pipeline_utils import DiffusionPipeline
    from peft import PeftConfig

    from modules.weights.libraries import Model


def has_loader(pipeline: DiffusionPipeline | type[DiffusionPipeline]) -> bool:
    """Whether a pipeline, or a class of them, loads and saves LoRA files itself."""
    return hasattr(pipeline, "load_lora_weights")


def add_adapter(module: Model, config: PeftConfig, adapter: str) -> None:
    """Adds an adapter of PEFT to a model, of whose adapters only the new one is then active."""
    if hasattr(module, "add_adapter"):
        module.add_adapter(config, adapter_name=adapter)
        return
    from peft import inject_adapter_in_model
    from peft.tuners.tuners_utils import BaseTunerLayer

    plain: Any = module
    inject_adapter_in_model(config, plain, adapter_name=adapter)
    for layer in plain.modules():
        if isinstance(layer, BaseTunerLayer):
            layer.set_adapter(adapter)


def adapter_names(pipe: DiffusionPipeline) -> set[str]:
    """The names of the adapters that a pipeline's components have."""
    return {name for component in pipe.components.values() for name in getattr(component, "peft_config", ())}


def set_strengths(pipe: DiffusionPipeline, strengths: Mapping[str, float]) -> None:
    """Makes adapters active, each with its strength, and no others. strengths: name of the adapter -> factor."""
    names, factors = list(strengths), list(strengths.values())
    if has_loader(pipe):
        pipe.set_adapters(names, factors)
        return
    from diffusers.utils import set_weights_and_activate_adapters

    for component in pipe.components.values():
        if held := [name for name in names if name in getattr(component, "peft_config", ())]:
            set_weights_and_activate_adapters(component, held, [strengths[name] for name in held])
