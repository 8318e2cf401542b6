"""How settings of the model, the adapter and the optimizer become sd-scripts' arguments."""

from __future__ import annotations

import math
from typing import Any

from modules.config.describe import settings_by_path
from modules.importers.sd_scripts_model import DTYPES, LYCORIS, NETWORK_NUMBERS, parameters_of
from modules.importers.SdScriptsArguments import SdScriptsArguments, full_path

PRESETS = {"attention": "attn-only", "attention_mlp": "attn-mlp"}  # of LyCORIS, by our targets
OF_LYCORIS = ("loha", "lokr", "ia3")
IN_PLAIN = ("conv_dim", "conv_alpha", "rank_dropout", "module_dropout", "loraplus_lr_ratio")
IN_DYLORA = ("unit", "conv_dim", "conv_alpha", "loraplus_lr_ratio")
_BASE = "pretrained_model_name_or_path"


def export_model(export: SdScriptsArguments) -> None:
    """The base model and its parts."""
    model = export.config.model
    own_file = model.denoiser if export.is_flow else ""
    export.put(_BASE, full_path(own_file or model.base, may_be_name=True) or None)
    if export.is_flow and not str(own_file or model.base).endswith(".safetensors"):
        export.to_do.append(f"{_BASE}: name the .safetensors file of the model; sd-scripts reads no other format of it")
    vae = export.facts.get("vae", "vae")
    export.put(vae, full_path(model.vae, may_be_name=True) or None)
    names = export.facts.get("text_encoders", [])
    for name, path in zip(names, model.text_encoders, strict=False):
        export.put(name, full_path(path, may_be_name=True))
    for name in export.facts.get("needs", []):
        if name not in export.arguments:
            export.to_do.append(f"{name}: name its .safetensors file, without which the script does not start")
    for name, value in export.facts.get("loss", {}).items():
        export.put(name, value)
    export.put("v_parameterization", export.active("model.prediction_type") == "v_prediction")
    export.put("zero_terminal_snr", export.active("model.zero_terminal_snr"))
    export.put("guidance_scale", export.active("diffusion.guidance"))
    if len(export.family.text_encoders) == 1:
        skip = export.active("model.clip_skip")
        export.put("clip_skip", skip if skip and skip > 1 else None)
    chunks = export.active("model.text_chunks") or 1
    export.put("max_token_length", 75 * chunks if chunks in (2, 3) else None)


def export_precision(export: SdScriptsArguments) -> None:
    """In which precision weights are held, computed with and saved."""
    model, output = export.config.model, export.config.output
    names = {dtype: name for name, dtype in DTYPES.items() if name != "no"}
    mixed = DTYPES[model.mixed_precision]
    held = mixed if mixed != "float32" and not export.method.trains_weights else "float32"
    if model.weight_dtype != held and model.weight_dtype == mixed:  # the scripts accept no other pair
        export.put(f"full_{names[mixed]}", True)
    export.put("fp8_base", model.denoiser_quantization == "float8")
    export.put("fp8_vl", model.text_encoder_quantization == "float8")
    export.put("save_precision", names[output.dtype])
    if export.active("output.format") == "diffusers":
        export.put("save_model_as", "diffusers_safetensors")
    export.put("cpu_offload_checkpointing", export.active("model.activation_offloading"))
    export.put("blocks_to_swap", export.active("model.blocks_to_swap") or None)


def export_network(export: SdScriptsArguments) -> None:
    """The adapter: sd-scripts' own LoRA where it trains the same layers, else that of LyCORIS."""
    if not export.method.trains_adapters:
        return
    lora, convolutions = export.config.lora, export.active("lora.conv_rank") is not None
    settings = _network_settings(export)
    adapter = lora.adapter if lora.adapter in OF_LYCORIS else "lora"
    only_attention = export.config.denoiser.include_layers == "*attentions*"
    has_own_layers = export.is_unet and not convolutions and not only_attention
    module, arguments = _own_module(export), []
    if adapter in OF_LYCORIS or lora.targets in PRESETS or has_own_layers or settings.keys() - {*IN_PLAIN, "unit"}:
        module, arguments = "lycoris.kohya", [f"algo={adapter}", f"preset={PRESETS.get(lora.targets, 'full')}"]
        export.to_do.append("network_module lycoris.kohya: install the package lycoris-lora")
        settings.pop("unit", None)
    elif "unit" in settings and export.is_unet:
        module = "networks.dylora"
        settings = {name: value for name, value in settings.items() if name in IN_DYLORA}
    else:
        settings.pop("unit", None)
    export.put("network_module", module)
    export.put("network_args", arguments + [f"{name}={value}" for name, value in settings.items()] or None)
    export.put("network_dim", lora.rank)
    export.put("network_alpha", export.active("lora.alpha"))
    export.put("network_dropout", export.active("lora.dropout") or None)
    export.put("scale_weight_norms", export.active("lora.max_norm"))
    export.put("network_weights", full_path(lora.start_from, may_be_name=True) or None)


