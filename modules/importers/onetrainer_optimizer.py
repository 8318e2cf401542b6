"""How OneTrainer's optimizer, learning rates and schedule become those of Chorus."""

from __future__ import annotations

import math

from modules.config.other_programs import ForeignSetting
from modules.importers.intervals import optimizer_steps
from modules.importers.onetrainer_model import method_of, part_of
from modules.importers.Translation import Conversion, Translation

RELATIVE_RATE = 0.01  # the largest of Adafactor's relative steps


def rate_factor(t: Translation) -> float:
    """What OneTrainer multiplies learning rates by: the square root of the batch, its accumulation or both."""
    batch, accumulation = max(1, t["batch_size"]), max(1, t["gradient_accumulation_steps"])
    return {
        "BATCH": math.sqrt(batch),
        "GLOBAL_BATCH": math.sqrt(batch),
        "GRADIENT_ACCUMULATION": math.sqrt(accumulation),
        "BOTH": math.sqrt(batch * accumulation),
        "GLOBAL_BOTH": math.sqrt(batch * accumulation),
    }.get(t["learning_rate_scaler"], 1.0)


def take_rate(t: Translation, path: str, name: str) -> None:
    """A learning rate, with the factor that OneTrainer's scaler has for it."""
    factor = rate_factor(t)
    names = (name, "learning_rate_scaler") if factor != 1 else (name,)
    why = f"OneTrainer's scaler multiplies it by {factor:g}; the result is written" if factor != 1 else ""
    t.take(path, t[name] * factor, *names, why=why)


def _take_learning_rate(t: Translation, setting: ForeignSetting) -> None:
    facts = method_of(t)
    words_alone = facts.trains_words and not facts.trains_adapters
    if t["optimizer.optimizer"] == "ADAFACTOR" and t["optimizer.relative_step"]:
        why = "OneTrainer's rate has no effect with relative_step, which this is"
        t.take("optimizer.learning_rate", RELATIVE_RATE, "learning_rate", "optimizer.relative_step", why=why)
    elif words_alone and t["embedding_learning_rate"] is not None:
        take_rate(t, "optimizer.learning_rate", "embedding_learning_rate")
    else:
        take_rate(t, "optimizer.learning_rate", "learning_rate")


def _take_embedding_rate(t: Translation, setting: ForeignSetting) -> None:
    facts = method_of(t)
    if facts.trains_words and facts.trains_adapters and t["embedding_learning_rate"] is not None:
        take_rate(t, "lora.embedding_learning_rate", "embedding_learning_rate")


def _take_lr_scaling(t: Translation, setting: ForeignSetting) -> None:
    grows = t["learning_rate_scaler"].startswith("GLOBAL")
    t.take("lr_scaling", "sqrt" if grows else "none", "learning_rate_scaler")


def _note_loss_scaler(t: Translation, setting: ForeignSetting) -> None:
    if t["loss_scaler"] != "NONE":
        t.leave(
            "a factor of the loss changes nothing for optimizers like Adam, except that gradients are clipped at "
            "another norm: set optimizer.max_grad_norm, and for SGD the learning rate",
            "loss_scaler",
        )


def _take_schedule(t: Translation, setting: ForeignSetting) -> None:
    choice = t.choice("learning_rate_scheduler")
    if choice is None:
        t.take(
            "schedule.name",
            "constant",
            "learning_rate_scheduler",
            why="Chorus has no such schedule; choose the nearest",
        )
        return
    t.take("schedule.name", choice, "learning_rate_scheduler")
    if choice == "rex":
        t.take("schedule.rex_d", 0.9, "learning_rate_scheduler")


def _take_warmup(t: Translation, setting: ForeignSetting) -> None:
    warmup, accumulation = t["learning_rate_warmup_steps"], t["gradient_accumulation_steps"]
    name = "learning_rate_warmup_steps"
    if warmup == 1:
        t.take("schedule.warmup", 0.9999, name, why="1 is the whole run there, and one step here")
    elif warmup > 1 and accumulation > 1 and math.isfinite(warmup):
        why = "batches there, optimizer steps here"
        t.take("schedule.warmup", float(optimizer_steps(warmup, accumulation)), name, why=why)
    else:
        t.take("schedule.warmup", max(0.0, warmup), name)


def _take_cycles(t: Translation, setting: ForeignSetting) -> None:
    cycles = t["learning_rate_cycles"]
    whole = max(1, round(cycles)) if math.isfinite(cycles) else 1
    t.take("schedule.restarts", whole, "learning_rate_cycles", why="" if whole == cycles else "whole cycles only")


def _take_clipping(t: Translation, setting: ForeignSetting) -> None:
    is_off = "clip_grad_norm" in t.given and t.given["clip_grad_norm"] is None
    t.take("optimizer.max_grad_norm", 0.0 if is_off else t["clip_grad_norm"], "clip_grad_norm")


