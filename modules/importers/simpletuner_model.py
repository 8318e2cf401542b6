"""How SimpleTuner's settings of the model, the network and the optimizer become settings of Chorus."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from modules.config.other_programs import ForeignSetting
from modules.config.quantizations import EIGHT_BITS
from modules.importers.attention import take_attention
from modules.importers.foreign_values import read_as, shown
from modules.importers.ImportResult import Line
from modules.importers.simpletuner_optimizer import OF_OPTIMIZER
from modules.importers.SimpleTunerTranslation import SimpleTunerTranslation

_FULL_RANK = 1_000_000  # more than any layer has
_RANK, _ALPHA = 4, 1.0  # of LyCORIS, where its file has none
_PRECISIONS = {"bf16": "bfloat16", "fp16": "float16", "no": "float32", "fp32": "float32"}
_QUANTIZED = re.compile(r"(?:fp|int|nf)[48]")  # in the name of a flavour, or of its weights
_ATTENTION, _FEED_FORWARD = "Attention", "FeedForward"
_SWITCHES = {"use_tucker": "tucker", "decompose_both": "lokr_decompose_both", "dora_wd": "dora"}
_OF_LYCORIS = (
    *_SWITCHES, "algo", "linear_dim", "linear_alpha", "factor", "full_matrix", "dropout", "multiplier", "apply_preset",
    "rank_dropout", "module_dropout",
)  # fmt: skip


def _take_base(t: SimpleTunerTranslation, setting: ForeignSetting) -> None:
    path, name = t["pretrained_model_name_or_path"] or "", "pretrained_model_name_or_path"
    if not path:
        theirs = shown("model_flavour", t.flavour)
        base = t.program.facts["bases"].get(t.model, {}).get(t.flavour, "")
        if base:
            is_lost = bool(_QUANTIZED.search(t.flavour)) and not _QUANTIZED.search(base)
            why = "SimpleTuner's quantized file is not taken: set model.denoiser_quantization" if is_lost else ""
            t.take_line("model.base", base, theirs, why, is_given=t.is_given("model_flavour"))
            if denoiser := t.program.facts["denoisers"].get(f"{t.model}:{t.flavour}"):
                t.take_line("model.denoiser", denoiser, theirs, is_given=t.is_given("model_flavour"))
        elif t.flavour:
            t.result.left.append(Line(theirs, why="its weights are unknown here: set model.base"))
    elif path.lower().endswith((".ckpt", ".pt", ".bin")):
        t.leave("Chorus reads no such files, which can hold programs: convert it to .safetensors", name)
    elif t.is_flow and path.lower().endswith((".safetensors", ".gguf")):
        why = "the file holds the transformer alone: set model.base to the model's folder or its name"
        t.take("model.denoiser", path, name, why=why)
    else:
        t.take("model.base", path, name)
    for name in ("pretrained_transformer_model_name_or_path", "pretrained_unet_model_name_or_path"):
        if t.is_given(name):
            t.take("model.denoiser", t[name], name)
    if t.family.experts:
        expert = "high" if t.flavour.endswith("-high") else "low" if t.flavour.endswith("-low") else "both"
        t.take("denoiser.expert", expert, "model_flavour")


def _take_files(t: SimpleTunerTranslation, setting: ForeignSetting) -> None:
    for one in t.program.settings.values():
        if one.by == "files" and t.is_given(one.name):
            value = t[one.name]
            t.take(one.here, [value] if one.here == "model.text_encoders" else value, one.name)


def _take_prediction(t: SimpleTunerTranslation, setting: ForeignSetting) -> None:
    chosen = t["prediction_type"]
    if chosen == ("flow_matching" if t.is_flow else None) or chosen is None:
        chosen = "auto"
    elif t.is_flow or chosen not in ("epsilon", "v_prediction"):
        t.leave("the model is trained as its makers did", "prediction_type")
        chosen = "auto"
    if not t.is_flow:
        t.take("model.prediction_type", chosen, "prediction_type")
        t.take("model.zero_terminal_snr", t["rescale_betas_zero_snr"], "rescale_betas_zero_snr")


def _is_quantized(t: SimpleTunerTranslation) -> bool:
    return t["base_model_precision"] not in ("no_change", "")


def _take_precision(t: SimpleTunerTranslation, setting: ForeignSetting) -> None:
    chosen = t["mixed_precision"].lower()
    if chosen not in ("bf16", "fp16", "no"):
        t.leave("Chorus computes in bfloat16, float16 or float32: bfloat16 is used", "mixed_precision")
        chosen = "bf16"
    t.take("model.mixed_precision", chosen, "mixed_precision")
    held = t["base_model_default_dtype"] if _is_quantized(t) and t.method.trains_adapters else chosen
    dtype = _PRECISIONS.get(held, "bfloat16")
    t.take("model.weight_dtype", dtype, "base_model_default_dtype" if held is not chosen else "mixed_precision")
    t.take("output.dtype", dtype, "mixed_precision")


def _take_quantization(t: SimpleTunerTranslation, setting: ForeignSetting) -> None:
    names = {"base_model_precision": "model.denoiser_quantization"}
    names |= {f"text_encoder_{number}_precision": "model.text_encoder_quantization" for number in (4, 3, 2, 1)}
    for name, path in names.items():
        chosen = t[name]
        if chosen in ("no_change", ""):
            continue
        here = t.program.facts["quantized"].get(chosen.partition("-")[0])
        if name == "base_model_precision" and t.method.trains_weights:
            t.leave("weights that train can't be quantized here", name)
        elif here is None:
            t.leave(f"Chorus has no such quantization: choose another in {path}", name)
        else:
            t.take(path, here, name, why="" if chosen in t.program.facts["exact"] else "the nearest that Chorus has")
    _take_matmul(t)


def _take_matmul(t: SimpleTunerTranslation) -> None:
    """Products in 8 bits, and the rotation of their inputs, which SimpleTuner leaves to SDNQ."""
    matmul, rotation = "sdnq_use_quantized_matmul", "sdnq_use_hadamard"
    chosen = t["base_model_precision"]
    held = t.program.facts["quantized"].get(chosen.partition("-")[0])
    if not chosen.endswith("-sdnq") or held not in EIGHT_BITS or t.method.trains_weights:
        if given := [name for name in (matmul, rotation) if t[name]]:
            t.leave(f"products in 8 bits need a frozen model that SDNQ holds in {' or '.join(EIGHT_BITS)}", *given)
        return
    if t[matmul]:
        why = "in layers of at least model.quantized_matmul_size million weights; SDNQ: in all that it quantizes"
        t.take("model.quantized_matmul", "on", matmul, why=why)
    elif t[matmul] is None:
        t.leave("SDNQ multiplies in 8 bits where Triton is installed: set model.quantized_matmul to on", matmul)
    if t[rotation] and t[matmul]:
        why = "in groups of up to 256 inputs, as in ComfyUI's convrot"
        t.take("model.quantized_matmul_rotation", True, rotation, why=why)
    elif t[rotation]:
        why = "only layers that multiply in 8 bits are rotated here: set model.quantized_matmul and its rotation to on"
        t.leave(why, rotation)


def _take_offloading(t: SimpleTunerTranslation, setting: ForeignSetting) -> None:
    names = ("musubi_blocks_to_swap", "ramtorch", "enable_group_offload")
    number, others = t["musubi_blocks_to_swap"], t["ramtorch"] or t["enable_group_offload"]
    if number <= 0 and not others:
        return
    if t.method.trains_weights:
        t.leave("blocks that train can't be swapped here: share them between GPUs, or train a LoRA", *names)
        return
    if number > 0:
        t.take("model.blocks_to_swap", number, "musubi_blocks_to_swap")
    else:
        t.take("model.blocks_to_swap", None, *names[1:], why="as many blocks as the memory needs are in RAM here")
    if not t["gradient_checkpointing"]:
        t.take("model.gradient_checkpointing", True, *names, why="swapping blocks needs it")


def _take_compile(t: SimpleTunerTranslation, setting: ForeignSetting) -> None:
    is_off = str(t["dynamo_backend"]).lower() in ("no", "false", "none", "")
    t.take("model.compile", "off" if is_off else "blocks", "dynamo_backend")


def _take_attention(t: SimpleTunerTranslation, setting: ForeignSetting) -> None:
    name = "enable_xformers_memory_efficient_attention"
    if t.is_given("attention_mechanism") and t["attention_mechanism"] != "diffusers":
        take_attention(t, t["attention_mechanism"], "attention_mechanism")
    elif t.is_given(name) and t[name]:
        take_attention(t, name, name)


def _take_parts(t: SimpleTunerTranslation, setting: ForeignSetting) -> None:
    if not t.method.chooses_parts:
        return
    text = t["train_text_encoder"]
    if text and not set(t.method.trainable(t.family)) & set(t.family.text_encoders):
        t.leave("the text encoders of this model don't train here", "train_text_encoder")
        text = False
    t.take("text_encoder.train", text, "train_text_encoder")
    t.take("denoiser.train", True, "train_text_encoder")
    if text and t["text_encoder_lr"] is not None:
        t.take("text_encoder.learning_rate", t["text_encoder_lr"], "text_encoder_lr")


def _take_network(t: SimpleTunerTranslation, setting: ForeignSetting) -> None:
    if not t.method.trains_adapters:
        return
    if t.is_given("init_lora"):
        t.take("lora.start_from", t["init_lora"], "init_lora")
    if t["lora_type"].lower() == "lycoris":
        _take_lycoris(t)
        return
    if t["lora_type"].lower() != "standard":
        t.leave("Chorus has no such network: a LoRA is trained; choose another in lora.adapter", "lora_type")
    t.take("lora.adapter", "lora", "lora_type")
    t.take("lora.rank", t["lora_rank"], "lora_rank")
    alpha = t["lora_alpha"]
    t.take("lora.alpha", float(t["lora_rank"]) if alpha is None else alpha, "lora_alpha", "lora_rank")
    t.take("lora.dropout", t["lora_dropout"], "lora_dropout")
    t.take("lora.dora", t["use_dora"], "use_dora")
    if t["lora_init_type"] not in ("default", "gaussian"):
        t.leave("Chorus starts a LoRA as PEFT does by default", "lora_init_type")
    if t["peft_lora_mode"] != "standard":
        t.leave("Chorus has no such network: a LoRA is trained", "peft_lora_mode")


def _take_lycoris(t: SimpleTunerTranslation) -> None:
    given = t.structure("lycoris_config", dict)
    if given is None:
        t.leave("the file was not found or can't be read: set lora.adapter, lora.rank and lora.alpha", "lycoris_config")
        given = {}
    algorithm = str(given.get("algo", "lora")).lower()
    here = {"lora": "lora", "locon": "lora", "lokr": "lokr", "loha": "loha"}.get(algorithm)
    if here is None:
        why = "Chorus has no such network: a LoRA is trained; choose another in lora.adapter"
        t.result.left.append(Line(shown("algo", algorithm), why=why))
    t.take_line("lora.adapter", here or "lora", shown("algo", algorithm), is_given="algo" in given)
    _take_lycoris_size(t, given, here == "lokr")
    for name, path in _SWITCHES.items():
        if isinstance(given.get(name), bool):
            t.take_line(f"lora.{path}", given[name], shown(name, given[name]))
    for name in ("dropout", "rank_dropout", "module_dropout"):
        t.take_line(f"lora.{name}", _number(t, given, name, 0.0), shown(name, given.get(name)), is_given=name in given)
    if _number(t, given, "multiplier", 1.0) != 1:
        t.result.left.append(Line(shown("multiplier", given["multiplier"]), why="divide lora.alpha by it, or leave it"))
    for name in given:
        if name not in _OF_LYCORIS:
            t.result.left.append(Line(shown(f"lycoris_config {name}", given[name]), why="Chorus has nothing like it"))


def _take_lycoris_size(t: SimpleTunerTranslation, given: Mapping[str, Any], is_lokr: bool) -> None:
    if is_lokr:
        factor = _number(t, given, "factor", -1.0)
        here = int(factor) if factor >= 2 and factor == int(factor) else None
        t.take_line("lora.lokr_factor", here, shown("factor", given.get("factor")), is_given="factor" in given)
    if is_lokr and given.get("full_matrix") is True:
        why = "more than any layer has, so that the matrices are whole"
        t.take_line("lora.rank", _FULL_RANK, "full_matrix true", why)
        t.take_line("lora.alpha", float(_FULL_RANK), "full_matrix true", "that of whole matrices")
        return
    rank = int(_number(t, given, "linear_dim", _RANK))
    t.take_line("lora.rank", rank, shown("linear_dim", given.get("linear_dim", _RANK)), is_given="linear_dim" in given)
    alpha = _number(t, given, "linear_alpha", _ALPHA)
    theirs = shown("linear_alpha", given.get("linear_alpha", _ALPHA))
    t.take_line("lora.alpha", alpha, theirs, is_given="linear_alpha" in given)


def _number(t: SimpleTunerTranslation, given: Mapping[str, Any], name: str, default: float) -> float:
    """A finite number in the section of LyCORIS; the default if it is none."""
    value = given.get(name)
    try:
        number = default if value is None else float(read_as("float", value))
        if not -1e9 < number < 1e9:
            raise ValueError("is too large")
    except ValueError as error:
        t.result.left.append(Line(shown(f"lycoris_config {name}", value), why=f"{error}; {default:g} is used"))
        return default
    return number


def _take_layers(t: SimpleTunerTranslation, setting: ForeignSetting) -> None:
    if not t.method.chooses_parts or not t.method.trains_adapters:
        return
    if t["lora_type"].lower() == "lycoris":
        _take_preset(t)
        return
    facts, name = t.program.facts, "peft_lora_target_modules"
    given = t.structure(name, list) if t.is_given(name) else None
    own = facts["own_targets"].get(t.model)
    if t.is_given(name) and given is None:
        t.leave("the file was not found or can't be read: set denoiser.include_layers", name)
    t.take("lora.targets", "linear", name)
    if given is not None:
        words, names = [str(word) for word in given if isinstance(word, str) and word.strip()], (name,)
    elif own:
        chosen = t["flux_lora_target"]
        if chosen not in own:
            t.leave("its layers are not known here: those of all are adapted", "flux_lora_target")
        words, names = own.get(chosen, own["all"]), ("flux_lora_target",)
    else:
        words, names = facts["targets"].get(t.family.name, facts["targets"][""]), (name,)
    why = "names of layers as diffusers has them, which may differ" if given is not None else ""
    patterns = ", ".join(f"*.{word}" for word in words)
    if given is not None:
        patterns = ", ".join(_pattern(word) for word in words)
    t.take("denoiser.include_layers", patterns, *names, why=why)


def _pattern(word: str) -> str:
    """The layers that have this name, and those below others whose names end with it, as PEFT looks for them."""
    text = word.strip().replace(",", "?")
    return f"{text}, *.{text}"


def _take_preset(t: SimpleTunerTranslation) -> None:
    given = t.structure("lycoris_config", dict) or {}
    preset = given.get("apply_preset")
    preset = preset if isinstance(preset, Mapping) else {}
    modules = preset.get("target_module")
    found = {str(one) for one in modules} if isinstance(modules, list) else {_ATTENTION, _FEED_FORWARD}
    is_known = _ATTENTION in found and found <= {_ATTENTION, _FEED_FORWARD}
    if is_known:
        layers = "attention_mlp" if _FEED_FORWARD in found else "attention"
        t.take_line("denoiser.layers", layers, f"target_module {', '.join(sorted(found))}", is_given=bool(modules))
    else:
        why = "Chorus knows no such classes of layers: set denoiser.include_layers"
        t.result.left.append(Line(shown("target_module", modules), why=why))
    t.take_line("lora.targets", "linear", "apply_preset", is_given=bool(preset))
    for name, value in preset.items():
        if name != "target_module" and value:
            why = "one kind and size of adapter for all layers here, or lora.layer_ranks"
            t.result.left.append(Line(shown(str(name), value), why=why))


OF_MODEL: dict[str, Any] = {
    "base": _take_base,
    "files": _take_files,
    "prediction": _take_prediction,
    "precision": _take_precision,
    "quantization": _take_quantization,
    "offloading": _take_offloading,
    "attention": _take_attention,
    "compile": _take_compile,
    "parts": _take_parts,
    "network": _take_network,
    "layers": _take_layers,
    **OF_OPTIMIZER,
}
