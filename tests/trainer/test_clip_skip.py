"""CLIP skip: text from an earlier layer, in training and in samples."""

import numpy as np
import pytest
import torch
from diffusers import DiffusionPipeline
from PIL import Image

from modules.config.ModelConfig import ModelConfig
from modules.config.SampleConfig import SampleConfig
from modules.data.cache_keys import text_keys
from modules.data.FileHashes import FileHashes
from modules.families.conditioning import clip_by_its_former_name, encode_records
from modules.families.long_prompts import extend_prompts
from modules.families.registry import FAMILIES
from modules.sampling.generation import generate_images, image_requests
from modules.weights.load_pipeline import load_pipeline
from tests.support.prepared import prepared

SAMPLE = {"prompt": "a cat", "width": 32, "height": 32, "steps": 2}


@pytest.mark.parametrize("name", [name for name, family in FAMILIES.items() if family.text.skips_layers])
def test_the_text_is_that_of_the_pipeline_with_a_layer_skipped(name, tiny_model):
    pipe, family = DiffusionPipeline.from_pretrained(tiny_model(name)), FAMILIES[name]
    (own,), (skipped,) = (encode_records(family.with_clip_skip(skip), pipe, ["a cat"]) for skip in (1, 2))
    options = {"do_classifier_free_guidance": False, "device": torch.device("cpu"), "num_images_per_prompt": 1}
    given = {"prompt_2": None, "prompt_3": None} if name == "sd3" else {}
    with clip_by_its_former_name(pipe):
        expected = pipe.encode_prompt("a cat", clip_skip=1, **options, **given, **family.text.options)[0]
    assert torch.equal(skipped["prompt_embeds"], expected[0])
    assert not torch.equal(skipped["prompt_embeds"], own["prompt_embeds"])


def test_the_layer_is_the_one_before_the_last(tiny_sd15):
    pipe = DiffusionPipeline.from_pretrained(tiny_sd15)
    (record,) = encode_records(FAMILIES["sd15"].with_clip_skip(2), pipe, ["a cat"])
    tokens = pipe.tokenizer("a cat", padding="max_length", max_length=77, return_tensors="pt").input_ids
    with torch.no_grad():
        hidden = pipe.text_encoder(tokens, output_hidden_states=True).hidden_states[-2]
        expected = pipe.text_encoder.final_layer_norm(hidden)
    torch.testing.assert_close(record["prompt_embeds"], expected[0])


def test_a_run_trains_and_samples_with_it(make_config, train):
    samples = [f"sampling.samples.0.{name}={value}" for name, value in SAMPLE.items()]
    config = make_config(*samples, "model.clip_skip=2", "text_encoder.train=true", "sampling.at_end=true")
    trainer = train(config)
    base, settings = trainer.prepared.base, config.sampling.samples[0]
    assert "text_encoder" in base.family.partly_unused  # its last layer gets no gradient
    with Image.open(trainer.callbacks.samples[0]) as picture:
        sampled = np.asarray(picture)
    with base.using(*base.component_names) as pipe:
        made = [generate_images(pipe, image_requests(settings, skip), 1) for skip in (1, 2)]
        own, skipped = (np.asarray(next(images)[1]) for images in made)
    np.testing.assert_allclose(sampled, skipped, atol=1)
    assert np.abs(sampled.astype(int) - own).max() > 1


@pytest.mark.parametrize("name", ["sdxl", "sd3"])
def test_each_encoder_may_skip_layers_of_its_own(name, tiny_model):
    def encoded(**settings):
        family = FAMILIES[name].with_text_settings(ModelConfig(**settings))
        pipe = DiffusionPipeline.from_pretrained(tiny_model(name))
        extend_prompts(family, pipe)
        (record,) = encode_records(family, pipe, ["a cat"])
        return record

    width = DiffusionPipeline.from_pretrained(tiny_model(name)).text_encoder.config.hidden_size
    one, two, mixed = (encoded(clip_skip=1), encoded(clip_skip=2), encoded(clip_skip=2, clip_skips=[1]))
    text, pooled = "prompt_embeds", "pooled_prompt_embeds"
    assert not torch.equal(one[text], two[text])
    assert torch.equal(mixed[text][:77, :width], one[text][:77, :width])  # of the first encoder
    assert torch.equal(mixed[text][:77, width:], two[text][:77, width:])
    assert torch.equal(mixed[pooled], one[pooled])
    assert torch.equal(encoded(clip_skips=[2, 2])[text], two[text])


def test_the_layers_of_single_encoders_reach_samples_and_the_cache(tiny_model, tmp_path):
    made = {}
    for skips in ((1, 1), (1, 2)):
        pipe = load_pipeline(str(tiny_model("sdxl")), {}, torch.device("cpu"), dtype="float32", clip_skips=skips)
        request = image_requests(SampleConfig(**SAMPLE), min(skips))
        made[skips] = np.asarray(next(generate_images(pipe, request, 1))[1]).astype(int)
    assert np.abs(made[1, 1] - made[1, 2]).max() > 1
    base, _ = prepared(tiny_model("sdxl"), "lora", "sdxl")
    own = text_keys(["a cat"], base, FileHashes(tmp_path, 0))
    base.family = base.family.with_text_settings(ModelConfig(clip_skips=[1, 2]))
    assert text_keys(["a cat"], base, FileHashes(tmp_path, 0)) != own
