"""How OneTrainer's settings of the model, its parts and their precision become those of Chorus."""

from __future__ import annotations

import re
from pathlib import PureWindowsPath

from modules.config.families import FamilyInfo, load_families
from modules.config.methods import METHODS, MethodFacts
from modules.config.other_programs import ForeignSetting
from modules.importers.attention import take_attention
from modules.importers.Translation import Conversion, Translation

ENCODERS = ("text_encoder", "text_encoder_2", "text_encoder_3", "text_encoder_4")
QUANTIZED = {
    "FLOAT_8": ("float8", ""),
    "INT_8": ("int8", ""),
    "NFLOAT_4": ("nf4", ""),
    "FLOAT_W8A8": ("float8", "only weights are in 8 bits here, not what is computed with them"),
    "INT_W8A8": ("int8", "only weights are in 8 bits here, not what is computed with them"),
    "FLOAT_W8A8_COMPRESSED": ("float8", "only weights are in 8 bits here, not what is computed with them"),
    "INT_W8A8_COMPRESSED": ("int8", "only weights are in 8 bits here, not what is computed with them"),
}
DTYPES = {"FLOAT_32": "float32", "TFLOAT_32": "float32", "FLOAT_16": "float16", "BFLOAT_16": "bfloat16"}


def family_of(t: Translation) -> FamilyInfo:
    """The family of the model, which the importer has made sure of."""
    return load_families()[t.program.facts["families"][t["model_type"]]]


def method_of(t: Translation) -> MethodFacts:
    """The method, with the words that a LoRA may train beside itself."""
    facts = METHODS[t.choice("training_method") or next(iter(METHODS))]
    if facts.trains_adapters and trains_words_too(t):
        return next(one for one in METHODS.values() if one.trains_adapters and one.trains_words)
    return facts


def trains_words_too(t: Translation) -> bool:
    """Whether a LoRA has embeddings beside it, in a model whose words can be trained."""
    entries = t["additional_embeddings"] or []
    return any(isinstance(entry, dict) for entry in entries) and bool(family_of(t).embedding_keys)


def part_of(t: Translation) -> str:
    """OneTrainer's section of the denoiser."""
    return "unet" if "unet" in family_of(t).denoisers else "transformer"


def text_encoders_of(t: Translation) -> tuple[str, ...]:
    """OneTrainer's sections of the text encoders that the model has."""
    return ENCODERS[: len(family_of(t).text_encoders)]


def _take_method(t: Translation, setting: ForeignSetting) -> None:
    t.take("method", method_of(t).name, "training_method", "additional_embeddings")


def _take_family(t: Translation, setting: ForeignSetting) -> None:
    t.take("family", family_of(t).name, "model_type")


def _take_denoiser(t: Translation, setting: ForeignSetting) -> None:
    name = f"{part_of(t)}.model_name"
    t.take("model.denoiser", t[name], name)


def _take_encoder_files(t: Translation, setting: ForeignSetting) -> None:
    names = [f"{part}.model_name" for part in text_encoders_of(t) if t[f"{part}.model_name"]]
    if names:
        t.take("model.text_encoders", [t[name] for name in names], *names)


def _take_output_name(t: Translation, setting: ForeignSetting) -> None:
    path = t["output_model_destination"]
    stem = PureWindowsPath(path).name  # which also knows slashes
    stem = re.sub(r"(?i)\.(safetensors|ckpt|pt)$", "", stem) or "model"
    t.take("output.name", stem, "output_model_destination", why="Chorus saves into the folder models of workspace_dir")


def _take_output_format(t: Translation, setting: ForeignSetting) -> None:
    chosen = t["output_model_format"]
    if chosen == "INTERNAL":
        t.take(
            "output.format", "both", "output_model_format", why="backups hold what OneTrainer's internal format does"
        )
    elif "DIFFUSERS" in chosen:
        t.take("output.format", "diffusers", "output_model_format")
    elif chosen == "CKPT":
        t.take("output.format", "single_file", "output_model_format", why="written as .safetensors")
    else:
        t.take("output.format", "single_file", "output_model_format")


def _take_output_dtype(t: Translation, setting: ForeignSetting) -> None:
    chosen = t["output_dtype"]
    if chosen in DTYPES:
        t.take("output.dtype", DTYPES[chosen], "output_dtype")
    elif chosen == "FLOAT_8" and method_of(t).trains_weights and family_of(t).single_file:
        t.take("output.float8_denoiser", True, "output_dtype")
        t.take("output.dtype", "bfloat16", "output_dtype", why="of what is not in 8 bits")
    else:
        t.take("output.dtype", "bfloat16", "output_dtype", why="Chorus saves no such precision here")


def _take_denoiser_dtype(t: Translation, setting: ForeignSetting) -> None:
    name = f"{part_of(t)}.weight_dtype"
    chosen = t[name]
    if chosen in DTYPES:
        t.take("model.weight_dtype", DTYPES[chosen], name)
        return
    kind, why = QUANTIZED.get(chosen, ("none", ""))
    t.take("model.weight_dtype", "bfloat16", name, why="of the layers that are not quantized")
    if method_of(t).trains_weights:
        t.leave("weights that train can't be quantized here; they are held in bfloat16, which takes more memory", name)
    elif kind == "none" and chosen.startswith("GGUF"):
        t.leave("a GGUF file stays as it is quantized: name it in model.denoiser", name)
    elif kind == "none":
        t.leave("set model.denoiser_quantization to save memory", name)
    else:
        t.take("model.denoiser_quantization", kind, name, why=why)


