"""How diffusion-pipe's optimizer, learning rates and schedule become those of Chorus."""

from __future__ import annotations

from typing import Any

from modules.config.library_optimizers import LIBRARY_OPTIMIZERS
from modules.config.other_programs import ForeignSetting
from modules.importers.DiffusionPipeTranslation import DiffusionPipeTranslation
from modules.importers.foreign_values import shown
from modules.importers.optimizer_values import argument_text, library_arguments, take_betas, take_parameters

RELATIVE_RATE = 0.01  # the largest of Adafactor's relative steps
LOWEST_RATE = 1e-6  # where the cosine ends
_OWN = ("type", "lr", "beta2_half_life", "gradient_release", "stabilize")
_FACTS = ("here", "class", "why", "lr", "kahan", "in_ram", "relative_step")


def _name(t: DiffusionPipeTranslation) -> str:
    return (t["optimizer.type"] or "").lower()


def _facts(t: DiffusionPipeTranslation) -> dict[str, Any]:
    """What the table, or else the package of many optimizers, has on the chosen one; nothing if neither has it."""
    facts = t.program.facts["optimizers"].get(_name(t))
    library = next((one for one in LIBRARY_OPTIMIZERS if one.lower() == _name(t)), "")
    if facts is None and library:
        return {"here": "other", "class": library, "lr": 1e-3, "weight_decay": 0.0}
    return dict(facts or {})


def _take_optimizer(t: DiffusionPipeTranslation, setting: ForeignSetting) -> None:
    facts, given = _facts(t), _arguments(t)
    if not facts:
        t.leave("Chorus has nothing like it: AdamW is used; choose another in optimizer.name", "optimizer.type")
        facts, given = dict(t.program.facts["optimizers"]["adamw"]), {}
    t.take("optimizer.name", facts["here"], "optimizer.type", why=facts.get("why", ""))
    if facts.get("in_ram"):
        t.take("optimizer.state_in_ram", True, "optimizer.type", why="the step itself is on the GPU")
    _take_rounding(t, facts)
    values = {name: value for name, value in facts.items() if name not in _FACTS} | given
    if "class" in facts:
        _take_class(t, facts["class"], values)
        return
    take_betas(t, facts["here"], values.pop("betas", None), "optimizer.betas", "betas" in given)
    _take_half_life(t)
    take_parameters(t, facts["here"], values, given, "optimizer.", ("relative_step",))  # it is of the learning rate


def _arguments(t: DiffusionPipeTranslation) -> dict[str, Any]:
    """The optimizer's arguments in the file, also those that only its class knows, which then need no other line."""
    arguments = {}
    for path in [path for path in t.given if path.startswith("optimizer.")]:
        name = path.removeprefix("optimizer.")
        setting = t.program.settings.get(path)
        if setting is None and _facts(t):
            arguments[name] = t.given.pop(path)
        elif setting is not None and setting.by and name not in _OWN and t.is_given(path):
            arguments[name] = t[path]
    return arguments


def _take_rounding(t: DiffusionPipeTranslation, facts: dict[str, Any]) -> None:
    """What makes up for the rounding of weights that train in bfloat16."""
    if not facts.get("kahan") or not t.method.trains_weights or t.result.values.get("model.weight_dtype") != "bfloat16":
        return
    if facts["here"] == "adamw":
        why = "weights are rounded up or down at random, where Kahan summation keeps what was lost"
        t.take("optimizer.stochastic_rounding", True, "optimizer.type", why=why)
    else:
        why = "without its Kahan summation, bfloat16 weights lose small updates: set model.weight_dtype to float32"
        t.leave(why, "optimizer.type")


def _take_half_life(t: DiffusionPipeTranslation) -> None:
    half_life = t["optimizer.beta2_half_life"]
    if half_life and half_life > 0:
        value = 0.5 ** (t.examples_in_step / half_life)
        why = f"from the {t.examples_in_step} images of a step on one GPU"
        t.take("optimizer.beta2", value, "optimizer.beta2_half_life", why=why)


def _take_class(t: DiffusionPipeTranslation, name: str, values: dict[str, Any]) -> None:
    """A class of pytorch-optimizer with its arguments."""
    is_given = t.is_given("optimizer.weight_decay")
    t.take("optimizer.other_name", name, "optimizer.type")
    decay = values.pop("weight_decay", 0.0)
    t.take_line("optimizer.weight_decay", decay, shown("optimizer.weight_decay", decay), is_given=is_given)
    arguments = library_arguments(t, values, "optimizer.")
    names = [f"optimizer.{key}" for key in arguments if f"optimizer.{key}" in t.program.settings]
    t.take("optimizer.other_arguments", argument_text(arguments), *(names or ["optimizer.type"]))


