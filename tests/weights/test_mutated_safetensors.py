"""Whatever is wrong with a safetensors file, it is read like any other or refused in a sentence with its name."""

import json
import random
from functools import partial

import pytest
import torch

from modules.families.registry import FAMILIES
from modules.weights.embedding_files import bundled_words
from modules.weights.errors import WeightsError
from modules.weights.inspect import inspect_base
from modules.weights.lora_family import candidates
from modules.weights.lora_layers import ADAPTER_METADATA
from modules.weights.lora_math import resized
from modules.weights.lora_reading import read_layers
from modules.weights.LoraSource import LoraSource
from modules.weights.lycoris_files import read_lycoris
from modules.weights.safe import load_tensors, save_tensors
from tests.support.mutations import bounded, cases, mutated_bytes, mutated_values, refused_with

LAYER = "unet.down_blocks.0.attentions.0.transformer_blocks.0.attn1.to_q"
SD15 = FAMILIES["sd15"]
ODD_NAMES = ("\ud800", "NAME\udfff", "", "x" * 5000, "\x1b[31mNAME", "a\nb", "ü.NAME", "NAME.alpha", "unet.NAME")
READERS = {
    "tensors": load_tensors,
    "family": lambda path: candidates(LoraSource(path)),
    "base": lambda path: inspect_base(str(path)),
    "words": lambda path: bundled_words(load_tensors(path), SD15),
    "lycoris": lambda path: read_lycoris(path, SD15),
    "resized": lambda path: resized(read_layers(path, SD15), 1),
}


def write_lora(path, in_kohyas_format):
    tensors = {f"{LAYER}.lora_A.weight": torch.ones(2, 8), f"{LAYER}.lora_B.weight": torch.ones(8, 2)}
    metadata = {ADAPTER_METADATA: json.dumps({"unet.r": 2, "unet.lora_alpha": 1.5, "unet.alpha_pattern": {"to_q": 2}})}
    if in_kohyas_format:
        name = LAYER.replace(".", "_").replace("unet", "lora_unet", 1)
        tensors = {
            f"{name}.lora_down.weight": torch.ones(2, 8).half(),
            f"{name}.lora_up.weight": torch.ones(8, 2).bfloat16(),
            f"{name}.alpha": torch.tensor(1.0),
        }
    save_tensors(path, tensors, metadata)
    return path.read_bytes()


def with_header(content, rng):
    """Content with another header, whose length fits."""
    length = int.from_bytes(content[:8], "little")
    header = json.loads(content[8 : 8 + length])
    action = rng.random()
    if action < 0.2:  # else all is as it was
        place = rng.choice((header, header["__metadata__"]))
        name = rng.choice(sorted(place))
        place[rng.choice(ODD_NAMES).replace("NAME", name)] = place.pop(name)
    else:
        header = mutated_values(header, rng)
    if action > 0.7 and isinstance(header.get("__metadata__"), dict):
        header["__metadata__"][ADAPTER_METADATA] = json.dumps(
            mutated_values({"unet.r": 2, "unet.lora_alpha": 1.5}, rng)
        )
    text = json.dumps({str(name): value for name, value in header.items()}).encode()  # with \\ud800 as an escape
    return len(text).to_bytes(8, "little") + text + content[8 + length :]


@pytest.mark.parametrize("seeds", cases(500))
def test_a_mutated_file_is_read_or_refused_by_name(seeds, tmp_path, capfd):
    for seed in seeds:
        rng = random.Random(seed)
        path = tmp_path / "mutated.safetensors"
        content = write_lora(path, in_kohyas_format=rng.random() < 0.5)
        path.write_bytes(with_header(content, rng) if rng.random() < 0.6 else mutated_bytes(content, rng))
        for name, read in READERS.items():
            with bounded(seed):
                refusal = refused_with(WeightsError, partial(read, path))
            if refusal is not None:
                assert path.name in refusal or name == "resized", refusal  # which names the layer
                assert "\n" not in refusal, seed
    assert capfd.readouterr() == ("", "")
