"""Gives a base model what its method trains: the checks, the components to load, swapped blocks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING

import torch

from modules.config.counted import counted
from modules.config.errors import ConfigError
from modules.data.draws import torch_seed
from modules.families.prediction import check_offset_noise, check_prediction
from modules.layers.dequantize import unfused_reasons
from modules.layers.device_memory import free_bytes
from modules.layers.quantized_matmul import SIDE_STEP
from modules.layers.QuantizedLinear import QuantizedLinear
from modules.layers.rotary import fuse_rotary
from modules.layers.unit_divisors import leave_out_divisions
from modules.machine.machine_memory import ram_bytes
from modules.machine.memory_estimate import GIB, blocks_to_swap
from modules.machine.system_memory import room_in_ram
from modules.methods.layers import check_layers
from modules.methods.parts import trained_in
from modules.methods.registry import METHODS
from modules.session.out_of_memory import must_fit
from modules.trainer.autocasting import AUTOCAST
from modules.trainer.checks import check_trained_parts
from modules.trainer.optimizers import make_layout_compatible
from modules.weights.BaseModel import BaseModel
from modules.weights.training_adapter import TrainingAdapter, read_training_adapter

if TYPE_CHECKING:
    from modules.config.PartConfig import PartConfig
    from modules.config.TrainConfig import TrainConfig
    from modules.families.Family import Family
    from modules.methods.Method import Method


def attach_method(
    config: TrainConfig,
    method: Method,
    base: BaseModel,
    parts: dict[str, PartConfig],
    shards: bool = False,
    report: Callable[[str], None] = lambda text: None,
) -> None:
    """Loads the components that a step needs; after caching, so that encoders and denoiser don't share memory.

    shards: they are to be sharded, so they stay on the CPU, or in their files if nothing needs the weights before.
    report: takes a line for the log.
    """
    denoisers = _needed_denoisers(config, method, base.family)
    encoders = base.family.text_components if trains_text(base, parts) else ()
    present = [name for name in (*denoisers, *encoders) if name in base.component_names]
    with must_fit("the model", "model.denoiser_quantization"):
        lazily = shards and not method.reads_weights(config)
        base.require(*parts, *present, on_device=not shards, lazily=lazily, to_swap=True)
    torch.manual_seed(torch_seed(config.seed, "initialisation"))
    method.attach(base, config)
    from modules.layers.frozen_norms import fuse_norms  # imports diffusers, which import_diffusers does faster

    for name in set(denoisers).intersection(present):
        fuse_rotary(base.module(name))
        fuse_norms(base.module(name))
        if not compiles(config):  # the compiler leaves them out itself
            leave_out_divisions(base.module(name))
    method.check_output(base, config)
    for line in (*_slow_formats(base, present, config), *_matmul_lines(base, denoisers, config)):
        report(line)
    for name in set(denoisers).intersection(present) if base.num_swapped else ():
        report(base.swap_blocks(name))
    make_layout_compatible(config.optimizer, (p for name in parts for p in base.module(name).parameters()))


def parts_to_train(
    config: TrainConfig, shards: bool, method: Method, base: BaseModel, warn: Callable[[str], None] = lambda text: None
) -> dict[str, PartConfig]:
    """The components of this base to train. Raises UserError, before anything is cached, if they can't be.

    shards: as in `attach_method`. warn: told what is left out of files that the settings name.
    """
    parts = trained_in(method, base, config)
    if method.facts.trains_weights and (quantized := base.stored_quantized):
        raise ConfigError.at(
            "method",
            f"{config.method!r}: the {quantized[0]} of model.base {config.model.base!r} is quantized and can "
            "neither train nor be saved with the model; choose a base model that is not quantized, or train a LoRA.",
        )
    if shards and (quantized := [name for name in base.stored_quantized if name in parts]):
        raise ConfigError.at(
            "distributed_strategy",
            f"{config.distributed_strategy}: the {quantized[0]} of model.base "
            f"{config.model.base!r} is quantized and can't be sharded; choose a base model that is not quantized, or "
            "use ddp.",
        )
    check_trained_parts(config, parts)  # again, because this base may lack a component of its family
    check_layers(method, base, parts, config)
    for text in method.check_base(base, config):
        warn(text)
    if method.facts.uses_denoiser:
        check_prediction(base.family, base.pipe.scheduler.config)
        check_offset_noise(base.pipe.scheduler.config, config.diffusion)
    return parts


def trains_text(base: BaseModel, parts: dict[str, PartConfig]) -> bool:
    return any(part in base.family.text.encoders for part in parts)


def compiles(config: TrainConfig) -> bool:
    """Whether the run compiles its denoisers."""
    return config.model.compile != "off" and METHODS[config.method].facts.uses_denoiser


def num_swapped_blocks(
    config: TrainConfig,
    device: torch.device,
    num_ranks: int,
    ranks_here: int = 1,
    report: Callable[[str], None] = lambda text: None,
) -> int:
    """The number of blocks of each denoiser to swap, by the free memory of the device, and by the system's memory, if
    the settings leave it open.

    ranks_here: of the `num_ranks`, those on this machine. report: takes the reason for such a choice.
    """
    free = free_bytes(device)
    if config.model.blocks_to_swap is not None or free is None:
        return config.model.blocks_to_swap or 0
    ram = ram_bytes()
    count = blocks_to_swap(config, free, num_ranks, ranks_here, room_in_ram(config, ram, num_ranks, ranks_here))
    fits = "needs swapped blocks to fit" if count else "fits without swapped blocks"
    report(f"By estimate, the run {fits} in the {free / GIB:.1f} GiB that are free on the GPU")
    if ram is not None and count < blocks_to_swap(config, free, num_ranks, ranks_here):
        report(f"The {ram / GIB:.1f} GiB of system memory have room for no more than {counted(count, 'swapped block')}")
    return count


def load_training_adapter(
    config: TrainConfig, method: Method, base: BaseModel, warn: Callable[[str], None]
) -> TrainingAdapter | None:
    """That of the settings, added to the denoisers, which are loaded. warn: told about layers that they lack."""
    file = config.model.training_adapter
    if not file or not method.facts.uses_denoiser:
        return None
    return TrainingAdapter(base, read_training_adapter(file, base.family), warn)


def _slow_formats(base: BaseModel, components: Iterable[str], config: TrainConfig) -> list[str]:
    """Lines about formats of quantized layers that this GPU needs several kernels for."""
    # layers that multiply in 8 bits are not dequantized
    formats = {layer.quantization for layer in _quantized_layers(base, components) if not layer.in_8_bits}
    return unfused_reasons(base.device, formats, AUTOCAST.get(config.model.mixed_precision, base.dtype))


def _matmul_lines(base: BaseModel, components: Iterable[str], config: TrainConfig) -> Iterator[str]:
    """How many layers multiply in 8 bits."""
    if config.model.quantized_matmul != "on":
        return
    layers = _quantized_layers(base, components)
    count, size = sum(layer.in_8_bits for layer in layers), config.model.quantized_matmul_size
    of_all = f"{count} of {counted(len(layers), 'quantized layer')}"
    text = f"Matrix products in {config.model.denoiser_quantization} in {of_all}"
    if rotated := sum(layer.in_8_bits and layer.rotation > 0 for layer in layers):
        text = f"{text}, {rotated} of them with rotated inputs"
    lacking = f"none has {size} million weights in multiples of {SIDE_STEP} inputs and outputs"
    yield text if count else f"{text}: {lacking}; lower model.quantized_matmul_size, or set quantized_matmul to off"


def _quantized_layers(base: BaseModel, components: Iterable[str]) -> list[QuantizedLinear]:
    modules = (base.module(name) for name in components)
    layers = (layer for module in modules if isinstance(module, torch.nn.Module) for layer in module.modules())
    return [layer for layer in layers if isinstance(layer, QuantizedLinear)]


def _needed_denoisers(config: TrainConfig, method: Method, family: Family) -> tuple[str, ...]:
    """The denoisers that a run has to load: an expert that does not train only for samples, or to save the model."""
    facts = method.facts
    if not facts.uses_denoiser:
        return ()
    if config.sampling.makes_samples or facts.trains_weights or not facts.chooses_parts or not config.denoiser.train:
        return family.denoisers
    return family.denoisers_of(config.denoiser.expert)
