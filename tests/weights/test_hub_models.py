"""Of a model on the Hub, weights are downloaded only of the parts that nothing replaces and something uses."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from transformers import Ministral3Config, Ministral3ForCausalLM

from modules.config.ModelConfig import ModelConfig
from modules.families.registry import FAMILIES
from modules.machine.hub import folder_on_disk
from modules.methods.lora_tools import merge_into_model
from modules.weights.BaseModel import BaseModel
from modules.weights.errors import WeightsError
from modules.weights.load_pipeline import load_pipeline
from modules.weights.own_parts import replaced_parts
from modules.weights.safe import load_tensors, save_tensors
from tests.machine.test_hub import go_offline, use_endpoint
from tests.support.hub_server import HubServer

NAME = "somebody/model"
WEIGHTS = "diffusion_pytorch_model.safetensors"


@pytest.fixture
def hub(tmp_path, monkeypatch) -> Iterator[HubServer]:
    """The Hub, without models, and an empty cache."""
    from huggingface_hub import constants

    server = HubServer({})
    use_endpoint(monkeypatch, server.endpoint)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    with server.running():
        yield server


def weights_sent(hub: HubServer) -> dict[str, int]:
    """Part -> bytes of its weights that were downloaded."""
    sent = {Path(name): size for name, size in hub.sent_bytes.items() if name.endswith(".safetensors")}
    return {path.parent.name: size for path, size in sent.items()}


def weights_in(folder: Path) -> dict[str, int]:
    return {path.parent.name: path.stat().st_size for path in folder.glob("*/*.safetensors")}


def open_base(family: str, **settings) -> BaseModel:
    base = BaseModel(FAMILIES[family], ModelConfig(base=NAME, **settings), torch.device("cpu"))
    base.require(*base.component_names)
    return base


def with_inner_parts(folder: Path, file: Path, prefix: str = "net.") -> str:
    """A file with Anima's transformer and, inside it, its text conditioner."""
    tensors = {f"{prefix}{name}": value for name, value in load_tensors(folder / "transformer" / WEIGHTS).items()}
    inner = load_tensors(folder / "text_conditioner" / WEIGHTS)
    save_tensors(file, tensors | {f"{prefix}llm_adapter.{name}": value for name, value in inner.items()})
    return str(file)


@pytest.mark.parametrize(
    ("given", "replaced"),
    [
        ((), set()),
        (("vae",), {"vae"}),
        (("denoiser",), {"transformer", "text_conditioner"}),
        (("vae", "denoiser"), {"vae", "transformer", "text_conditioner"}),
    ],
)
def test_no_weights_of_what_files_replace_are_downloaded(given, replaced, hub, tiny_model, tmp_path, monkeypatch):
    folder = tiny_model("anima")
    hub.models[NAME] = folder
    files = {"vae": str(folder / "vae" / WEIGHTS), "denoiser": with_inner_parts(folder, tmp_path / "anima.safetensors")}
    settings = {name: files[name] for name in given}
    open_base("anima", **settings)
    assert weights_sent(hub) == {part: size for part, size in weights_in(folder).items() if part not in replaced}
    assert {f"{part}/config.json" for part in weights_in(folder)} <= hub.sent_bytes.keys()
    go_offline(monkeypatch)
    load_pipeline(NAME, {}, torch.device("cpu"), **settings)
    assert folder_on_disk(NAME, replaced_parts(FAMILIES["anima"], ModelConfig(**settings))) is not None


def test_the_text_encoders_of_a_model_on_the_hub_are_told_by_its_configs(hub, tiny_model, monkeypatch):
    """Not by those of the published model, as FLUX.2 klein has two sizes."""
    hub.models[NAME] = folder = tiny_model("flux1")
    files = [str(folder / part / "model.safetensors") for part in ("text_encoder_2", "text_encoder")]
    config = ModelConfig(base=NAME, text_encoders=files)
    assert replaced_parts(FAMILIES["flux1"], config) >= {"text_encoder", "text_encoder_2"}
    assert sorted(hub.asked) == ["text_encoder/config.json", "text_encoder_2/config.json"]
    go_offline(monkeypatch)
    assert replaced_parts(FAMILIES["flux1"], config) >= {"text_encoder", "text_encoder_2"}
    with pytest.raises(WeightsError, match=r"^model\.base 'somebody/other' can't be fetched .* can't be reached"):
        replaced_parts(FAMILIES["flux1"], ModelConfig(base="somebody/other", text_encoders=files))


def test_weights_that_neither_training_nor_sampling_uses_are_downloaded_for_a_merged_model_only(
    hub, tiny_model, tmp_path, monkeypatch
):
    """ERNIE-Image has a language model that rewrites prompts, larger than many a denoiser."""
    folder = shutil.copytree(tiny_model("ernie_image"), tmp_path / "ernie")
    sizes = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "head_dim": 8, "vocab_size": 16}
    config = Ministral3Config(num_attention_heads=2, num_key_value_heads=2, **sizes)
    Ministral3ForCausalLM(config).save_pretrained(folder / "pe")
    shutil.copytree(folder / "tokenizer", folder / "pe_tokenizer")
    index = json.loads((folder / "model_index.json").read_text())
    index |= {"pe": ["transformers", "Ministral3ForCausalLM"], "pe_tokenizer": ["transformers", "AutoTokenizer"]}
    (folder / "model_index.json").write_text(json.dumps(index))
    hub.models[NAME] = folder
    open_base("ernie_image")
    assert weights_sent(hub) == {part: size for part, size in weights_in(folder).items() if part != "pe"}
    go_offline(monkeypatch)
    assert load_pipeline(NAME, {}, torch.device("cpu")).pe is None
    use_endpoint(monkeypatch, hub.endpoint)
    merge_into_model(NAME, {}, tmp_path / "merged")
    assert weights_sent(hub) == weights_in(folder)
    assert weights_in(tmp_path / "merged").keys() == weights_in(folder).keys()
