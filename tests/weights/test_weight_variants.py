"""Components whose only weights are those of a variant are those that their plain weights would give."""

from __future__ import annotations

import shutil

import diffusers
import pytest
import torch

from modules.config.ModelConfig import ModelConfig
from modules.distributed.placeholders import reader_of
from modules.families.registry import FAMILIES
from modules.weights.BaseModel import BaseModel
from modules.weights.errors import WeightsError
from modules.weights.inspect import check_base
from modules.weights.lazy_loading import load_lazily
from modules.weights.load_pipeline import load_pipeline
from modules.weights.safe import save_tensors
from tests.support.variants import rename_weights, shard

PARTS = ("unet", "vae", "text_encoder")


@pytest.fixture(scope="module")
def half(tiny_model, tmp_path_factory):
    """Kolors as it is published: nothing but fp16, the text encoder in shards; and here one of its parts in bf16."""
    folder = shutil.copytree(tiny_model("kolors"), tmp_path_factory.mktemp("half") / "kolors")
    rename_weights(folder, "fp16")
    shard(folder / "text_encoder" / "model.fp16.safetensors")
    vae = folder / "vae" / "diffusion_pytorch_model.fp16.safetensors"
    vae.rename(vae.with_name("diffusion_pytorch_model.bf16.safetensors"))
    return folder


def open_base(folder):
    base = BaseModel(FAMILIES["kolors"], ModelConfig(base=str(folder)), torch.device("cpu"))
    base.require(*PARTS)
    return base.pipe


def open_for_samples(folder):
    return load_pipeline(str(folder), {}, torch.device("cpu"), dtype="float32")


@pytest.mark.parametrize("load", [open_base, open_for_samples])
def test_training_and_sampling_load_them(load, half, tiny_model):
    loaded, plain = load(half), load(tiny_model("kolors"))
    for name in PARTS:
        got, expected = getattr(loaded, name).state_dict(), getattr(plain, name).state_dict()
        assert got.keys() == expected.keys()
        assert all(torch.equal(got[key], value) for key, value in expected.items())


@pytest.mark.parametrize("in_shards", [False, True])
def test_their_rows_are_read_by_the_rank_that_needs_them(in_shards, tiny_model, tmp_path):
    folder = rename_weights(shutil.copytree(tiny_model("flux1"), tmp_path / "flux"), "bf16") / "transformer"
    if in_shards:
        shard(folder / "diffusion_pytorch_model.bf16.safetensors")
    plain = diffusers.FluxTransformer2DModel.from_pretrained(tiny_model("flux1") / "transformer")
    lazy = load_lazily(diffusers.FluxTransformer2DModel, folder, torch.float32)
    for name, param in lazy.named_parameters():
        assert torch.equal(reader_of(param)(0, len(param)), plain.get_parameter(name))


def test_a_vae_of_its_own_may_have_them(tiny_sd15, tmp_path):
    folder = rename_weights(shutil.copytree(tiny_sd15, tmp_path / "other"), "fp16")
    base = BaseModel(FAMILIES["sd15"], ModelConfig(base=str(tiny_sd15), vae=str(folder)), torch.device("cpu"))
    base.require("vae")
    assert base.component_files("vae") == sorted((folder / "vae").iterdir())


def test_what_is_pickled_in_them_is_checked(tiny_sd15, tmp_path):
    folder = shutil.copytree(tiny_sd15, tmp_path / "model")
    (folder / "vae" / "diffusion_pytorch_model.safetensors").unlink()
    torch.save({"x": shutil.rmtree}, folder / "vae" / "diffusion_pytorch_model.fp16.bin")
    with pytest.raises(WeightsError, match=r"fp16\.bin': is damaged, or contains more"):
        check_base(str(folder), FAMILIES["sd15"])


@pytest.mark.parametrize("load", [open_base, open_for_samples])
def test_weights_that_lack_a_tensor_are_refused(load, half, tmp_path):
    folder = shutil.copytree(half, tmp_path / "model")
    save_tensors(folder / "vae" / "diffusion_pytorch_model.bf16.safetensors", {"x": torch.zeros(1)})
    with pytest.raises(WeightsError, match=r" weights (of its vae )?lack decoder\.conv_in\.bias"):
        load(folder)
