"""How sd-scripts' arguments of the model, the network and the optimizer become settings of Chorus."""

from __future__ import annotations

import ast
import warnings
from typing import Any

from modules.config.library_optimizers import LIBRARY_OPTIMIZERS
from modules.config.other_programs import ForeignSetting
from modules.importers.attention import take_attention, take_switched_attention
from modules.importers.foreign_values import read_as
from modules.importers.SdScriptsTranslation import SdScriptsTranslation, pairs

LYCORIS = {"locon": "lora", "lora": "lora", "loha": "loha", "lokr": "lokr", "ia3": "ia3", "dylora": "lora"}
ENCODERS = ("clip_l", "clip_g", "t5xxl", "gemma2", "qwen3", "text_encoder", "byt5")
DTYPES = {"float": "float32", "fp16": "float16", "bf16": "bfloat16", "no": "float32"}
NETWORK_NUMBERS = {
    "conv_dim": ("conv_rank", "int"),
    "conv_alpha": ("conv_alpha", "float"),
    "rank_dropout": ("rank_dropout", "float"),
    "module_dropout": ("module_dropout", "float"),
    "loraplus_lr_ratio": ("plus_ratio", "float"),
    "dora_wd": ("dora", "bool"),
    "use_tucker": ("tucker", "bool"),
    "use_cp": ("tucker", "bool"),
    "train_norm": ("train_norms", "bool"),
    "decompose_both": ("lokr_decompose_both", "bool"),
    "train_on_input": ("ia3_on_input", "bool"),
    "unit": ("nested_unit", "int"),
    "factor": ("lokr_factor", "int"),
}
_PARAMETERS = {
    "adafactor": {"clip_threshold": "adafactor_clip_threshold", "decay_rate": "adafactor_beta2_decay"},
    "prodigy": {"d_coef": "prodigy_d_coef"},
    "sgd": {"momentum": "sgd_momentum", "nesterov": "sgd_nesterov"},
    "schedule_free": {"r": "schedule_free_power"},
}
_RELATIVE_RATE = 0.01


def _take_base(t: SdScriptsTranslation, setting: ForeignSetting) -> None:
    name = "pretrained_model_name_or_path"
    path = t[name] or ""
    if path.lower().endswith(".ckpt"):
        t.leave("Chorus reads no .ckpt files, which can hold programs: convert it to .safetensors", name)
    elif t.is_flow and path.lower().endswith((".safetensors", ".gguf")):
        why = "the file holds the transformer alone: set model.base to the model's folder or its name on the Hub"
        t.take("model.denoiser", path, name, why=why)
    else:
        t.take("model.base", path, name)


def _take_text_encoders(t: SdScriptsTranslation, setting: ForeignSetting) -> None:
    names = [name for name in ENCODERS if t.is_given(name)]
    if "t5xxl" in names and len(t.family.text_encoders) == 1:
        names = ["t5xxl"]  # the others would not be loaded
    if names:
        t.take("model.text_encoders", [t[name] for name in names], *names)


def _take_prediction(t: SdScriptsTranslation, setting: ForeignSetting) -> None:
    if t.is_flow:
        return
    kind = "v_prediction" if t["v_parameterization"] else "epsilon"
    t.take("model.prediction_type", kind, "v_parameterization")
    if t["zero_terminal_snr"] and not t["v_parameterization"]:
        t.leave("only models that predict v can be trained so here", "zero_terminal_snr")
    else:
        t.take("model.zero_terminal_snr", t["zero_terminal_snr"], "zero_terminal_snr")


def _take_precision(t: SdScriptsTranslation, setting: ForeignSetting) -> None:
    held = "bfloat16" if t["full_bf16"] else "float16" if t["full_fp16"] else "float32"
    mixed = t["mixed_precision"]
    if held == "float32" and not t.method.trains_weights and mixed in ("bf16", "fp16"):
        held = DTYPES[mixed]  # the scripts hold what doesn't train in that precision
    t.take("model.weight_dtype", held, "full_bf16", "full_fp16")
    if any(t[name] for name in ("fp8_base", "fp8_base_unet", "fp8_scaled")) and not t.method.trains_weights:
        why = "the layers are scaled to float8 here, which is more exact"
        t.take("model.denoiser_quantization", "float8", "fp8_base", "fp8_base_unet", "fp8_scaled", why=why)
    if t["fp8_vl"]:
        t.take("model.text_encoder_quantization", "float8", "fp8_vl")


