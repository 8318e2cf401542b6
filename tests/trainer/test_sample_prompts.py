"""Text encoders and VAE are in memory only while they are needed, and prompts are encoded once."""

from __future__ import annotations

import pytest
import torch
from diffusers import StableDiffusionPipeline
from torch import nn
from transformers import CLIPTextModel

from modules.config.ModelConfig import ModelConfig
from modules.families.registry import FAMILIES
from modules.sampling.generation import ImageRequest, generate_images
from modules.sampling.SamplePrompts import SamplePrompts, _OnDemand
from modules.weights.BaseModel import BaseModel
from modules.weights.single_file import save_single_file

REQUEST = ImageRequest("a cat", "", seed=3, width=32, height=32, steps=2, guidance=4.0)
SAMPLE = {"prompt": "a cat", "width": 32, "height": 32, "steps": 2}
SAMPLING = tuple(f"sampling.samples.0.{name}={value}" for name, value in SAMPLE.items())


@pytest.fixture
def encoded(monkeypatch) -> list[int]:
    """The number of texts in each call of a text encoder."""
    calls, forward = [], CLIPTextModel.forward

    def recorded(self, input_ids, *args, **kwargs):
        calls.append(len(input_ids))
        return forward(self, input_ids, *args, **kwargs)

    monkeypatch.setattr(CLIPTextModel, "forward", recorded)
    return calls


def test_prompts_are_encoded_before_the_denoiser_is_loaded_and_kept_for_all_rounds(make_config, start, encoded):
    trainer = start(make_config(*SAMPLING, "sampling.at_end=true"))
    base, loaded = trainer.prepared.base, []
    encoded.clear()
    base.module("unet").register_forward_pre_hook(lambda *_: loaded.append(base.module("text_encoder")))
    trainer.sample()
    trainer.sample()
    assert len(trainer.callbacks.samples) == 2
    assert not encoded
    assert set(loaded) == {None}
    assert base.module("vae") is None  # and the step has neither


def test_without_samples_of_its_own_a_run_encodes_their_prompts_when_it_is_asked_for_some(make_config, start, encoded):
    trainer = start(make_config(*SAMPLING))
    encoded.clear()
    trainer.sample()
    first = len(encoded)
    trainer.sample()
    assert first == len(encoded) > 0


def test_a_text_encoder_that_trains_encodes_the_prompts_of_each_round(make_config, start, encoded):
    trainer = start(make_config(*SAMPLING, "sampling.at_end=true", "text_encoder.train=true"))
    encoded.clear()
    trainer.sample()
    first = len(encoded)
    trainer.sample()
    assert len(encoded) == 2 * first > 0


def test_a_new_prompt_is_encoded_and_a_known_one_is_not(tiny_sd15, encoded):
    prompts = SamplePrompts(BaseModel(FAMILIES["sd15"], ModelConfig(base=str(tiny_sd15)), torch.device("cpu")))
    prompts.encode([[REQUEST]])
    first = len(encoded)
    prompts.encode([[REQUEST]])
    assert len(encoded) == first
    prompts.encode([[REQUEST], [ImageRequest("a dog", "", 3, 32, 32, 2, 4.0)]])
    assert len(encoded) > first


def test_the_components_of_a_single_file_are_back_after_sampling(tiny_sd15, tmp_path):
    file = tmp_path / "model.safetensors"
    save_single_file(file, FAMILIES["sd15"], StableDiffusionPipeline.from_pretrained(tiny_sd15).components)
    config = ModelConfig(base=str(file), config_folder=str(tiny_sd15))
    base = BaseModel(FAMILIES["sd15"], config, torch.device("cpu"))
    before = dict(base.pipe.components)
    prompts = SamplePrompts(base)
    prompts.encode([[REQUEST]])
    with prompts.pipeline() as pipe:
        assert len(list(generate_images(pipe, [REQUEST], 1))) == 1
    after = dict(base.pipe.components)
    assert all(after[name] is before[name] for name in before if name != "scheduler")
    assert "encode_prompt" not in vars(base.pipe)


def test_the_vae_is_on_the_device_while_it_decodes_and_leaves_it_after_an_error_too():
    class Vae(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.zeros(1))

        def decode(self, latents):
            if latents is None:
                raise ValueError
            return self.weight.device.type

    vae = Vae()
    on_demand = _OnDemand(vae, torch.device("meta"))
    assert isinstance(on_demand, Vae)  # pipelines ask for the class of their VAE
    assert on_demand.device.type == "meta"  # a pipeline's device is that of its first module
    moves = []
    vae.to = lambda device: moves.append(str(device))  # a tensor on the meta device could not come back
    on_demand.decode(torch.zeros(1))
    with pytest.raises(ValueError):
        on_demand.decode(None)
    assert moves == ["meta", "cpu"] * 2
