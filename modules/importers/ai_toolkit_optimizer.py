"""How ai-toolkit's optimizer, learning rates and schedule become those of Chorus."""

from __future__ import annotations

from typing import Any

from modules.config.other_programs import ForeignSetting
from modules.importers.AiToolkitTranslation import AiToolkitTranslation
from modules.importers.foreign_values import shown
from modules.importers.ImportResult import Line
from modules.importers.intervals import optimizer_steps
from modules.importers.optimizer_values import argument_text, library_arguments, take_betas, take_parameters

RELATIVE_RATE = 0.01  # the largest of Adafactor's relative steps
_PREFIX = "optimizer_params "  # before the name of a parameter, in lines
_IGNORED = ("relative_step", "warmup_init", "scale_parameter", "decouple")


def facts_of(t: AiToolkitTranslation) -> dict[str, Any]:
    """What the table has on the chosen optimizer; on AdamW if it lacks it."""
    optimizers = t.program.facts["optimizers"]
    name = t["train.optimizer"].lower()
    if name not in optimizers and name.startswith("prodigy8bit"):
        name = "prodigy8bit"
    elif name not in optimizers and name.startswith("prodigy"):
        name = "prodigy"
    return dict(optimizers.get(name, {}))


def _take_rate(t: AiToolkitTranslation, setting: ForeignSetting) -> None:
    rate, facts = t["train.lr"], facts_of(t)
    words_alone = t.method.trains_words and not t.method.trains_adapters
    own = t["train.embedding_lr"]
    if facts.get("here") == "adafactor" and t.section("train.optimizer_params").get("relative_step") is True:
        why = "Adafactor finds its own rate there with relative_step, and lr has no effect"
        t.take("optimizer.learning_rate", RELATIVE_RATE, "train.lr", why=why)
    elif rate < facts.get("lowest_rate", 0.0):
        t.take(
            "optimizer.learning_rate", 1.0, "train.lr", why="ai-toolkit replaces a rate below 0.1 for this optimizer"
        )
    elif words_alone and own is not None:
        t.take("optimizer.learning_rate", own, "train.embedding_lr")
    else:
        t.take("optimizer.learning_rate", rate, "train.lr")
    if t.method.trains_words and t.method.trains_adapters and own is not None:
        t.take("lora.embedding_learning_rate", own, "train.embedding_lr")


def _take_optimizer(t: AiToolkitTranslation, setting: ForeignSetting) -> None:
    facts = facts_of(t)
    if not facts:
        t.leave("Chorus has nothing like it: AdamW is used; choose another in optimizer.name", "train.optimizer")
        facts = dict(t.program.facts["optimizers"]["adamw"])
    t.take("optimizer.name", facts["here"], "train.optimizer", why=facts.get("why", ""))
    given = t.section("train.optimizer_params")
    values = {k: v for k, v in facts.items() if k not in ("here", "class", "why", "lowest_rate")} | given
    if "class" in facts:
        _take_class(t, facts["class"], values)
        return
    take_betas(t, facts["here"], values.pop("betas", None), f"{_PREFIX}betas", "betas" in given)
    take_parameters(t, facts["here"], values, given, _PREFIX, _IGNORED)
    if facts["here"] == "adafactor" and "scale_parameter" not in values:
        t.take("optimizer.adafactor_scale_parameter", False, "train.optimizer_params")


def _take_class(t: AiToolkitTranslation, name: str, values: dict[str, Any]) -> None:
    """A class of pytorch-optimizer with its arguments."""
    t.take("optimizer.other_name", name, "train.optimizer")
    t.take_line("optimizer.weight_decay", values.pop("weight_decay", 0.0), "optimizer_params weight_decay")
    arguments = library_arguments(t, values, _PREFIX)
    t.take("optimizer.other_arguments", argument_text(arguments), "train.optimizer_params")


def _take_clipping(t: AiToolkitTranslation, setting: ForeignSetting) -> None:
    if t["train.optimizer"] == "adafactor":
        why = "ai-toolkit leaves it to Adafactor's own threshold"
        t.take("optimizer.max_grad_norm", 0.0, "train.max_grad_norm", why=why)
    else:
        t.take("optimizer.max_grad_norm", t["train.max_grad_norm"], "train.max_grad_norm")


def _take_schedule(t: AiToolkitTranslation, setting: ForeignSetting) -> None:
    chosen, given = t["train.lr_scheduler"], t.section("train.lr_scheduler_params")
    names = ("train.lr_scheduler", "train.lr_scheduler_params")
    known = {
        "constant": "constant",
        "constant_with_warmup": "constant",
        "cosine": "cosine",
        "cosine_with_restarts": "cosine_restarts",
    }
    if chosen == "linear":
        t.leave("it rises there from a third of the rate to all of it, and falls here: the rate stays constant", *names)
    elif chosen not in known:
        t.leave("Chorus has no such schedule: the rate stays constant; choose another in schedule.name", *names)
    t.take("schedule.name", known.get(chosen, "constant"), "train.lr_scheduler")
    if chosen == "constant_with_warmup":
        warmup = t.number("train.lr_scheduler_params", "num_warmup_steps", 1000)
        why = "batches there, optimizer steps here" if t.batches > 1 else ""
        t.take("schedule.warmup", float(optimizer_steps(warmup, t.batches)), *names, why=why)
    elif chosen.startswith("cosine") and chosen in known:
        lowest = t.number("train.lr_scheduler_params", "eta_min", 0.0)
        t.take("schedule.final_share", min(1.0, lowest / t["train.lr"]) if t["train.lr"] > 0 else 0.0, *names)
    if chosen == "cosine_with_restarts":
        first = t.number("train.lr_scheduler_params", "T_0", 0) or t.number(
            "train.lr_scheduler_params", "total_iters", 0
        )
        parts = max(1, round(t["train.steps"] / first)) if first >= 1 else 1
        t.take("schedule.restarts", parts, *names)
    for name in given.keys() - {"num_warmup_steps", "eta_min", "T_0", "total_iters", "T_max", "factor"}:
        line = shown(f"lr_scheduler_params {name}", given[name])
        t.result.left.append(Line(line, why="set the schedule's settings yourself"))


OF_OPTIMIZER: dict[str, Any] = {
    "rate": _take_rate,
    "optimizer": _take_optimizer,
    "clipping": _take_clipping,
    "schedule": _take_schedule,
}