def _take_network(t: SdScriptsTranslation, setting: ForeignSetting) -> None:
    if not t.method.trains_adapters:
        return
    module, arguments = t["network_module"] or "networks.lora", pairs(t["network_args"])
    adapter = "lora"
    if module.startswith("lycoris"):
        algorithm = arguments.pop("algo", "lora").lower()
        adapter = LYCORIS.get(algorithm, "")
        if not adapter:
            t.leave(f"Chorus has no {algorithm}: a LoRA is trained; choose another in lora.adapter", "network_args")
            adapter = "lora"
    elif "oft" in module:
        adapter = "oft"
    elif "loha" in module or "lokr" in module:
        adapter = "loha" if "loha" in module else "lokr"
    elif module != "networks.lora" and module not in t.program.facts["modules"] and module != "networks.dylora":
        t.leave("Chorus has no such network: a LoRA is trained", "network_module")
    t.take("lora.adapter", adapter, "network_module")
    t.take("lora.targets", _targets(t, arguments), "network_module", "network_args")
    if "unet" in t.family.denoisers and not module.startswith("lycoris"):
        t.take("denoiser.include_layers", "" if "conv_dim" in arguments else "*attentions*", "network_module")
    _take_network_arguments(t, arguments)


def _targets(t: SdScriptsTranslation, arguments: dict[str, str]) -> str:
    is_unet = "unet" in t.family.denoisers
    preset = arguments.pop("preset", "full")
    if preset in ("attn-only", "attn-mlp"):
        return "attention" if preset == "attn-only" else "attention_mlp"
    return "linear_conv" if is_unet else "linear"


def _take_network_arguments(t: SdScriptsTranslation, arguments: dict[str, str]) -> None:
    for name, text in arguments.items():
        try:
            setting, kind = NETWORK_NUMBERS[name]
            value = read_as(kind, text)
        except (KeyError, ValueError):
            _note_network_argument(t, name)
            continue
        if name == "factor" and value < 2:
            value = None
        t.take_line(f"lora.{setting}", value, f"network_args {name}={text[:40]}")


def _note_network_argument(t: SdScriptsTranslation, name: str) -> None:
    reasons = {
        "block_dims": "write the ranks of blocks as patterns in lora.layer_ranks",
        "block_alphas": "alpha is the same for all layers here",
        "down_lr_weight": "one rate for all blocks; leave blocks out with denoiser.exclude_layers",
        "mid_lr_weight": "one rate for all blocks; leave blocks out with denoiser.exclude_layers",
        "up_lr_weight": "one rate for all blocks; leave blocks out with denoiser.exclude_layers",
        "loraplus_unet_lr_ratio": "set lora.plus_ratio, which holds for all parts",
        "loraplus_text_encoder_lr_ratio": "set lora.plus_ratio, which holds for all parts",
        "exclude_patterns": "write them with * into denoiser.exclude_layers",
        "include_patterns": "write them with * into denoiser.include_layers",
    }
    t.result.left.append(_line(f"network_args {name}", reasons.get(name, "Chorus has nothing like it")))


def _line(theirs: str, why: str) -> Any:
    from modules.importers.ImportResult import Line

    return Line(theirs, why=why)


def _take_rank(t: SdScriptsTranslation, setting: ForeignSetting) -> None:
    if not t.method.trains_adapters:
        return
    rank = t["network_dim"] or 4
    alpha = t["network_alpha"]
    t.take("lora.rank", rank, "network_dim")
    is_rank = "network_alpha" in t.given and not alpha
    t.take("lora.alpha", float(rank) if is_rank else alpha, "network_alpha", why="0 is the rank" if is_rank else "")


def _take_dropout(t: SdScriptsTranslation, setting: ForeignSetting) -> None:
    t.take("lora.dropout", t["network_dropout"] or 0.0, "network_dropout")


def _take_max_norm(t: SdScriptsTranslation, setting: ForeignSetting) -> None:
    t.take("lora.max_norm", t["scale_weight_norms"] or None, "scale_weight_norms")


def _take_optimizer(t: SdScriptsTranslation, setting: ForeignSetting) -> None:
    chosen = t["optimizer_type"].rpartition(".")[2]
    name = chosen or ("AdamW8bit" if t["use_8bit_adam"] else "Lion" if t["use_lion_optimizer"] else "AdamW")
    names = ("optimizer_type", "use_8bit_adam", "use_lion_optimizer")
    facts = dict(t.program.facts["optimizers"].get(name.lower(), {}))
    library = next((one for one in LIBRARY_OPTIMIZERS if one.lower() == name.lower()), "")
    if not facts and library:
        facts = {"here": "other", "class": library, "weight_decay": 0.0}
    if not facts:
        t.leave("Chorus has nothing like it: AdamW is used; choose another in optimizer.name", *names)
        facts = t.program.facts["optimizers"]["adamw"]
    t.take("optimizer.name", facts["here"], *names, why=facts.get("why", ""))
    if facts.get("paged"):
        t.take("optimizer.state_in_ram", True, *names, why="all of the state is in system memory")
    _take_arguments(t, facts, {key: _literal(value) for key, value in pairs(t["optimizer_args"]).items()})