def _own_module(export: SdScriptsArguments) -> str:
    modules = export.program.facts["modules"]
    return next((name for name, script in modules.items() if script == export.script), "networks.lora")


def _network_settings(export: SdScriptsArguments) -> dict[str, Any]:
    """The settings of the adapter that have effect and are not at their default, by the names of `network_args`."""
    if export.config.lora.adapter not in LYCORIS.values():
        return {}
    found: dict[str, Any] = {}
    for name, (setting, _) in NETWORK_NUMBERS.items():
        path = f"lora.{setting}"
        value = export.active(path)
        is_written = setting in [NETWORK_NUMBERS[other][0] for other in found]
        if value is not None and value != settings_by_path()[path].default and not is_written:
            found[name] = value
    return found


def export_optimizer(export: SdScriptsArguments) -> None:
    """The optimizer with its parameters, where they are not those of sd-scripts' class."""
    config = export.config.optimizer
    kind, facts = _optimizer(export)
    if facts.get("class"):
        kind = kind if "." not in kind else f"pytorch_optimizer.{facts['class']}"
    export.put("optimizer_type", kind)
    words = []
    if facts["here"] == config.name:
        words = _parameters(export, facts)
    if facts["here"] == "adafactor":
        words += ["relative_step=False", f"scale_parameter={config.adafactor_scale_parameter}", "warmup_init=False"]
    if facts["here"] == "other" and config.other_arguments:
        words += [word.strip().replace(" ", "") for word in _split(config.other_arguments)]
    export.put("optimizer_args", words or None)
    is_fused = export.active("optimizer.fused_backward") and facts["here"] == "adafactor"
    export.put("fused_backward_pass", bool(is_fused))


def _optimizer(export: SdScriptsArguments) -> tuple[str, dict[str, Any]]:
    """What sd-scripts calls the optimizer, and the table's facts about it; AdamW's if there is nothing like it."""
    config, table = export.config.optimizer, export.program.facts["optimizers"]
    in_ram = bool(export.active("optimizer.state_in_ram"))
    if config.name == "other":
        found = {name: facts for name, facts in table.items() if facts.get("class") == config.other_name}
        library = {"here": "other", "class": config.other_name, "weight_decay": 0.0}
        return next(iter(found.items()), (f"pytorch_optimizer.{config.other_name}", library))
    same = [(name, facts) for name, facts in table.items() if facts["here"] == config.name]
    same.sort(key=lambda item: bool(item[1].get("paged")) != in_ram)
    return same[0] if same else ("adamw", table["adamw"])


def _parameters(export: SdScriptsArguments, facts: dict[str, Any]) -> list[str]:
    config, words = export.config.optimizer, []
    if facts["here"] != "other" and "betas" in facts:
        names = ("beta1", "beta2", "came_beta3")[: len(facts["betas"])]
        betas = [getattr(config, name) for name in names]
        if betas != list(facts["betas"]):
            words.append(f"betas={','.join(map(repr, betas))}")
    for name, setting in parameters_of(facts["here"]).items():
        value = export.active(f"optimizer.{setting}")
        if value is not None and not _is_same(
            value, facts.get(name, settings_by_path()[f"optimizer.{setting}"].default)
        ):
            words.append(f"{name}={value!r}")
    return words


def _is_same(value: Any, other: Any) -> bool:
    if isinstance(value, float) and isinstance(other, (int, float)):
        return math.isclose(value, other, rel_tol=1e-12)
    return bool(value == other)


def _split(arguments: str) -> list[str]:
    """The arguments of a call, between commas outside brackets."""
    words, depth = [""], 0
    for character in arguments:
        depth += (character in "([{") - (character in ")]}")
        if character == "," and not depth:
            words.append("")
        else:
            words[-1] += character
    return [word for word in words if word.strip()]