def _take_optimizer(t: Translation, setting: ForeignSetting) -> None:
    chosen = t["optimizer.optimizer"]
    facts = t.program.facts["optimizers"].get(chosen)
    if facts is None:
        t.leave("Chorus has nothing like it: AdamW is used; choose another in optimizer.name", "optimizer.optimizer")
        t.result.values["optimizer.name"] = "adamw"
        facts = t.program.facts["optimizers"]["ADAMW"]
    else:
        t.take("optimizer.name", facts["here"], "optimizer.optimizer", why=facts.get("why", ""))
    parameters = {name: _parameter(t, name, facts) for name in _names_of(t)}
    taken = _take_parameters(t, facts, parameters)
    for name in _names_of(t):
        value, usual = t[f"optimizer.{name}"], facts.get(name, t.program.settings[f"optimizer.{name}"].default)
        is_set = name in facts or (isinstance(value, bool) and t.is_given(f"optimizer.{name}"))
        if is_set and name not in taken and value is not None and value not in (usual, str(usual)):
            t.leave("this optimizer has no such parameter in Chorus", f"optimizer.{name}")


def _names_of(t: Translation) -> list[str]:
    """The parameters of optimizers, without their section."""
    return [
        name.removeprefix("optimizer.")
        for name, setting in t.program.settings.items()
        if setting.by == "optimizer" and name != "optimizer.optimizer"
    ]


def _parameter(t: Translation, name: str, facts: dict) -> float | bool | None:
    value = t[f"optimizer.{name}"]
    return facts.get(name) if value is None else value


def _take_parameters(t: Translation, facts: dict, values: dict) -> set[str]:
    """Set the parameters of the optimizer. Returns the names of OneTrainer's that are taken."""
    paths = {"weight_decay": "weight_decay"}
    match facts["here"]:
        case "adamw" | "adamw_8bit" | "prodigy" | "schedule_free" | "ademamix":
            paths |= {"beta1": "beta1", "beta2": "beta2", "eps": "eps"}
        case "lion" | "lion_8bit" | "came":
            paths |= {"beta1": "beta1", "beta2": "beta2"}
    paths |= {
        "adafactor": {
            "clip_threshold": "adafactor_clip_threshold",
            "decay_rate": "adafactor_beta2_decay",
            "scale_parameter": "adafactor_scale_parameter",
        },
        "came": {"beta3": "came_beta3"},
        "prodigy": {"d_coef": "prodigy_d_coef"},
        "schedule_free": {"r": "schedule_free_power"},
        "ademamix": {"beta3": "ademamix_beta3", "alpha": "ademamix_alpha"},
        "sgd": {"momentum": "sgd_momentum", "nesterov": "sgd_nesterov"},
    }.get(facts["here"], {})
    for name, path in paths.items():
        if values.get(name) is not None:
            t.take(f"optimizer.{path}", values[name], f"optimizer.{name}")
    if "class" in facts:
        return {*paths, *_take_class(t, facts, values)}
    return {*paths, "relative_step", "warmup_init"} if facts["here"] == "adafactor" else set(paths)


def _take_class(t: Translation, facts: dict, values: dict) -> set[str]:
    """A class of pytorch-optimizer with its arguments."""
    t.take("optimizer.other_name", facts["class"], "optimizer.optimizer")
    arguments, names = [], {"weight_decay"}
    if "beta1" in facts and "beta2" in facts:
        arguments.append(f"betas=({values['beta1']}, {values['beta2']})")
        names |= {"beta1", "beta2"}
    for name in ("eps", "momentum"):
        if name in facts:
            arguments.append(f"{name}={values[name]}")
            names.add(name)
    if arguments:
        t.take("optimizer.other_arguments", ", ".join(arguments), "optimizer.optimizer")
    return names


def _take_stochastic_rounding(t: Translation, setting: ForeignSetting) -> None:
    name = "optimizer.stochastic_rounding"
    in_bfloat16 = t[f"{part_of(t)}.weight_dtype"] == "BFLOAT_16"
    if t.is_given(name) and method_of(t).trains_weights and in_bfloat16:
        t.take(name, t[name], name)


def _take_fused_backward(t: Translation, setting: ForeignSetting) -> None:
    name = "optimizer.fused_back_pass"
    if not t[name]:
        return
    is_clipped = not ("clip_grad_norm" in t.given and t.given["clip_grad_norm"] is None) and t["clip_grad_norm"]
    if not method_of(t).trains_weights:
        t.leave("a LoRA or an embedding has too few gradients for it to save memory", name)
    elif is_clipped or t["gradient_accumulation_steps"] > 1 or t["multi_gpu"]:
        t.leave("here it needs one GPU, optimizer.max_grad_norm 0 and gradient_accumulation_steps 1", name)
    else:
        t.take("optimizer.fused_backward", True, name)


def _take_paged(t: Translation, setting: ForeignSetting) -> None:
    if t["optimizer.is_paged"]:
        why = "all of the optimizer's state is in system memory, not only what does not fit"
        t.take("optimizer.state_in_ram", True, "optimizer.is_paged", why=why)


OF_OPTIMIZER: dict[str, Conversion] = {
    "learning_rate": _take_learning_rate,
    "embedding_rate": _take_embedding_rate,
    "lr_scaling": _take_lr_scaling,
    "loss_scaler": _note_loss_scaler,
    "schedule": _take_schedule,
    "warmup": _take_warmup,
    "cycles": _take_cycles,
    "clipping": _take_clipping,
    "optimizer": _take_optimizer,
    "stochastic_rounding": _take_stochastic_rounding,
    "fused_backward": _take_fused_backward,
    "paged": _take_paged,
}
