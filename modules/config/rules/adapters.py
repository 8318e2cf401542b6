"""Rules of LoRA and the other adapters."""

import math
from collections.abc import Iterator

from modules.config.families import load_families
from modules.config.layer_ranks import read_layer_ranks
from modules.config.methods import facts_of
from modules.config.optimizers import facts_of_optimizer
from modules.config.problems import Problem, Remedy, set_to, switch_off
from modules.config.show_value import show_value
from modules.config.TrainConfig import TrainConfig

ABSURD_WIDTHS = 10  # a rank this many times the width of the widest layer is refused
DROPOUTS = ("dropout", "rank_dropout", "module_dropout")  # settings of LoraConfig


def adapter_problems(config: TrainConfig) -> Iterator[Problem]:
    """Which adapters and optimizers the settings of adapters can be combined with."""
    lora = config.lora
    if not facts_of(config).trains_adapters:
        return
    optimizer = facts_of_optimizer(config.optimizer)
    if lora.plus_ratio != 1 and optimizer.finds_own_step:
        message = (
            f"lora.plus_ratio {lora.plus_ratio:g} with optimizer.name {optimizer.name}: it finds one step size for all "
            "weights; set it to 1, or use another optimizer."
        )
        yield Problem("lora.plus_ratio", message, remedy=set_to("lora.plus_ratio", 1.0, "1"))
    if lora.max_norm is not None and optimizer.averages_weights:
        message = (
            f"lora.max_norm {lora.max_norm:g} with optimizer.name {optimizer.name}: it would not limit the averaged "
            "weights; leave it empty, or use another optimizer."
        )
        yield Problem("lora.max_norm", message, remedy=Remedy("Leave empty", {"lora.max_norm": None}))
    try:
        read_layer_ranks(lora.layer_ranks)
    except ValueError as error:
        yield Problem("lora.layer_ranks", f"lora.layer_ranks: {error}.")
    yield from _rank_problems(config)
    if lora.is_lycoris:
        yield from _lycoris_problems(config)
    if lora.max_norm is not None and lora.adapter == "oft":
        message = f"lora.max_norm {lora.max_norm:g} with lora.adapter oft: it limits other adapters; leave it empty."
        yield Problem("lora.max_norm", message, remedy=Remedy("Leave empty", {"lora.max_norm": None}))
    if lora.train_norms and not lora.is_lycoris:
        yield from _norm_problems(config)
    if lora.dora and lora.nested_unit:
        message = f"lora.nested_unit {lora.nested_unit} with lora.dora: a cut DoRA is another one; leave it empty."
        yield Problem("lora.nested_unit", message, remedy=Remedy("Leave empty", {"lora.nested_unit": None}))
    for name in DROPOUTS[1:]:
        if lora.dora and (share := getattr(lora, name)):
            message = f"lora.{name} {share:g} with lora.dora: it would change the direction's length; set it to 0."
            yield Problem(f"lora.{name}", message, remedy=set_to(f"lora.{name}", 0.0, "0"))


def _rank_problems(config: TrainConfig) -> Iterator[Problem]:
    """Ranks above the width of layers, which learn nothing more: a whole matrix has no higher rank."""
    memory = load_families()[config.family].memory
    if not config.lora.has_greatest_rank or memory is None:
        return
    widest = math.isqrt(memory["matrix"])  # no side of a matrix, as the shorter one, is longer than this
    for name in ("rank", "conv_rank"):
        rank = getattr(config.lora, name)
        if rank is None or rank <= widest:
            continue
        is_absurd = rank > ABSURD_WIDTHS * widest
        effect = "it can't be trained" if is_absurd else "more than that only takes memory"
        message = f"lora.{name} {rank}: no layer of this model is wider than {widest}; {effect}; use 128 or less."
        yield Problem(f"lora.{name}", message, blocking=is_absurd, remedy=set_to(f"lora.{name}", 128))


def _norm_problems(config: TrainConfig) -> Iterator[Problem]:
    """Only kohya's format of a LoRA can hold norm layers; those of other adapters are of that kind anyway."""
    family = load_families()[config.family]
    if not family.has_kohya_loras:
        message = (
            f"lora.train_norms: no format of a LoRA for {family.label} holds norm layers; switch it off, or use lokr."
        )
        yield Problem("lora.train_norms", message, remedy=switch_off("lora.train_norms"))
    elif config.output.format == "diffusers":
        message = "output.format diffusers with lora.train_norms: it can't hold norm layers; choose the single file."
        yield Problem("output.format", message, remedy=set_to("output.format", "single_file", "Single file"))


def _lycoris_problems(config: TrainConfig) -> Iterator[Problem]:
    """What LoHa, LoKr, OFT and IA3 can't be combined with."""
    lora = config.lora
    on = f"with lora.adapter {lora.adapter}"
    only_lora = {"dora": False, "rslora": False, "plus_ratio": 1.0, "nested_unit": None, **dict.fromkeys(DROPOUTS, 0.0)}
    for name, off in only_lora.items():
        if (value := getattr(lora, name)) != off:
            undone = "leave it empty" if off is None else f"set it to {show_value(off)}"
            message = f"lora.{name} {show_value(value)} {on}: only lora has it; {undone}."
            yield Problem(f"lora.{name}", message, remedy=set_to(f"lora.{name}", off))
    if config.model.compile != "off":
        message = f"model.compile {config.model.compile} {on}: its layers can't be compiled; set it to off."
        yield Problem("model.compile", message, remedy=set_to("model.compile", "off", "Off"))
    for part in ("denoiser", "text_encoder"):
        path = f"model.{part}_quantization"
        if lora.composes_weights and getattr(config.model, f"{part}_quantization") == "nf4":
            message = f"{path} nf4 {on}: only lora can be added to weights in 4 bits; use int8."
            yield Problem(path, message, remedy=set_to(path, "int8"))