def _take_encoder_dtype(t: Translation, setting: ForeignSetting) -> None:
    parts = [f"{part}.weight_dtype" for part in text_encoders_of(t)]
    kinds = [QUANTIZED[t[name]][0] for name in parts if t[name] in QUANTIZED]
    if kinds and not method_of(t).trains_weights:
        all_same = len(kinds) == len(parts) and len(set(kinds)) == 1
        why = "" if all_same else "one precision for all text encoders here"
        t.take("model.text_encoder_quantization", kinds[0], *parts, why=why)


def _note_other_dtypes(t: Translation, setting: ForeignSetting) -> None:
    weights = t[f"{part_of(t)}.weight_dtype"]
    names = [f"{part}.weight_dtype" for part in (*text_encoders_of(t), "vae")]
    if method_of(t).trains_adapters:
        names.append("lora_weight_dtype")
    other = [name for name in names if t.is_given(name) and t[name] != weights and t[name] not in QUANTIZED]
    if other:
        t.leave("one precision for all parts here, model.weight_dtype; a LoRA trains in float32", *other)


def _take_train_dtype(t: Translation, setting: ForeignSetting) -> None:
    choice = t.choice("train_dtype")
    if choice is None:
        t.take("model.mixed_precision", "bf16", "train_dtype", why="Chorus computes in no such precision")
        return
    t.take("model.mixed_precision", choice, "train_dtype")
    if t["train_dtype"] in ("FLOAT_32", "TFLOAT_32"):
        t.take("model.tf32", t["train_dtype"] == "TFLOAT_32", "train_dtype")


def _take_checkpointing(t: Translation, setting: ForeignSetting) -> None:
    name = f"{part_of(t)}.gradient_checkpointing"
    t.take("model.gradient_checkpointing", t[name], name)


def _take_offload(t: Translation, setting: ForeignSetting) -> None:
    name = f"{part_of(t)}.offload_fraction"
    if t[name] > 0:
        t.take("model.blocks_to_swap", None, name, why="as many blocks as the memory needs, not this share of them")
        if not t[f"{part_of(t)}.gradient_checkpointing"]:
            t.take("model.gradient_checkpointing", True, name, why="swapping blocks needs it")


def _take_activation_offloading(t: Translation, setting: ForeignSetting) -> None:
    name = f"{part_of(t)}.activation_offloading"
    t.take("model.activation_offloading", t[name], name)


def _take_attention(t: Translation, setting: ForeignSetting) -> None:
    if t.is_given("attention_mechanism"):
        take_attention(t, t["attention_mechanism"], "attention_mechanism")


def _take_layer_skip(t: Translation, setting: ForeignSetting) -> None:
    names = [f"{part}_layer_skip" for part in text_encoders_of(t)]
    skips = [t[name] for name in names]
    if not any(skips):
        return
    if not family_of(t).skips_layers:
        t.leave("this model's text encoders skip no layers here", *names)
    elif len(set(skips[:2])) == 1:
        t.take("model.clip_skip", skips[0] + 1, *names, why="counted from 1 here, where 1 skips none")
    else:
        clips = [skip + 1 for skip in skips[:2]]
        t.take("model.clip_skips", clips, *names, why="counted from 1 here, where 1 skips none")


def _take_prediction(t: Translation, setting: ForeignSetting) -> None:
    if family_of(t).objective != "ddpm":
        return
    if t["rescale_noise_scheduler_to_zero_terminal_snr"]:
        name = "rescale_noise_scheduler_to_zero_terminal_snr"
        t.take("model.zero_terminal_snr", True, name)
        t.take("model.prediction_type", "v_prediction", name)
    elif t["force_v_prediction"]:
        t.take("model.prediction_type", "v_prediction", "force_v_prediction")
    elif t["force_epsilon_prediction"]:
        t.take("model.prediction_type", "epsilon", "force_epsilon_prediction")
    else:
        t.take("model.prediction_type", "auto", "force_v_prediction")


def _take_guidance(t: Translation, setting: ForeignSetting) -> None:
    if family_of(t).takes_guidance:
        t.take("diffusion.guidance", t[f"{part_of(t)}.guidance_scale"], f"{part_of(t)}.guidance_scale")


OF_MODEL: dict[str, Conversion] = {
    "method": _take_method,
    "family": _take_family,
    "denoiser": _take_denoiser,
    "text_encoder_file": _take_encoder_files,
    "output_name": _take_output_name,
    "output_format": _take_output_format,
    "output_dtype": _take_output_dtype,
    "denoiser_dtype": _take_denoiser_dtype,
    "text_encoder_dtype": _take_encoder_dtype,
    "other_dtype": _note_other_dtypes,
    "train_dtype": _take_train_dtype,
    "checkpointing": _take_checkpointing,
    "offload": _take_offload,
    "activation_offloading": _take_activation_offloading,
    "attention": _take_attention,
    "layer_skip": _take_layer_skip,
    "prediction": _take_prediction,
    "guidance": _take_guidance,
}