def parameters_of(optimizer: str) -> dict[str, str]:
    """The parameters of one of our optimizers, by what they are called in optimizer_args; without the betas."""
    has_eps = optimizer in ("adamw", "adamw_8bit", "prodigy", "schedule_free")
    return {"weight_decay": "weight_decay"} | ({"eps": "eps"} if has_eps else {}) | _PARAMETERS.get(optimizer, {})


def _take_arguments(t: SdScriptsTranslation, facts: dict[str, Any], given: dict[str, Any]) -> None:
    """The parameters of the optimizer; what is left out has the value of the other program's class."""
    values = {**{k: v for k, v in facts.items() if k not in ("here", "class", "why", "paged")}, **given}
    paths = parameters_of(facts["here"])
    betas = values.pop("betas", None)
    other = {}
    if isinstance(betas, (list, tuple)) and facts["here"] != "other":
        for name, value in zip(("beta1", "beta2", "came_beta3"), betas, strict=False):
            t.take_line(f"optimizer.{name}", value, "optimizer_args betas", is_given="betas" in given)
    elif betas is not None:
        other["betas"] = betas
    for name, value in values.items():
        if name in paths:
            t.take_line(f"optimizer.{paths[name]}", value, f"optimizer_args {name}={value}", is_given=name in given)
        elif facts["here"] == "other":
            other[name] = value
    _take_relative_step(t, facts, values)
    if "class" in facts:
        t.take_line("optimizer.other_name", facts["class"], f"optimizer_type {facts['class']}")
        text = ", ".join(f"{name}={value!r}" for name, value in other.items())
        t.take_line("optimizer.other_arguments", text, "optimizer_args")
        return
    known = {*paths, "scale_parameter", "relative_step", "warmup_init", "decouple"}
    for name in given.keys() - known - {"betas"}:
        t.result.left.append(_line(f"optimizer_args {name}", "this optimizer has no such parameter in Chorus"))


def _take_relative_step(t: SdScriptsTranslation, facts: dict[str, Any], values: dict[str, Any]) -> None:
    if facts["here"] != "adafactor":
        return
    relative = values.get("relative_step", True) is not False or values.get("warmup_init") is True
    scales = values.get("scale_parameter", True) is not False
    t.take_line("optimizer.adafactor_scale_parameter", scales, "optimizer_args scale_parameter")
    if relative:
        why = "Adafactor finds its own rate there unless relative_step=False is set, and learning_rate has no effect"
        t.take("optimizer.learning_rate", _RELATIVE_RATE, "learning_rate", why=why)
        t.finds_rate = True
        if values.get("warmup_init") is True:
            t.take_line("schedule.warmup", 10_000.0, "optimizer_args warmup_init=True")


def _literal(text: str) -> Any:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", SyntaxWarning)  # of text such as 1abc, which stays text
            return ast.literal_eval(text)
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return text


def _take_text(t: SdScriptsTranslation, setting: ForeignSetting) -> None:
    for one in t.program.settings.values():
        if one.by == "text":
            t.take_text(one)


def _take_guidance(t: SdScriptsTranslation, setting: ForeignSetting) -> None:
    if t.family.takes_guidance and t["guidance_scale"] is not None:
        t.take("diffusion.guidance", t["guidance_scale"], "guidance_scale")


def _note_model_type(t: SdScriptsTranslation, setting: ForeignSetting) -> None:
    if t["model_type"] not in (None, "flux") and not t.chosen_by:
        t.leave("set family to the model's, if Chorus has it", "model_type")


SWITCHES = ("xformers", "diffusers_xformers", "use_flash_attn", "use_sage_attn", "mem_eff_attn", "sdpa")


def _take_attention(t: SdScriptsTranslation, setting: ForeignSetting) -> None:
    if t.is_given("attn_mode") and t["attn_mode"]:
        take_attention(t, t["attn_mode"], "attn_mode")
    else:
        take_switched_attention(t, *SWITCHES)


OF_MODEL: dict[str, Any] = {
    "attention": _take_attention,
    "base": _take_base,
    "text": _take_text,
    "text_encoders": _take_text_encoders,
    "prediction": _take_prediction,
    "precision": _take_precision,
    "network": _take_network,
    "rank": _take_rank,
    "dropout": _take_dropout,
    "max_norm": _take_max_norm,
    "optimizer": _take_optimizer,
    "guidance": _take_guidance,
    "chosen": _note_model_type,
}
