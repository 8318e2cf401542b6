"""kohya's musubi-tuner: commands in scripts, files of arguments and of datasets."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from modules.config.other_programs import ForeignSetting, load_program
from modules.importers.attention import take_switched_attention
from modules.importers.command_lines import ScriptCommand, read_commands, words_of
from modules.importers.foreign_values import shown
from modules.importers.ImportResult import ImportResult, Line
from modules.importers.musubi_data import OF_DATA, is_dataset, take_dataset
from modules.importers.MusubiTranslation import MusubiTranslation, argument_names, musubi_tuner
from modules.importers.read_file import TEXT_ENDINGS, read_content
from modules.importers.sd_scripts_data import OF_DATA as OF_PROMPTS
from modules.importers.sd_scripts_model import OF_MODEL
from modules.importers.sd_scripts_training import OF_TRAINING, take_flow_weights
from modules.importers.SdScriptsTranslation import SdScriptsTranslation

FILES = "musubi-tuner's commands (.sh, .bat, .ps1) and files of arguments and of datasets (.toml)"
_DTYPES = {"float": "float32", "fp32": "float32", "fp16": "float16", "bf16": "bfloat16"}


def recognizes(path: Path, content: Any) -> bool:
    """Whether a file with this content is of musubi-tuner."""
    if isinstance(content, str):
        return path.suffix.lower() in TEXT_ENDINGS and bool(_commands(path, content))
    if not isinstance(content, Mapping) or path.suffix.lower() != ".toml":
        return False
    arguments = _flat(content)
    return is_dataset(content) or ("dit" in arguments and len(argument_names() & arguments.keys()) > 1)


def translate(path: Path, content: Any) -> ImportResult:
    """The settings of a file that `recognizes` knows. Raises UserError if Chorus lacks its model."""
    if isinstance(content, str):
        first, *others = _commands(path, content)
        result = _of_command(first, path.parent)
        for other in others:
            why = "only the first command of a file is imported; put this one into a file of its own"
            result.left.append(Line(f"a second command, {other.script}", why=why))
        return result
    if is_dataset(content):
        translation = MusubiTranslation({}, next(iter(musubi_tuner().facts["scripts"])), path.parent)
        take_dataset(translation, content)
        return translation.result
    arguments = _flat(content)
    module = str(arguments.get("network_module", ""))
    modules = musubi_tuner().facts["modules"]
    script = modules.get(module) or next(iter(musubi_tuner().facts["scripts"]))
    return _run(script, arguments, path.parent, is_guessed=module not in modules)


def _of_command(command: ScriptCommand, folder: Path) -> ImportResult:
    arguments = dict(command.arguments)
    name = arguments.get("config_file")
    if isinstance(name, str):
        path = folder / name
        content = read_content(path if path.suffix else path.with_suffix(".toml"))
        arguments = {**(_flat(content) if isinstance(content, Mapping) else {}), **arguments}
    before = " ".join(command.before)
    if (found := re.search(r"--mixed_precision[ =](\w+)", before)) and "mixed_precision" not in arguments:
        arguments["mixed_precision"] = found[1]
    result = _run(command.script, arguments, folder)
    if "--num_processes" in before or "--multi_gpu" in before:
        result.left.append(Line(before[:200], why="Chorus starts its processes itself: see enable_multi_gpu"))
    for word in command.rest[:20]:
        result.left.append(Line(shown("a word", word), why="it belongs to no argument"))
    return result


def _flat(content: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of a file, whose sections have names that mean nothing."""
    result: dict[str, Any] = {}
    for name, value in content.items():
        result |= value if isinstance(value, Mapping) else {name: value}
    return {str(name).replace("-", "_"): value for name, value in result.items()}


def _run(script: str, arguments: Mapping[str, Any], folder: Path, is_guessed: bool = False) -> ImportResult:
    table, known = musubi_tuner(), argument_names()
    given = {
        name: words_of(value) if table.settings[name].kind == "list" and isinstance(value, str) else value
        for name, value in arguments.items()
        if name in known
    }
    t = MusubiTranslation(given, script, folder)
    why = "the file does not say for which script it is: set family, if it is for another model" if is_guessed else ""
    theirs = f"script {script}" + (f", {t.theirs(*t.chosen_by)}" if t.chosen_by else "")
    t.take_line("family", t.family.name, theirs, why)
    t.take_line("method", t.method.name, f"script {script}", why)
    t.take_line("lr_scaling", "none", f"script {script}")
    t.take_line("output.format", "single_file", f"script {script}")
    if t.method.chooses_parts:
        t.take_line("text_encoder.train", False, f"script {script}")
        t.take_line("denoiser.train", True, f"script {script}")
    result = t.run(OF_PROMPTS | OF_MODEL | OF_TRAINING | OF_OWN | OF_DATA)
    for name in arguments.keys() - known:
        t.note_unknown(name, arguments[name])
    return result


def _commands(path: Path, text: str) -> list[ScriptCommand]:
    scripts = load_program("musubi_tuner").facts["scripts"]
    return read_commands(text, scripts, path.suffix.lower() not in (".sh", ".bash"))


def _take_denoisers(t: SdScriptsTranslation, setting: ForeignSetting) -> None:
    """The files of the transformers; of two experts, the one for much noise comes first here."""
    name = "override_dit" if t.is_given("override_dit") else "dit"
    if not t.is_given(name):
        return
    why = "the file holds the transformer alone: set model.base to the model's folder or its name on the Hub"
    if len(t.family.denoisers) == 1:
        t.take("model.denoiser", t[name], name, why=why)
        return
    if t.is_given("dit_high_noise"):
        t.take("model.denoiser", t["dit_high_noise"], "dit_high_noise", why=why)
        t.take("model.denoiser_2", t[name], name, why=why)
        return
    is_high = _timestep_range(t)[0] >= 500
    t.take("denoiser.expert", "high" if is_high else "low", name, why="by min_timestep, as one of the two is given")
    t.take("model.denoiser" if is_high else "model.denoiser_2", t[name], name, why=why)
    t.result.left.append(
        Line("min_timestep, max_timestep", why="Chorus knows the timesteps of each of the two experts")
    )


