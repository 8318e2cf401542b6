"""How SimpleTuner's optimizer and schedule become those of Chorus."""

from __future__ import annotations

from typing import Any

from modules.config.other_programs import ForeignSetting
from modules.importers.foreign_values import shown
from modules.importers.ImportResult import Line
from modules.importers.optimizer_values import argument_text, library_arguments, take_parameters
from modules.importers.SimpleTunerTranslation import SimpleTunerTranslation

_PREFIX = "optimizer_config "  # before the name of a parameter, in lines
_HALF_WAVE = 1000  # steps for which the rate falls, where lr_warmup_steps is 0


def _take_scaling(t: SimpleTunerTranslation, setting: ForeignSetting) -> None:
    chosen = ("sqrt" if t["lr_scale_sqrt"] else "linear") if t["lr_scale"] else "none"
    t.take("lr_scaling", chosen, "lr_scale", "lr_scale_sqrt")


def _take_optimizer(t: SimpleTunerTranslation, setting: ForeignSetting) -> None:
    facts = dict(t.program.facts["optimizers"].get(t["optimizer"].lower(), {}))
    if not facts:
        t.leave("Chorus has nothing like it: AdamW is used; choose another in optimizer.name", "optimizer")
        facts = dict(t.program.facts["optimizers"]["adamw_bf16"])
    t.take("optimizer.name", facts["here"], "optimizer", why=facts.get("why", ""))
    given = _given(t)
    values = {name: value for name, value in facts.items() if name not in ("here", "class", "why")} | given
    betas = (t["optimizer_beta1"], t["optimizer_beta2"])
    if None not in betas:
        values["betas"] = [*betas, *values.get("betas", [])[2:]]
        given["betas"] = values["betas"]
    if "class" in facts:
        _take_class(t, facts["class"], values)
        return
    names = ("beta1", "beta2", t.program.facts["betas"].get(facts["here"], ""))
    for name, value in zip(names, values.pop("betas", []), strict=False):
        if name:
            t.take_line(f"optimizer.{name}", value, shown("betas", value), is_given="betas" in given)
    take_parameters(t, facts["here"], values, given, _PREFIX, ())
    if facts["here"] == "adafactor":
        t.take("optimizer.adafactor_scale_parameter", True, "optimizer")


def _given(t: SimpleTunerTranslation) -> dict[str, Any]:
    """The parameters in optimizer_config, such as eps=1e-6,weight_decay=0.0."""
    result: dict[str, Any] = {}
    for part in (t["optimizer_config"] or "").split(","):
        name, equals, text = part.partition("=")
        if not equals:
            if part.strip():
                t.result.left.append(Line(shown("optimizer_config", part), why="it is no parameter with a value"))
            continue
        result[name.strip()] = _value(text.strip())
    return result


def _value(text: str) -> Any:
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    for kind in (int, float):
        try:
            return kind(text)
        except (ValueError, OverflowError):
            continue
    return text


def _take_class(t: SimpleTunerTranslation, name: str, values: dict[str, Any]) -> None:
    """A class of pytorch-optimizer with its arguments."""
    t.take("optimizer.other_name", name, "optimizer")
    t.take_line("optimizer.weight_decay", values.pop("weight_decay", 0.0), "optimizer_config weight_decay")
    arguments = library_arguments(t, values, _PREFIX)
    t.take("optimizer.other_arguments", argument_text(arguments), "optimizer_config")


def _take_clipping(t: SimpleTunerTranslation, setting: ForeignSetting) -> None:
    names = ("max_grad_norm", "grad_clip_method")
    if t["optimizer"].lower() in t.program.facts["unclipped"]:
        t.take("optimizer.max_grad_norm", 0.0, *names, why="SimpleTuner leaves it to this optimizer")
        return
    is_norm = t["grad_clip_method"] == "norm"
    why = "" if is_norm else "each value is cut there (grad_clip_method value), the norm of all here"
    norm, largest = t["max_grad_norm"], t.program.facts["largest_norms"].get(t.model)
    if largest and norm > largest and not t["i_know_what_i_am_doing"]:
        norm, why = largest, "; ".join(filter(None, (f"SimpleTuner allows {largest} at most for this model", why)))
    t.take("optimizer.max_grad_norm", norm, *names, why=why)


def _take_schedule(t: SimpleTunerTranslation, setting: ForeignSetting) -> None:
    chosen, warmup = t["lr_scheduler"].lower(), max(0, t["lr_warmup_steps"])
    if t.program.facts["optimizers"].get(t["optimizer"].lower(), {}).get("here") == "schedule_free":
        why = "" if chosen.startswith("constant") else "SimpleTuner leaves the schedule to this optimizer"
        t.take("schedule.name", "constant", "lr_scheduler", why=why)
        t.take("schedule.warmup", float(warmup), "lr_warmup_steps")
        return
    if chosen in ("cosine", "sine", "cosine_with_warmup"):
        _take_waves(t, chosen, warmup)
        return
    known = {"constant": "constant", "constant_with_warmup": "constant", "linear": "linear", "polynomial": "polynomial"}
    why = ""
    if chosen == "cosine_with_restarts":
        why = "the rate stays at its height there"
        warmup = 0
    elif chosen not in known:
        t.leave("Chorus has no such schedule: the rate stays constant; choose another in schedule.name", "lr_scheduler")
    t.take("schedule.name", known.get(chosen, "constant"), "lr_scheduler", why=why)
    t.take("schedule.warmup", float(warmup), "lr_warmup_steps")
    if chosen == "polynomial":
        t.take("schedule.power", t["lr_power"], "lr_power")
        _take_end(t)
    elif chosen == "linear":
        t.take("schedule.final_share", 0.0, "lr_scheduler")


def _take_waves(t: SimpleTunerTranslation, chosen: str, half: int) -> None:
    """A rate that falls for lr_warmup_steps, rises for as many, and so on, without a warm-up."""
    half, steps = half or _HALF_WAVE, t["max_train_steps"] or 0
    why = "it falls for lr_warmup_steps and rises for as many there, without a warm-up"
    waves = round(steps / (2 * half))
    t.take("schedule.warmup", 0.0, "lr_scheduler", "lr_warmup_steps", why=why)
    if chosen == "sine":
        why += "; it begins at half of the rate"
    if waves < 1:
        t.take("schedule.name", "cosine", "lr_scheduler", why=f"{why}; it falls for the whole run here")
    else:
        t.take("schedule.name", "cosine_waves", "lr_scheduler", why=why)
        t.take("schedule.restarts", min(waves, 10_000), "lr_warmup_steps", "max_train_steps", why=why)
    _take_end(t)


def _take_end(t: SimpleTunerTranslation) -> None:
    rate = t["learning_rate"]
    share = min(1.0, max(0.0, t["lr_end"] / rate)) if 0 < rate < float("inf") else 0.0
    t.take("schedule.final_share", share, "lr_end")


OF_OPTIMIZER: dict[str, Any] = {
    "scaling": _take_scaling,
    "optimizer": _take_optimizer,
    "clipping": _take_clipping,
    "schedule": _take_schedule,
}
