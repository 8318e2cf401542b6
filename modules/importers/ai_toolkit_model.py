"""How ai-toolkit's settings of the model, the network and the optimizer become settings of Chorus."""

from __future__ import annotations

from typing import Any

from modules.config.other_programs import ForeignSetting
from modules.importers.ai_toolkit_optimizer import OF_OPTIMIZER
from modules.importers.AiToolkitTranslation import AiToolkitTranslation
from modules.importers.foreign_values import shown
from modules.importers.ImportResult import Line

_FULL_RANK = 1_000_000  # more than any layer has, as ai-toolkit's own number


def _take_folder(t: AiToolkitTranslation, setting: ForeignSetting) -> None:
    name, folder = t["name"], t["training_folder"]
    if name:
        t.take("output.name", name, "name")
    if folder:
        t.take("workspace_dir", f"{folder.rstrip('/')}/{name}" if name else folder, "training_folder", "name")


def _take_base(t: AiToolkitTranslation, setting: ForeignSetting) -> None:
    path, extras = t["model.name_or_path"] or "", t["model.extras_name_or_path"]
    name = "model.name_or_path"
    if path.startswith("Comfy-Org/"):
        t.leave(
            "it holds files for ComfyUI: set model.base to the model's diffusers folder or its name on the Hub", name
        )
    elif path.lower().endswith((".ckpt", ".pt", ".bin")):
        t.leave("Chorus reads no such files, which can hold programs: convert it to .safetensors", name)
    elif t.is_flow and path.lower().endswith((".safetensors", ".gguf")):
        why = "" if extras else "the file holds the transformer alone: set model.base to the model's folder or its name"
        t.take("model.denoiser", path, name, why=why)
    elif extras and extras != path:
        t.take("model.denoiser", path, name)
    else:
        t.take("model.base", path, name)
    if extras and "model.base" not in t.result.values:
        t.take("model.base", extras, "model.extras_name_or_path")
    if t["model.unet_path"]:
        t.take("model.denoiser", t["model.unet_path"], "model.unet_path")


def _take_files(t: AiToolkitTranslation, setting: ForeignSetting) -> None:
    for one in t.program.settings.values():
        if one.by == "files" and t.is_given(one.name):
            value = t[one.name]
            t.take(one.here, [value] if one.here == "model.text_encoders" else value, one.name)


def _take_prediction(t: AiToolkitTranslation, setting: ForeignSetting) -> None:
    if not t.is_flow:
        t.take("model.prediction_type", "v_prediction" if t["model.is_v_pred"] else "auto", "model.is_v_pred")


def _take_precision(t: AiToolkitTranslation, setting: ForeignSetting) -> None:
    chosen = t.program.facts["dtypes"].get(t["train.dtype"].lower())
    if chosen is None:
        t.leave("Chorus computes in float32, bfloat16 or float16: float32 is used", "train.dtype")
        chosen = "float32"
    t.take("model.weight_dtype", chosen, "train.dtype")
    short = {"bfloat16": "bf16", "float16": "fp16"}.get(chosen, "no")
    t.take("model.mixed_precision", short, "train.dtype")


def _take_quantization(t: AiToolkitTranslation, setting: ForeignSetting) -> None:
    is_on = bool(t["model.quantize"])
    of_text = is_on if t["model.quantize_te"] is None else t["model.quantize_te"]
    if is_on and t.method.trains_weights:
        t.leave("weights that train can't be quantized here", "model.quantize")
        is_on = False
    for name, kind, path, active in (
        ("model.quantize", "model.qtype", "model.denoiser_quantization", is_on),
        ("model.quantize_te", "model.qtype_te", "model.text_encoder_quantization", of_text),
    ):
        if active:
            _take_kind(t, name, kind, path)
    if t["model.text_encoder_bits"] < 16 and not of_text:
        here = "int8" if t["model.text_encoder_bits"] == 8 else "nf4"
        t.take("model.text_encoder_quantization", here, "model.text_encoder_bits")


