"""Parts that settings name on the Hub are downloaded for training and samples, or refused in one sentence."""

from __future__ import annotations

import shutil
from collections.abc import Iterator

import pytest
import torch

from modules.config.ModelConfig import ModelConfig
from modules.families.registry import FAMILIES
from modules.machine.hub_parts import PARTS, HubPart, hub_part
from modules.weights.BaseModel import BaseModel
from modules.weights.errors import WeightsError
from modules.weights.hub_parts import check_parts_on_hub, with_parts_on_disk
from modules.weights.load_pipeline import load_pipeline
from tests.machine.test_hub import go_offline, use_endpoint
from tests.support.hub_server import HubServer

WEIGHTS = "diffusion_pytorch_model.safetensors"
VAE, MODEL, UNET = "somebody/vae", "somebody/model", "somebody/split/diffusion_models/unet.safetensors"
CLIP = "somebody/split/clip_l.safetensors"


@pytest.fixture
def hub(tiny_sd15, tmp_path, monkeypatch) -> Iterator[HubServer]:
    from huggingface_hub import constants

    vae, split = shutil.copytree(tiny_sd15 / "vae", tmp_path / "vae"), tmp_path / "split"
    shutil.copy(vae / WEIGHTS, vae / "sdxl_vae.safetensors")
    (split / "diffusion_models").mkdir(parents=True)
    shutil.copy(tiny_sd15 / "unet" / WEIGHTS, split / "diffusion_models" / "unet.safetensors")
    shutil.copy(tiny_sd15 / "text_encoder" / "model.safetensors", split / "clip_l.safetensors")
    server = HubServer({VAE: vae, MODEL: tiny_sd15, "somebody/split": split})
    use_endpoint(monkeypatch, server.endpoint)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    with server.running():
        yield server


@pytest.mark.parametrize(("vae", "denoiser"), [(VAE, UNET), (MODEL, f"{MODEL}/unet")])
def test_they_are_downloaded_once_and_used(vae, denoiser, hub, tiny_sd15, monkeypatch):
    parts = {"vae": vae, "denoiser": denoiser, "text_encoders": [CLIP]}
    model = ModelConfig(base=str(tiny_sd15), **parts)
    check_parts_on_hub(model)
    assert hub.asked == []
    there = with_parts_on_disk(model)
    assert (there.vae, there.denoiser, there.text_encoders) == ("", "", [])
    base = BaseModel(FAMILIES["sd15"], model, torch.device("cpu"))
    folder = "vae/" if vae == MODEL else ""
    of_denoiser = ["diffusion_models/unet.safetensors"] if denoiser == UNET else ["unet/config.json", f"unet/{WEIGHTS}"]
    assert sorted(hub.asked) == sorted(
        [f"{folder}config.json", f"{folder}{WEIGHTS}", *of_denoiser, "clip_l.safetensors"]
    )
    go_offline(monkeypatch)
    check_parts_on_hub(model)
    assert base.component_files("text_encoder")[0].name == "clip_l.safetensors"
    base.require("vae", "unet", "text_encoder")
    pipe = load_pipeline(str(tiny_sd15), {}, torch.device("cpu"), dtype="float32", **parts)
    for part in ("vae", "unet", "text_encoder"):
        expected = getattr(pipe, part).state_dict()
        assert all(torch.equal(value, expected[name]) for name, value in base.module(part).state_dict().items())
    assert with_parts_on_disk(model).denoiser.endswith("/unet.safetensors" if denoiser == UNET else "/unet")


@pytest.mark.parametrize(
    ("setting", "name", "words"),
    [
        (
            "vae",
            "somebody/nothing",
            "is not a path on this machine and can't be fetched from the Hub: there is no such model",
        ),
        (
            "vae",
            "somebody/split",
            "the model has no such part on the Hub: no config.json and weights in itself or 'vae'; check the name.",
        ),
        (
            "denoiser",
            "somebody/model/transformer",
            "the model has no such part on the Hub: no config.json and weights in 'transformer'; check the name.",
        ),
        ("denoiser", "somebody/split/gone.safetensors", "the model has no such file on the Hub; check the name"),
    ],
)
def test_what_the_hub_lacks_is_refused_before_the_start(setting, name, words, hub):
    with pytest.raises(WeightsError) as caught:
        check_parts_on_hub(ModelConfig(**{setting: name}))
    assert str(caught.value).startswith(f"model.{setting} {name!r}: {words}")


def test_offline_they_are_refused_in_one_sentence(hub, tiny_sd15, monkeypatch):
    go_offline(monkeypatch)
    for act in (
        check_parts_on_hub,
        lambda model: BaseModel(FAMILIES["sd15"], model, torch.device("cpu")),
    ):
        with pytest.raises(
            WeightsError,
            match=r"^model\.vae 'somebody/vae': is not a path on this machine and .* the Hub can't be reached",
        ):
            act(ModelConfig(base=str(tiny_sd15), vae=VAE))


def test_paths_are_no_names(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "models" / "vae").mkdir(parents=True)
    for name in (
        "",
        "models/vae",
        "vae.safetensors",
        "models/x.safetensors",
        "./a/b/c.safetensors",
        "/a/b/c.safetensors",
    ):
        assert hub_part(name, PARTS["vae"]) is None
    assert hub_part("a/b", ()) is None
    assert hub_part("a/b@v1/c/d.gguf", ()) == HubPart("a/b@v1/c/d.gguf", "a/b", "v1", "c/d.gguf")
    assert hub_part("a/b@v1/c", ("d",)) == HubPart("a/b@v1/c", "a/b", "v1", "", ("c",))
