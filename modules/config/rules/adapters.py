"""Rules of LoRA and the other adapters."""

import math
from collections.abc import Iterator

from modules.config.adapters import ADAPTERS, AdapterFacts, facts_of_adapter
from modules.config.families import load_families, model_of
from modules.config.layer_ranks import read_layer_ranks
from modules.config.methods import facts_of
from modules.config.optimizers import facts_of_optimizer
from modules.config.problems import Problem, Remedy, set_to, switch_off
from modules.config.show_value import show_value
from modules.config.TrainConfig import TrainConfig

ABSURD_WIDTHS = 10  # a rank this many times the width of the widest layer is refused
DROPOUTS = ("rank_dropout", "module_dropout")  # settings of LoraConfig that a DoRA can't have
# Settings of LoraConfig -> their value without effect. With another one, an adapter that lacks them is refused.
UNLESS_OFF = {"dora": False, "rslora": False, "plus_ratio": 1.0, "nested_unit": None, "dropout": 0.0,
              "rank_dropout": 0.0, "module_dropout": 0.0, "max_norm": None}  # fmt: skip


def adapter_problems(config: TrainConfig) -> Iterator[Problem]:
    """Which adapters and optimizers the settings of adapters can be combined with."""
    lora = config.lora
    if not facts_of(config).trains_adapters:
        return
    kind = facts_of_adapter(lora)
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
    yield from _kind_problems(config, kind)
    if lora.train_norms and not kind.is_in_lycoris_files:
        yield from _norm_problems(config)
    if lora.dora and lora.nested_unit:
        message = (
            f"lora.nested_unit {lora.nested_unit} with lora.dora: truncating a DoRA's ranks changes what it does; "
            "leave it empty."
        )
        yield Problem("lora.nested_unit", message, remedy=Remedy("Leave empty", {"lora.nested_unit": None}))
    for name in DROPOUTS:
        if lora.dora and (share := getattr(lora, name)):
            message = f"lora.{name} {share:g} with lora.dora: it would change the direction's length; set it to 0."
            yield Problem(f"lora.{name}", message, remedy=set_to(f"lora.{name}", 0.0, "0"))


def _rank_problems(config: TrainConfig) -> Iterator[Problem]:
    """Ranks above the width of layers, which learn nothing more: a whole matrix has no higher rank."""
    memory = model_of(config).memory
    if not facts_of_adapter(config.lora).uses_rank_up_to_width or memory is None:
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
            f"lora.train_norms: no format of a LoRA for {family.label} holds norm layers; turn it off, or use lokr."
        )
        yield Problem("lora.train_norms", message, remedy=switch_off("lora.train_norms"))
    elif config.output.format == "diffusers":
        message = "output.format diffusers with lora.train_norms: it can't hold norm layers; choose the single file."
        yield Problem("output.format", message, remedy=set_to("output.format", "single_file", "Single file"))


def _kind_problems(config: TrainConfig, kind: AdapterFacts) -> Iterator[Problem]:
    """What the chosen kind of adapters can't be combined with."""
    lora = config.lora
    on = f"with lora.adapter {kind.name}"
    for name, off in UNLESS_OFF.items():
        if name not in kind.settings and (value := getattr(lora, name)) != off:
            others = [other.name for other in ADAPTERS.values() if name in other.settings]
            some = ", ".join(others[:-1])
            whose = f"only {some} and {others[-1]} have it" if some else f"only {others[-1]} has it"
            undone = "leave it empty" if off is None else f"set it to {show_value(off)}"
            message = f"lora.{name} {show_value(value)} {on}: {whose}; {undone}."
            empty = Remedy("Leave empty", {f"lora.{name}": None})
            yield Problem(f"lora.{name}", message, remedy=empty if off is None else set_to(f"lora.{name}", off))
    if config.model.compile != "off" and not kind.can_compile:
        message = f"model.compile {config.model.compile} {on}: its layers can't be compiled; set it to off."
        yield Problem("model.compile", message, remedy=set_to("model.compile", "off", "Off"))
    for part in ("denoiser", "text_encoder"):
        path = f"model.{part}_quantization"
        if kind.composes_weights and getattr(config.model, f"{part}_quantization") == "nf4":
            message = f"{path} nf4 {on}: it can't be added to weights in 4 bits; use int8, or another adapter."
            yield Problem(path, message, remedy=set_to(path, "int8"))