def _take_release(t: DiffusionPipeTranslation, setting: ForeignSetting) -> None:
    if not t["optimizer.gradient_release"]:
        return
    if t.method.trains_weights and t["gradient_accumulation_steps"] == 1:
        t.take("optimizer.fused_backward", True, "optimizer.gradient_release")
    else:
        why = "here it needs a full fine-tune, without gradient accumulation"
        t.leave(why, "optimizer.gradient_release")


def _take_clipping(t: DiffusionPipeTranslation, setting: ForeignSetting) -> None:
    if t["optimizer.gradient_release"]:
        t.take("optimizer.max_grad_norm", 0.0, "optimizer.gradient_release")
    else:
        t.take("optimizer.max_grad_norm", t["gradient_clipping"], "gradient_clipping")


def _take_rates(t: DiffusionPipeTranslation, setting: ForeignSetting) -> None:
    rate, facts = t["optimizer.lr"], _facts(t)
    forced = t["force_constant_lr"]
    if forced:
        t.take("optimizer.learning_rate", forced, "force_constant_lr")
    elif facts.get("here") == "adafactor" and t.given.get("optimizer.relative_step", True) is not False:
        why = "Adafactor finds its own rate there unless relative_step is turned off, and lr has no effect"
        t.take("optimizer.learning_rate", RELATIVE_RATE, "optimizer.lr", why=why)
    elif rate is None:
        why = "" if facts else "a rate of its own there"
        t.take("optimizer.learning_rate", facts.get("lr", 1e-4), "optimizer.lr", why=why)
    elif rate <= 0 and (t["model.unet_lr"] or 0) > 0:
        why = "the common rate has to be above 0 here"
        t.take("optimizer.learning_rate", t["model.unet_lr"], "model.unet_lr", why=why)
    else:
        t.take("optimizer.learning_rate", rate, "optimizer.lr")
    if t.method.chooses_parts:
        _take_parts(t, None if forced else rate, bool(forced))


def _take_parts(t: DiffusionPipeTranslation, rate: float | None, is_forced: bool) -> None:
    """Which parts train, at which rates."""
    names = ("model.text_encoder_1_lr", "model.text_encoder_2_lr")
    if not t.has_fact("trains_text"):
        t.take("text_encoder.train", False, "model.type")
        t.take("denoiser.train", True, "model.type")
        return
    common = 1.0 if rate is None else rate
    rates = [common if t[name] is None or is_forced else t[name] for name in names]
    unet = common if t["model.unet_lr"] is None or is_forced else t["model.unet_lr"]
    trained = [number + 1 for number, one in enumerate(rates) if one > 0]
    t.take("text_encoder.train", bool(trained), *names)
    t.take("denoiser.train", unet > 0 or not trained, "model.unet_lr")
    if is_forced:
        return
    if len(trained) == 1:
        t.take("text_encoder.only", trained, *names)
        if t[names[trained[0] - 1]] is not None:
            t.take("text_encoder.learning_rate", rates[trained[0] - 1], names[trained[0] - 1])
    elif (
        trained
        and any(t[name] is not None for name in names)
        and all(t[name] is not None or rate is not None for name in names)
    ):
        t.take("text_encoder.learning_rates", rates, *names)
    if t["model.unet_lr"] is not None and unet > 0:
        t.take("denoiser.learning_rate", unet, "model.unet_lr")


def _take_schedule(t: DiffusionPipeTranslation, setting: ForeignSetting) -> None:
    chosen = t["lr_scheduler"]
    if t["force_constant_lr"]:
        t.take("schedule.name", "constant", "force_constant_lr")
        t.take("schedule.warmup", 0.0, "force_constant_lr")
        return
    if chosen not in ("constant", "linear", "cosine"):
        t.leave("diffusion-pipe has no such schedule: the rate stays constant", "lr_scheduler")
        chosen = "constant"
    is_cut = chosen != "constant" and t["max_steps"] is not None
    why = "it ends with the run here, and after all epochs there, also if max_steps comes first" if is_cut else ""
    t.take("schedule.name", chosen, "lr_scheduler", why=why)
    t.take("schedule.warmup", float(max(0, t["warmup_steps"])), "warmup_steps")
    rate = t.result.values.get("optimizer.learning_rate", 0.0)
    if chosen == "linear":
        t.take("schedule.final_share", 0.0, "lr_scheduler")
    elif chosen == "cosine" and rate > 0:
        t.take("schedule.final_share", min(1.0, LOWEST_RATE / rate), "lr_scheduler", why="it ends at a rate of 1e-6")


OF_OPTIMIZER: dict[str, Any] = {
    "optimizer": _take_optimizer,
    "gradient_release": _take_release,
    "clipping": _take_clipping,
    "rates": _take_rates,
    "schedule": _take_schedule,
}
