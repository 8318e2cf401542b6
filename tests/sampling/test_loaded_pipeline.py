"""A loaded pipeline brings its parts to the device and has them back as they were."""

from __future__ import annotations

import pytest
import torch
from diffusers import StableDiffusionPipeline

from modules.families.registry import FAMILIES
from modules.sampling.LoadedPipeline import LoadedPipeline


@pytest.fixture
def pipe(tiny_sd15):
    return StableDiffusionPipeline.from_pretrained(tiny_sd15)


def tensors_of(module):
    return [*module.parameters(), *module.buffers()]


def test_what_is_used_is_on_the_device_and_its_own_tensors_are_back_afterwards(pipe):
    pipe.unet.conv_out.twin = pipe.unet.conv_in  # as embeddings that are tied
    loaded = LoadedPipeline(pipe, FAMILIES["sd15"], torch.device("meta"))
    own = tensors_of(pipe.unet)
    with loaded.using("unet", "scheduler"):
        assert {tensor.device.type for tensor in tensors_of(pipe.unet)} == {"meta"}
        assert {tensor.device.type for tensor in tensors_of(pipe.vae)} == {"cpu"}
        assert pipe.unet.conv_out.twin.weight is pipe.unet.conv_in.weight
    assert all(after is before for after, before in zip(tensors_of(pipe.unet), own, strict=True))


def test_what_is_on_the_device_already_stays_as_it_is(pipe):
    """A quantized weight is more than its values."""
    loaded = LoadedPipeline(pipe, FAMILIES["sd15"], torch.device("cpu"))
    own = tensors_of(pipe.unet)
    with loaded.using("unet"):
        assert all(inside is before for inside, before in zip(tensors_of(pipe.unet), own, strict=True))
