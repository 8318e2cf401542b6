"""Mutations of a model's folder, drawn from a seed: of its index, its configs, its tokenizers and its weights."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from tests.support.planted_folders import AUTO_MAP, Canary, edit_json

Mutation = Callable[[random.Random, Path, Path], str]
INDEX_NAMES = ("model_index.json", "modular_model_index.json")
ODD: tuple[Any, ...] = (
    None, True, 0, -1, 3.5, 10**40, "", "x", "\ud800", "../..", "\x1b[2J", "a" * 5000, [], {}, [None], [[]], ["a"],
    [1, 2], ["a", "b"], ["a", "b", "c"], [None, "UNet2DConditionModel"], ["diffusers", None], ["os", "system"],
    ["builtins", "eval"], ["transformers", "pipeline"], ["transformers", "AutoModel"], ["transformers", "AutoConfig"],
    ["diffusers", "AutoModel"], ["transformers", "AutoTokenizer"], ["transformers", "AutoProcessor"],
    ["transformers", "AutoModelForCausalLM"], ["diffusers", "DiffusionPipeline"], ["evil", "Evil"],
    ["diffusers", "StableDiffusionPipeline"], ["diffusers", "Evil"], ["transformers", "PreTrainedModel"],
    ["diffusers", "utils"], ["diffusers.utils", "logging"], ["stable_diffusion", "os"], ["transformers", "BertModel"],
    ["diffusers", "UNet2DConditionModel"], ["transformers", "CLIPTokenizer"], ["diffusers", "DDIMScheduler"],
    ["diffusers", "ClassifierFreeGuidance"], {"_class_name": "Evil"}, float("nan"), 1e308,
)  # fmt: skip


def mutate(seed: int, folder: Path, canary: Path) -> str:
    """Changes the folder and returns what was done to it. canary: made by code of the folder that runs."""
    rng = random.Random(seed)
    return "; ".join(rng.choice(MUTATIONS)(rng, folder, canary) for _ in range(rng.choice((1, 1, 1, 2))))


def _index(folder: Path) -> Path:
    return next(folder / name for name in INDEX_NAMES if (folder / name).is_file())


def _parts(folder: Path) -> list[Path]:
    return sorted(path for path in folder.iterdir() if path.is_dir())


def _pick(rng: random.Random, folder: Path, *endings: str) -> Path:
    files = [file for part in _parts(folder) for file in part.iterdir() if file.name.endswith(endings)]
    return rng.choice(sorted(file for file in files if file.suffix != ".py"))


def _write(path: Path, value: Any) -> None:
    path.write_text(json.dumps(value), encoding="utf-8")


def _odd_leaf(rng: random.Random, value: Any) -> str:
    """Replaces a value somewhere inside; returns where and by what."""
    where = ""
    while True:
        keys = [*value] if isinstance(value, dict) else [*range(len(value))]
        if not keys:
            return f"{where} stays"
        key = rng.choice(keys)
        where += f"/{key}"
        inner = value[key]
        if not isinstance(inner, dict | list) or not inner or rng.random() < 0.4:
            value[key] = rng.choice(ODD)
            return f"{where} = {value[key]!r:.60}"
        value = inner


def _index_value(rng: random.Random, folder: Path, canary: Path) -> str:
    index = json.loads(_index(folder).read_text())
    name = rng.choice(sorted(index))
    index[name] = rng.choice(ODD)
    _write(_index(folder), index)
    return f"index: {name} = {index[name]!r:.60}"


def _index_entry(rng: random.Random, folder: Path, canary: Path) -> str:
    index = json.loads(_index(folder).read_text())
    if rng.random() < 0.5:
        gone = rng.choice(sorted(index))
        del index[gone]
        done = f"without {gone}"
    else:
        name = rng.choice(
            ("../evil", "", "a b", "evil", "safety_checker", "image_encoder", "self", "\ud800", "x" * 999)
        )
        index[name] = rng.choice(ODD)
        done = f"{name!r:.30} = {index[name]!r:.60}"
    _write(_index(folder), index)
    return f"index: {done}"


def _index_text(rng: random.Random, folder: Path, canary: Path) -> str:
    return _text(rng, _index(folder))


def _json_text(rng: random.Random, folder: Path, canary: Path) -> str:
    return _text(rng, _pick(rng, folder, ".json"))


def _vocabulary(rng: random.Random, folder: Path, canary: Path) -> str:
    return _text(
        rng, _pick(rng, folder, ".txt", "vocab.json", "tokenizer.json", ".model", ".jinja", "scheduler_config.json")
    )


def _text(rng: random.Random, path: Path) -> str:
    text = path.read_bytes()
    how, new = rng.choice((
        ("cut", text[: rng.randrange(len(text) + 1)]),
        ("empty", b""),
        ("a list", b"[1, 2]"),
        ("an object", b"{}"),
        ("null", b"null"),
        ("deep", b'{"a":' * 50_000),
        ("binary", rng.randbytes(200)),
        ("huge", b'{"a": "' + b"x" * (1 << 21) + b'"}'),
        ("long number", b'{"_class_name": ' + b"9" * 5000 + b"}"),
        ("flipped", bytes(byte ^ (rng.random() < 0.01) * rng.randrange(256) for byte in text[:20_000]) + text[20_000:]),
    ))  # fmt: skip
    path.write_bytes(new)
    return f"{path.parent.name}/{path.name}: {how}"


def _config_value(rng: random.Random, folder: Path, canary: Path) -> str:
    path = _pick(rng, folder, "config.json")
    value = json.loads(path.read_text())
    done = _odd_leaf(rng, value)
    _write(path, value)
    return f"{path.parent.name}/{path.name}: {done}"


def _tokenizer_value(rng: random.Random, folder: Path, canary: Path) -> str:
    path = _pick(rng, folder, "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "vocab.json")
    value = json.loads(path.read_text())
    done = _odd_leaf(rng, value)
    _write(path, value)
    return f"{path.parent.name}/{path.name}: {done}"


def _auto_map(rng: random.Random, folder: Path, canary: Path) -> str:
    path = _pick(rng, folder, "config.json")
    nested = {"model_type": "evil", "auto_map": AUTO_MAP}
    edit_json(path, auto_map=AUTO_MAP, vision_config=nested, architectures=["Evil"], tokenizer_class="Evil")
    index = json.loads(_index(folder).read_text())
    library, kind = rng.choice(
        (("transformers", "AutoModel"), ("transformers", "AutoTokenizer"), ("diffusers", "AutoModel"))
    )
    if path.parent.name in index and rng.random() < 0.5:
        old = index[path.parent.name]
        index[path.parent.name] = [library, kind, *old[2:]]
        if old[2:]:
            old[2]["type_hint"] = [library, kind]
        _write(_index(folder), index)
    return f"{path.parent.name}/{path.name}: auto_map, {index.get(path.parent.name)!r:.60}"


def _weights_bytes(rng: random.Random, folder: Path, canary: Path) -> str:
    path = _pick(rng, folder, ".safetensors")
    content = bytearray(path.read_bytes())
    header = int.from_bytes(content[:8], "little")
    if rng.random() < 0.3:
        content = content[: rng.randrange(len(content))]
    for _ in range(rng.randrange(1, 4)):
        content[rng.randrange(min(len(content), header + 8))] = rng.randrange(256) if content else 0
    path.write_bytes(content)
    return f"{path.parent.name}/{path.name}: bytes"


def _weights_header(rng: random.Random, folder: Path, canary: Path) -> str:
    path = _pick(rng, folder, ".safetensors")
    content = path.read_bytes()
    length = int.from_bytes(content[:8], "little")
    header = json.loads(content[8 : 8 + length])
    done = _odd_leaf(rng, header)
    new = json.dumps(header).encode()
    path.write_bytes(len(new).to_bytes(8, "little") + new + content[8 + length :])
    return f"{path.parent.name}/{path.name}: {done}"


def _pickle(rng: random.Random, folder: Path, canary: Path) -> str:
    path = _pick(rng, folder, ".safetensors")
    legacy = rng.random() < 0.5
    name = {"model": "pytorch_model"}.get(path.stem, path.stem)
    pickled = path.with_name(f"{name}.bin")
    torch.save({"a": torch.ones(2), "b": Canary(canary)}, pickled, _use_new_zipfile_serialization=not legacy)
    if rng.random() < 0.3:
        pickled.write_bytes(pickled.read_bytes()[: rng.randrange(pickled.stat().st_size)])
    path.unlink()
    return f"{path.parent.name}/{pickled.name}: pickle {legacy=}"


def _shards(rng: random.Random, folder: Path, canary: Path) -> str:
    path = _pick(rng, folder, ".safetensors")
    index: dict[str, Any] = {"weight_map": {"a": path.name}, "metadata": {}}
    done = _odd_leaf(rng, index)
    _write(path.with_name(f"{path.name}.index.json"), index)
    path.rename(path.with_name(f"{path.stem}-00001-of-00001.safetensors"))
    return f"{path.parent.name}: shards {done}"


MUTATIONS: tuple[Mutation, ...] = (
    _index_value, _index_value, _index_entry, _index_text, _json_text, _vocabulary, _config_value, _config_value,
    _tokenizer_value, _auto_map, _weights_bytes, _weights_header, _pickle, _shards,
)  # fmt: skip
