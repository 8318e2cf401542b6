"""LECO, and the scripts of concept sliders' authors: a file of settings (.yaml) and the prompts file that it names."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from modules.config.families import load_families
from modules.config.methods import METHODS
from modules.config.other_programs import ForeignSetting, load_program
from modules.config.TrainConfig import TrainConfig
from modules.importers.attention import take_switched_attention
from modules.importers.foreign_values import shown
from modules.importers.ImportResult import ImportResult, Line
from modules.importers.intervals import take_interval
from modules.importers.leco_prompts import take_prompts
from modules.importers.optimizer_values import argument_text, library_arguments, take_betas, take_parameters
from modules.importers.read_file import find_beside, read_content
from modules.importers.Translation import Translation

FILES = "LECO's settings and prompts (.yaml)"
_OF_PROMPTS = {"target", "positive", "unconditional", "neutral", "action", "guidance_scale"}
_MANY_EPOCHS = 100_000  # so that the steps decide
_GUIDANCE = 3.0  # with which its base model draws
_LOWEST_SHARE = 0.01  # of the learning rate, of both cosines
_BY_NAME = "its name tells; set family, if the other script of the two trained it"
_ARGUMENTS = "optimizer_args "  # before the name of one, in lines


def recognizes(path: Path, content: Any) -> bool:
    """Whether a file with this content is of LECO."""
    if isinstance(content, Mapping):
        return "prompts_file" in content and isinstance(content.get("pretrained_model"), Mapping)
    if not isinstance(content, list) or not content:
        return False
    return all(isinstance(one, Mapping) and "target" in one and len(_OF_PROMPTS & one.keys()) > 1 for one in content)


def translate(path: Path, content: Any) -> ImportResult:
    """The settings of a file that `recognizes` knows."""
    if isinstance(content, list):
        t = Translation(load_program("leco"), {})
        _take_method(t)
        take_prompts(t, content)
        return t.result
    t = Translation(load_program("leco"), content)
    t.folder = path.parent
    name = t["pretrained_model.name_or_path"] or ""
    t.take(
        "family", _family(t, f"{Path(name).name} {path.stem}".lower()), "pretrained_model.name_or_path", why=_BY_NAME
    )
    _take_method(t)
    t.take_line("lr_scaling", "none", "train.lr", is_given=False)
    t.take_line("tensorboard", False, "logging", is_given=False)
    t.take_line("optimizer.max_grad_norm", 0.0, "train", is_given=False)
    t.take_line("model.gradient_checkpointing", False, "train", is_given=False)
    return t.run(_CONVERSIONS)


def _family(t: Translation, names: str) -> str:
    """The one whose mark is in the names of the model and of the file; they don't say which script reads them."""
    families: dict[str, str] = t.program.facts["families"]
    return next(family for mark, family in families.items() if mark in names)


def _take_method(t: Translation) -> None:
    slider = next(one for one in METHODS.values() if one.draws_images(TrainConfig()))
    why = "LECO trains strength 1 alone; -1 is trained the other way here, too"
    t.take_line("method", slider.name, "a slider", why)


def _take_prompts(t: Translation, setting: ForeignSetting) -> None:
    name = t["prompts_file"] or ""
    path = find_beside(name, t.folder) or find_beside(Path(name).name, t.folder)
    content = read_content(path) if path is not None and path.is_file() else None
    if isinstance(content, list):
        take_prompts(t, content)
    else:
        t.leave("the file was not found or holds no prompts: import it behind this one", "prompts_file")


def _take_base(t: Translation, setting: ForeignSetting) -> None:
    path = t[setting.name] or ""
    if path.lower().endswith(".ckpt"):
        t.leave("Chorus reads no .ckpt files, which can hold programs: convert it to .safetensors", setting.name)
    else:
        t.take("model.base", path, setting.name)


def _take_prediction(t: Translation, setting: ForeignSetting) -> None:
    is_v = t[setting.name]
    if is_v and "v_prediction" not in _predictions(t):
        t.leave("the script for this model ignores it", setting.name)
        is_v = False
    t.take("model.prediction_type", "v_prediction" if is_v else "epsilon", setting.name)


def _predictions(t: Translation) -> tuple[str, ...]:
    """What LECO's script for the model can train: the one of Stable Diffusion XL knows no v prediction."""
    encoders = len(load_families()[t.result.values["family"]].text_encoders)
    return ("epsilon", "v_prediction") if encoders == 1 else ("epsilon",)


def _take_layers(t: Translation, setting: ForeignSetting) -> None:
    names = ("network.type", "network.training_method")
    kind, trained, layers = t[names[0]].lower(), t[names[1]].lower(), t.program.facts["layers"]
    default = t.program.settings[names[1]].default
    if kind not in ("lierla", "c3lier"):
        t.leave("LECO has lierla and c3lier: lierla is used", names[0])
    if trained not in layers:
        t.leave(f"LECO has no such training_method: {default} is used", names[1])
        trained = default
    why = "" if trained == default else "as the scripts of concept sliders' authors have it"
    t.take("denoiser.include_layers", layers[trained][kind == "c3lier"], *names, why=why)
    t.take("lora.targets", "linear_conv", "network.type")


def _take_rank(t: Translation, setting: ForeignSetting) -> None:
    rank, alpha = t["network.rank"], t["network.alpha"]
    t.take("lora.rank", rank, "network.rank")
    t.take("lora.alpha", alpha or float(rank), "network.alpha", why="" if alpha else "0 is the rank there")


