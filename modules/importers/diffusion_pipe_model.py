"""How diffusion-pipe's settings of the model and its adapter become settings of Chorus."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from modules.config.other_programs import ForeignSetting
from modules.importers.DiffusionPipeTranslation import DiffusionPipeTranslation
from modules.importers.foreign_values import read_as, shown
from modules.importers.ImportResult import Line

_LARGEST_RANK = 1_000_000  # with which the matrices of a LoKr are whole
_MODEL_FILES = (".safetensors", ".gguf")
_HALF = 0.5  # of the timesteps; the experts meet above it


def _take_folder(t: DiffusionPipeTranslation, setting: ForeignSetting) -> None:
    if t["output_dir"]:
        why = "a run is in this folder itself, and in one of its own below it there"
        t.take("workspace_dir", t["output_dir"], "output_dir", why=why)


def _take_base(t: DiffusionPipeTranslation, setting: ForeignSetting) -> None:
    if t["model.checkpoint_path"]:
        t.take("model.base", t["model.checkpoint_path"], "model.checkpoint_path")
    if t["model.diffusers_path"] and t.has_fact("borrowed_folders"):
        why = "it is the folder of another model: set model.base to that of this one or its name on the Hub"
        t.leave(why, "model.diffusers_path")
    elif t["model.diffusers_path"]:
        name = "model.diffusers_path"
        why = "it has to be the folder of this very model here" if t.is_given("model.transformer_path") else ""
        t.take("model.base", t[name], name, why=why)
    if t["model.ckpt_path"]:
        why = "a folder in its makers' layout: set model.base to the model's diffusers folder or its name on the Hub"
        t.leave(why, "model.ckpt_path")


def _take_denoiser(t: DiffusionPipeTranslation, setting: ForeignSetting) -> None:
    names = ("model.transformer_path", "model.diffusion_model", "model.single_file_path")
    given = [name for name in names if t[name]]
    files = [name for name in given if t[name].lower().endswith(_MODEL_FILES)]
    for name in given:
        if name not in files:
            t.leave("Chorus reads the transformer from .safetensors and .gguf files alone, or from model.base", name)
    is_high = t["model.min_t"] >= _HALF or "high" in " ".join(t[name].lower() for name in given)
    if t.family.experts:
        why = "one of the two is trained at a time there"
        t.take("denoiser.expert", "high" if is_high else "low", *(given or names[:1]), why=why)
    if files:
        why = "the file holds the transformer alone: set model.base to the model's folder or its name on the Hub"
        path = "model.denoiser_2" if t.family.experts and not is_high else "model.denoiser"
        t.take(path, t[files[0]], files[0], why="" if "model.base" in t.result.values else why)
    if len(files) > 1:
        t.leave("there is one file of the transformer here", *files[1:])


def _take_vae(t: DiffusionPipeTranslation, setting: ForeignSetting) -> None:
    for name in ("model.vae", "model.vae_path"):
        if t[name] and t[name].lower().endswith((".pt", ".pth", ".ckpt")):
            t.leave("Chorus reads no such files, which can hold programs: the VAE of model.base is used", name)
        elif t[name]:
            t.take("model.vae", t[name], name)


def _take_text_encoders(t: DiffusionPipeTranslation, setting: ForeignSetting) -> None:
    paths: list[Any] = []
    for entry in t["model.text_encoders"] or []:
        if not isinstance(entry, Mapping):
            t.result.left.append(Line(shown("text_encoders", [entry]), why="an entry has a path and a type there"))
            continue
        found = entry.get("paths", entry.get("path"))
        paths += found if isinstance(found, list) else [found]
        for name in entry.keys() - {"path", "paths", "type"}:
            t.result.left.append(Line(shown(f"text_encoders {name}", entry[name]), why=_NO_SETTING))
    singles = [one.name for one in t.program.settings.values() if one.by == setting.by and one.kind == "str"]
    paths += [t[name] for name in singles if t[name]]
    names = [name for name in ("model.text_encoders", *singles) if t.is_given(name)]
    files = [path for path in paths if isinstance(path, str) and path.lower().endswith(".safetensors")]
    if files:
        t.take("model.text_encoders", files, *names)
    for path in paths:
        if path not in files:
            why = "Chorus reads text encoders from .safetensors files alone, or from model.base"
            t.result.left.append(Line(shown("text encoder", path), why=why))


_NO_SETTING = "diffusion-pipe has no such setting"


def _take_precision(t: DiffusionPipeTranslation, setting: ForeignSetting) -> None:
    facts = t.program.facts
    own = "model.transformer_dtype" if t["model.transformer_dtype"] else "model.diffusion_model_dtype"
    chosen, of_denoiser = facts["dtypes"].get(t["model.dtype"]), t[own]
    if chosen is None:
        t.leave("Chorus computes in float32, bfloat16 or float16: bfloat16 is used", "model.dtype")
        chosen = "bfloat16"
    held = facts["dtypes"].get(of_denoiser) if t.method.trains_weights else None
    t.take("model.weight_dtype", held or chosen, "model.dtype", own)
    t.take("model.mixed_precision", facts["short"][chosen], "model.dtype")
    if of_denoiser is None or (of_denoiser in facts["dtypes"] and (held or of_denoiser == chosen)):
        return
    if of_denoiser in facts["dtypes"]:
        t.leave("all parts have the same precision here, model.weight_dtype", own)
    elif of_denoiser not in facts["quantized"]:
        t.leave("Chorus has no such precision: choose another in model.denoiser_quantization", own)
    elif t.method.trains_weights:
        t.leave("weights that train can't be quantized here", own)
    else:
        here = facts["quantized"][of_denoiser]
        why = "" if here == of_denoiser == "nf4" else "the layers are scaled to it here, which is more exact"
        t.take("model.denoiser_quantization", here, own, why=why)


def _take_text_precision(t: DiffusionPipeTranslation, setting: ForeignSetting) -> None:
    nf4 = [name for name in ("model.text_encoder_nf4", "model.llama3_4bit") if t[name]]
    if nf4:
        why = "all of the text encoders, not one alone" if nf4 == ["model.llama3_4bit"] else ""
        t.take("model.text_encoder_quantization", "nf4", *nf4, why=why)
    elif t["model.text_encoder_fp8"]:
        t.take("model.text_encoder_quantization", "float8", "model.text_encoder_fp8")


def _take_merged(t: DiffusionPipeTranslation, setting: ForeignSetting) -> None:
    """LoRA files that are merged into the model for the training, but are no part of what is saved."""
    merged: list[tuple[str, Any, float]] = [("model.merge_adapters", path, 1.0) for path in t["model.merge_adapters"]]
    for entry in t["adapter.fuse_adapters"]:
        values = entry if isinstance(entry, Mapping) else {}
        try:
            weight = read_as("float", values.get("weight", 1.0))
        except ValueError:
            weight = 0.0
        merged.append(("adapter.fuse_adapters", values.get("path"), weight))
    for name, path, weight in merged:
        if t.method.trains_weights or weight != 1 or "model.training_adapter" in t.result.values:
            why = "one LoRA of full strength, and only when a LoRA trains; merge others with scripts/lora.py"
            t.result.left.append(Line(shown(name, path), why=why))
        elif not isinstance(path, str) or not path:
            t.result.left.append(Line(shown(name, path), why="it is not the path of a LoRA file"))
        else:
            t.take("model.training_adapter", path, name)


def _take_network(t: DiffusionPipeTranslation, setting: ForeignSetting) -> None:
    if not t.method.trains_adapters:
        return
    adapters = t.program.facts["adapters"]
    kind = t["adapter.type"].lower()
    if kind not in adapters:
        t.leave("Chorus has no such adapter: a LoRA is trained; choose another in lora.adapter", "adapter.type")
        kind = t.program.settings["adapter.type"].default
    has_factor = adapters[kind]["has_factor"]
    t.take("lora.adapter", kind, "adapter.type")
    rank = min(t["adapter.rank"], _LARGEST_RANK)
    t.take("lora.rank", rank, "adapter.rank")
    t.take("lora.alpha", float(rank), "adapter.rank")
    t.take("lora.targets", "linear", "adapter.type")
    blocks = t.program.facts["blocks"]
    t.take("denoiser.include_layers", blocks.get(t.family.name, blocks[""]), "adapter.type")
    t.take("lora.dropout", 0.0 if has_factor else t["adapter.dropout"], "adapter.dropout")
    if has_factor:
        factor = t["adapter.decompose_factor"]
        t.take("lora.lokr_factor", factor if factor >= 2 else None, "adapter.decompose_factor")
        t.take("lora.rank_dropout", t["adapter.rank_dropout"], "adapter.rank_dropout")


def _take_start(t: DiffusionPipeTranslation, setting: ForeignSetting) -> None:
    path = t["adapter.init_from_existing"]
    if path and path.lower().endswith(".safetensors"):
        t.take("lora.start_from", path, "adapter.init_from_existing")
    elif path:
        file = f"{path.rstrip('/')}/adapter_model.safetensors"
        t.take("lora.start_from", file, "adapter.init_from_existing", why="the file in the folder")


def _take_prediction(t: DiffusionPipeTranslation, setting: ForeignSetting) -> None:
    if t.is_flow:
        return
    t.take("model.prediction_type", "v_prediction" if t["model.v_pred"] else "epsilon", "model.v_pred")
    t.take("model.zero_terminal_snr", t["model.v_pred"], "model.v_pred")
    if t.family.takes_chunks:
        why = "captions of more than 75 tokens are cut off here unless model.text_chunks is 2 or 3"
        t.result.left.append(Line("captions of any length", why=why, is_given=False))


def _take_connector(t: DiffusionPipeTranslation, setting: ForeignSetting) -> None:
    if t.has_fact("trains_connector") and t["model.llm_adapter_lr"] != 0:
        t.leave("the part between text encoder and transformer doesn't train here", "model.llm_adapter_lr")


def _take_guidance(t: DiffusionPipeTranslation, setting: ForeignSetting) -> None:
    if t.family.takes_guidance:
        t.take("diffusion.guidance", t["model.guidance"], "model.guidance")


OF_MODEL: dict[str, Any] = {
    "folder": _take_folder,
    "chosen": lambda t, setting: None,  # before all others
    "base": _take_base,
    "denoiser": _take_denoiser,
    "vae": _take_vae,
    "text_encoders": _take_text_encoders,
    "precision": _take_precision,
    "text_precision": _take_text_precision,
    "merged": _take_merged,
    "network": _take_network,
    "start": _take_start,
    "prediction": _take_prediction,
    "connector": _take_connector,
    "guidance": _take_guidance,
}