def _take_kind(t: AiToolkitTranslation, name: str, kind: str, path: str) -> None:
    chosen, _, recovery = t[kind].partition("|")
    here = t.program.facts["quantized"].get(chosen)
    if here is None:
        t.leave(f"Chorus has no such quantization: choose another in {path}", name, kind)
        return
    why = "" if chosen in t.program.facts["exact"] else "the nearest that Chorus has"
    t.take(path, here, name, kind, why=why)
    if recovery:
        t.leave("Chorus has no adapters that make up for quantization: quantize less", kind)


def _take_offloading(t: AiToolkitTranslation, setting: ForeignSetting) -> None:
    if not t["model.layer_offloading"] and not t["model.auto_memory"]:
        return
    names = ("model.layer_offloading", "model.auto_memory", "model.layer_offloading_transformer_percent")
    if t.method.trains_weights:
        t.leave("blocks that train can't be swapped here: share them between GPUs, or train a LoRA", *names)
        return
    why = "as many blocks as the memory needs, not a share of the layers"
    t.take("model.blocks_to_swap", None, *names, why=why)
    if not t["train.gradient_checkpointing"]:
        t.take("model.gradient_checkpointing", True, *names, why="swapping blocks needs it")


def _take_compile(t: AiToolkitTranslation, setting: ForeignSetting) -> None:
    is_on = t["model.compile"] or t["model.block_compile"]
    t.take("model.compile", "blocks" if is_on else "off", "model.compile", "model.block_compile")


def _take_experts(t: AiToolkitTranslation, setting: ForeignSetting) -> None:
    given = t.section("model.model_kwargs")
    high, low = (given.pop(name, True) is not False for name in ("train_high_noise", "train_low_noise"))
    if t.family.experts:
        expert = "both" if high == low else "high" if high else "low"
        t.take("denoiser.expert", expert, "model.model_kwargs")
        if expert == "both":
            why = "drawn for each sample here, not changed after a number of steps"
            every = t["train.switch_boundary_every"]
            t.take("diffusion.expert_share", 0.5, "train.switch_boundary_every", why=why if every > 1 else "")
    for name, value in given.items():
        if value not in (None, False, ""):
            why = "Chorus calls each model as its pipeline in diffusers does"
            t.result.left.append(Line(shown(f"model_kwargs {name}", value), why=why))


def _take_parts(t: AiToolkitTranslation, setting: ForeignSetting) -> None:
    if not t.method.chooses_parts:
        return
    trainable = set(t.method.trainable(t.family)) & set(t.family.text_encoders)
    text = bool(t["train.train_text_encoder"])
    if text and not trainable:
        t.leave("the text encoders of this model don't train here", "train.train_text_encoder")
    text = text and bool(trainable)
    denoiser = t["train.train_unet"] is not False or not text
    t.take("text_encoder.train", text, "train.train_text_encoder")
    t.take("denoiser.train", denoiser, "train.train_unet")
    used = [t["model.use_text_encoder_1"], t["model.use_text_encoder_2"]]
    if text and not all(used) and any(used) and len(trainable) > 1:
        names = ("model.use_text_encoder_1", "model.use_text_encoder_2")
        t.take("text_encoder.only", [1 if used[0] else 2], *names)


def _take_network(t: AiToolkitTranslation, setting: ForeignSetting) -> None:
    if not t.method.trains_adapters:
        return
    kind = t["network.type"].lower()
    adapter = {"lora": "lora", "locon": "lora", "lokr": "lokr", "dora": "lora"}.get(kind)
    if adapter is None:
        t.leave("Chorus has no such network: a LoRA is trained; choose another in lora.adapter", "network.type")
    t.take("lora.adapter", adapter or "lora", "network.type")
    if kind == "dora":
        t.take("lora.dora", True, "network.type")
    if adapter == "lokr":
        factor = t["network.lokr_factor"]
        t.take("lora.lokr_factor", factor if factor >= 2 else None, "network.lokr_factor")
    _take_rank(t, adapter == "lokr" and t["network.lokr_full_rank"])
    if t["network.all_layers"]:
        t.take("lora.train_norms", True, "network.all_layers", why="the norms alone")