def _take_precision(t: Translation, setting: ForeignSetting) -> None:
    dtypes, name = t.program.facts["dtypes"], "train.precision"
    held = dtypes.get(t[name].lower())
    if held is None:
        t.leave("LECO has no such precision: bfloat16 is used", name)
        held = "bfloat16"
    t.take("model.weight_dtype", held, name)
    why = "" if held == "float32" else "what trains is in float32 here"
    t.take("model.mixed_precision", {"bfloat16": "bf16", "float16": "fp16"}.get(held, "no"), name, why=why)
    own = t["save.precision"]
    why = "" if dtypes.get(own.lower()) == held or not t.is_given("save.precision") else "LECO saves in train.precision"
    t.take("output.dtype", held, "save.precision", why=why)
    t.take("output.format", "single_file", "save.precision")


def _take_scheduler(t: Translation, setting: ForeignSetting) -> None:
    if t[setting.name].lower() != "ddim":
        t.leave("the base model draws by the steps of DDIM here", setting.name)


def _take_denoising(t: Translation, setting: ForeignSetting) -> None:
    steps = max(2, t[setting.name])
    why = "the base model draws in slider.denoising_steps here, in up to this number of them there, with the LoRA on"
    t.leave(why, setting.name)
    t.take_line("slider.denoising_guidance", _GUIDANCE, "train", is_given=False)
    t.take("diffusion.timesteps", "uniform", setting.name)
    t.take("diffusion.min_timestep", round(1000 / steps), setting.name)
    t.take("diffusion.max_timestep", round(1000 - 1000 / steps), setting.name)


def _take_length(t: Translation, setting: ForeignSetting) -> None:
    t.take("max_steps", t[setting.name], setting.name)
    t.take("epochs", _MANY_EPOCHS, setting.name)


def _take_optimizer(t: Translation, setting: ForeignSetting) -> None:
    optimizers, name = t.program.facts["optimizers"], "train.optimizer"
    facts = dict(optimizers.get(t[name].lower(), {}))
    if not facts:
        t.leave("Chorus has nothing like it: AdamW is used; choose another in optimizer.name", name)
        facts = dict(optimizers["adamw"])
    here, why, kind = facts.pop("here"), facts.pop("why", ""), facts.pop("class", None)
    t.take("optimizer.name", here, name, why=why)
    given = _arguments(t)
    values = facts | given
    if kind is not None:
        t.take("optimizer.other_name", kind, name)
        t.take_line("optimizer.weight_decay", values.pop("weight_decay"), f"{_ARGUMENTS}weight_decay")
        t.take("optimizer.other_arguments", argument_text(library_arguments(t, values, _ARGUMENTS)), name)
        return
    take_betas(t, here, values.pop("betas", None), f"{_ARGUMENTS}betas", "betas" in given)
    take_parameters(t, here, values, given, _ARGUMENTS, ())


def _arguments(t: Translation) -> dict[str, Any]:
    """Those in optimizer_args, as in "weight_decay=0.1 betas=(0.9,0.99)"."""
    found = {}
    for word in t["train.optimizer_args"].split():
        name, _, value = word.partition("=")
        try:
            read = ast.literal_eval(value)
        except (ValueError, SyntaxError, MemoryError, RecursionError):
            t.result.left.append(
                Line(shown("optimizer_args", word), why="it is not a name with a value, such as weight_decay=0.1")
            )
            continue
        found[name] = list(read) if isinstance(read, tuple) else read
    return found


def _take_schedule(t: Translation, setting: ForeignSetting) -> None:
    chosen, name = t[setting.name].lower(), setting.name
    here = {"cosine": "cosine", "cosine_with_restarts": "cosine_restarts", "step": "linear"}.get(chosen, "constant")
    why = ""
    if chosen == "cosine_with_restarts":
        why = "four cycles of the same length; the first is a tenth of the run there, each other twice the one before"
    elif chosen == "step":
        why = "a hundred small steps there"
    elif chosen == "linear":
        t.leave("LECO fails with it: the rate stays constant", name)
    elif chosen != here:
        t.leave("LECO has no such schedule: the rate stays constant", name)
    t.take("schedule.name", here, name, why=why)
    t.take_line("schedule.warmup", 0.0, "train.lr_scheduler", is_given=False)
    if here != "constant":
        t.take("schedule.final_share", 0.999**100 if here == "linear" else _LOWEST_SHARE, name)
    if here == "cosine_restarts":
        t.take("schedule.restarts", 4, name)


def _take_saving(t: Translation, setting: ForeignSetting) -> None:
    take_interval(t, "output", t[setting.name], "steps", (setting.name,))


def _take_logging(t: Translation, setting: ForeignSetting) -> None:
    t.take("wandb.enabled", t[setting.name], setting.name)
    if t[setting.name]:
        t.take("wandb.project", f"LECO_{t['save.name']}", "save.name")


def _take_attention(t: Translation, setting: ForeignSetting) -> None:
    take_switched_attention(t, setting.name)


_CONVERSIONS = {
    "prompts": _take_prompts,
    "base": _take_base,
    "prediction": _take_prediction,
    "layers": _take_layers,
    "rank": _take_rank,
    "precision": _take_precision,
    "scheduler": _take_scheduler,
    "denoising": _take_denoising,
    "length": _take_length,
    "optimizer": _take_optimizer,
    "schedule": _take_schedule,
    "saving": _take_saving,
    "logging": _take_logging,
    "attention": _take_attention,
}