def _take_text_encoders(t: SdScriptsTranslation, setting: ForeignSetting) -> None:
    names = [one.name for one in t.program.settings.values() if one.by == setting.by and t.is_given(one.name)]
    if names:
        t.take("model.text_encoders", [t[name] for name in names], *names)


def _take_save_precision(t: SdScriptsTranslation, setting: ForeignSetting) -> None:
    held = "bf16" if t["full_bf16"] else "fp16" if t["full_fp16"] else "fp32"
    t.take("output.dtype", _DTYPES.get(t["save_precision"] or held, "float32"), "save_precision")


def _take_precision(t: SdScriptsTranslation, setting: ForeignSetting) -> None:
    if t["mixed_precision"]:
        t.take("model.mixed_precision", t["mixed_precision"], "mixed_precision")
    else:
        why = "that of accelerate's own settings there"
        t.take("model.mixed_precision", "bf16", "mixed_precision", why=why)


def _take_weights(t: SdScriptsTranslation, setting: ForeignSetting) -> None:
    OF_MODEL["precision"](t, setting)
    if not t["mixed_precision"] and not t.method.trains_weights:
        t.take("model.weight_dtype", "bfloat16", "mixed_precision", why="that of the model's file there")


def _take_text_precision(t: SdScriptsTranslation, setting: ForeignSetting) -> None:
    names = [one.name for one in t.program.settings.values() if one.by == setting.by]
    if any(t[name] for name in names):
        t.take("model.text_encoder_quantization", "float8", *names)


def _take_schedule(t: SdScriptsTranslation, setting: ForeignSetting) -> None:
    if t["lr_scheduler"].lower() != "rex" or t["lr_scheduler_type"]:
        OF_TRAINING["schedule"](t, setting)
        return
    facts = t.program.facts["rex"]
    share = t["lr_scheduler_min_lr_ratio"]
    t.take("schedule.name", "rex", "lr_scheduler")
    t.take("schedule.rex_d", facts["d"], "lr_scheduler")
    t.take("schedule.final_share", facts["final_share"] if share is None else share, "lr_scheduler_min_lr_ratio")


def _timestep_range(t: SdScriptsTranslation) -> tuple[int, int]:
    """The lowest and highest timestep, of which 1000 is noise alone."""
    low, high = t["min_timestep"] or 0, t["max_timestep"] or 1000
    return (1000 - high, 1000 - low) if t["timestep_sampling"] == "sigma" else (low, high)


def _take_timestep_range(t: SdScriptsTranslation, setting: ForeignSetting) -> None:
    low, high = _timestep_range(t)
    why = ""
    if t["timestep_sampling"] == "sigma" and (low, high) != (0, 1000):
        why = "with sigma, timesteps are counted from noise to image there"
        why += "" if t["discrete_flow_shift"] == 1 else ", and shifted after they are limited"
    t.take("diffusion.min_timestep", low, "max_timestep" if why else "min_timestep", why=why)
    t.take("diffusion.max_timestep", high, "min_timestep" if why else "max_timestep", why=why)


def _take_timesteps(t: SdScriptsTranslation, setting: ForeignSetting) -> None:
    sampling = t["timestep_sampling"]
    if sampling.startswith("qinglong"):
        t.leave("a mixture of three; Chorus draws from the one in its middle", "timestep_sampling")
    if sampling == "logsnr":
        why = "the logit of a timestep is half of the logarithm of the signal-to-noise ratio, with the other sign"
        t.take("diffusion.timesteps", "logit_normal", "timestep_sampling")
        t.take("diffusion.logit_normal_mean", -t["logit_mean"] / 2, "logit_mean", why=why)
        t.take("diffusion.logit_normal_std", t["logit_std"] / 2, "logit_std", why=why)
        t.take("diffusion.shift_by", "none", "timestep_sampling")
    elif sampling.startswith("qinglong") or sampling.endswith("_shift"):
        kind = "uniform" if sampling.startswith("ideogram") else "logit_normal"
        t.take("diffusion.timesteps", kind, "timestep_sampling")
        if kind == "logit_normal":
            t.take("diffusion.logit_normal_mean", 0.0, "timestep_sampling")
            t.take("diffusion.logit_normal_std", t["sigmoid_scale"], "sigmoid_scale")
        t.take("diffusion.shift_by", "resolution", "timestep_sampling")
    else:
        OF_TRAINING["timesteps"](t, setting)
    if sampling == "logsnr" or sampling.startswith("qinglong") or sampling.endswith("_shift"):
        take_flow_weights(t)


def _take_attention(t: SdScriptsTranslation, setting: ForeignSetting) -> None:
    take_switched_attention(t, "flash3", "flash_attn", "xformers", "sage_attn", "sdpa")


OF_OWN: dict[str, Any] = {
    "attention": _take_attention,
    "chosen": lambda t, setting: None,  # before all others
    "denoisers": _take_denoisers,
    "musubi_text_encoders": _take_text_encoders,
    "musubi_save_precision": _take_save_precision,
    "musubi_precision": _take_precision,
    "musubi_text_precision": _take_text_precision,
    "precision": _take_weights,
    "timesteps": _take_timesteps,
    "timestep_range": _take_timestep_range,
    "schedule": _take_schedule,
}