def _take_rank(t: AiToolkitTranslation, is_whole: bool) -> None:
    if is_whole:
        names = ("network.lokr_full_rank", "network.linear")
        t.take("lora.rank", _FULL_RANK, *names, why="more than any layer has, so that the matrices are whole")
        t.take("lora.alpha", float(_FULL_RANK), *names, why="that of whole matrices")
        return
    name = "network.rank" if t.is_given("network.rank") else "network.linear"
    rank = t[name]
    t.take("lora.rank", rank, name)
    alpha, names = t["network.linear_alpha"], ("network.linear_alpha", "network.alpha")
    alpha = t["network.alpha"] if alpha is None else alpha
    if "unet" in t.family.denoisers:
        t.take("lora.alpha", alpha, *names)
    else:
        why = (
            ""
            if alpha == rank and t.is_given("network.linear_alpha")
            else "ai-toolkit sets it to the rank for transformers"
        )
        t.take("lora.alpha", float(rank), *names, why=why)


def _take_layers(t: AiToolkitTranslation, setting: ForeignSetting) -> None:
    if not t.method.chooses_parts:
        return
    given = t.section("network.network_kwargs") if t.method.trains_adapters else {}
    if t.method.trains_adapters:
        _take_targets(t)
    why = "names of layers as diffusers has them, which may differ"
    for name, path in (("ignore_if_contains", "exclude_layers"), ("only_if_contains", "include_layers")):
        patterns = [*_patterns(given.pop(name, None)), *_patterns(t[f"model.{name}"])]
        if patterns:
            names = ("network.network_kwargs", f"model.{name}")
            t.take(f"denoiser.{path}", ", ".join(patterns), *names, why=why)
    for name, value in given.items():
        if value:
            line = shown(f"network_kwargs {name}", value)
            t.result.left.append(Line(line, why="Chorus has nothing like it: see denoiser.include_layers"))


def _take_targets(t: AiToolkitTranslation) -> None:
    conv = t["network.conv"]
    if "unet" not in t.family.denoisers:
        t.take("lora.targets", "linear", "network.type")
        if t["network.transformer_only"]:
            blocks = t.program.facts["blocks"]
            t.take("denoiser.include_layers", blocks.get(t.family.name, blocks[""]), "network.transformer_only")
    elif conv:
        t.take("lora.targets", "linear_conv", "network.conv")
        t.take("lora.conv_rank", conv, "network.conv")
        alpha = t["network.conv_alpha"]
        t.take("lora.conv_alpha", float(conv) if alpha is None else alpha, "network.conv_alpha")
    else:
        why = "convolutions of 1 x 1 have none here, and have one there"
        t.take("lora.targets", "linear", "network.conv", why=why)


def _patterns(words: Any) -> list[str]:
    """Patterns for layers whose names contain one of these words, as ai-toolkit looks for them."""
    words = [words] if isinstance(words, str) else words if isinstance(words, list) else []
    texts = (str(word).removeprefix("transformer.").replace(",", "?") for word in words if word)
    return [f"*{text}*" for text in texts if text]


def _take_dropout(t: AiToolkitTranslation, setting: ForeignSetting) -> None:
    if t.method.trains_adapters:
        t.take("lora.dropout", t["network.dropout"] or 0.0, "network.dropout")


def _take_embedding(t: AiToolkitTranslation, setting: ForeignSetting) -> None:
    if not t.method.trains_words:
        return
    word = t["embedding.trigger"]
    placeholder = word.strip().strip("<>").replace(" ", "-").lower() or "embedding"
    why = "" if placeholder == word else "one lower-case word without brackets here"
    t.take("embeddings.0.placeholder", placeholder, "embedding.trigger", why=why)
    t.take("embeddings.0.vectors", t["embedding.tokens"], "embedding.tokens")
    t.take("embeddings.0.initial_text", t["embedding.init_words"], "embedding.init_words")
    t.take("embeddings.0.preserve_norm", False, "embedding.trigger")


OF_MODEL: dict[str, Any] = {
    "folder": _take_folder,
    "base": _take_base,
    "files": _take_files,
    "prediction": _take_prediction,
    "precision": _take_precision,
    "quantization": _take_quantization,
    "offloading": _take_offloading,
    "compile": _take_compile,
    "experts": _take_experts,
    "parts": _take_parts,
    "network": _take_network,
    "layers": _take_layers,
    "dropout": _take_dropout,
    "embedding": _take_embedding,
    **OF_OPTIMIZER,
}
