"""Prompts of more than 75 tokens and weights of words: by hand, in the cache, in training and in samples."""

import numpy as np
import pytest
import torch
from diffusers import DiffusionPipeline
from PIL import Image

from modules.config.SampleConfig import SampleConfig
from modules.data.cache_keys import text_keys
from modules.data.FileHashes import FileHashes
from modules.families.conditioning import encode_records
from modules.families.long_prompts import extend_prompts
from modules.families.registry import FAMILIES
from modules.sampling.generation import generate_images, image_requests
from modules.weights.load_pipeline import load_pipeline
from tests.support.prepared import prepared

LONG = " ".join(["a cat and the dog"] * 30)
PROMPTS = [LONG, "the dog", ""]
CPU = torch.device("cpu")


def by_hand(tokenizer, encoder, prompt, layer):
    """[154, width] of two chunks, and the pooled output of the first one."""
    ids = tokenizer(prompt, add_special_tokens=False, verbose=False).input_ids
    outputs = []
    for chunk in (ids[:75], ids[75:150]):
        row = [tokenizer.bos_token_id, *chunk, tokenizer.eos_token_id]
        row += [tokenizer.pad_token_id] * (77 - len(row))
        with torch.no_grad():
            outputs.append(encoder(torch.tensor([row]), output_hidden_states=True))
    hidden = [output.last_hidden_state if layer == -1 else output.hidden_states[layer] for output in outputs]
    return torch.cat(hidden, dim=1)[0], outputs[0]


@pytest.mark.parametrize(("name", "layer"), [("sd15", -1), ("sdxl", -2)])
def test_each_chunk_is_encoded_between_a_start_and_an_end_token(name, layer, tiny_model):
    pipe, family = DiffusionPipeline.from_pretrained(tiny_model(name)), FAMILIES[name].with_text_chunks(2)
    assert len(pipe.tokenizer(LONG, verbose=False).input_ids) > 152
    plain = encode_records(FAMILIES[name], pipe, PROMPTS)
    extend_prompts(family, pipe)
    records = encode_records(family, pipe, PROMPTS)
    parts = [(pipe.tokenizer, pipe.text_encoder)]
    parts += [(pipe.tokenizer_2, pipe.text_encoder_2)] if name == "sdxl" else []
    for prompt, record, short in zip(PROMPTS, records, plain, strict=True):
        outputs = [by_hand(*part, prompt, layer) for part in parts]
        expected = torch.cat([hidden for hidden, _ in outputs], dim=-1)
        torch.testing.assert_close(record["prompt_embeds"], expected)
        torch.testing.assert_close(record["prompt_embeds"][:77], short["prompt_embeds"])  # the first chunk
        if name == "sdxl":
            torch.testing.assert_close(record["pooled_prompt_embeds"], outputs[-1][1].text_embeds[0])


def test_captions_in_chunks_have_cache_keys_of_their_own(tiny_sd15, tmp_path):
    base, _ = prepared(tiny_sd15, "lora")
    own = text_keys(["a cat"], base, FileHashes(tmp_path, 0))
    base.family = base.family.with_text_chunks(2)
    assert text_keys(["a cat"], base, FileHashes(tmp_path, 0)) != own


@pytest.mark.parametrize("trains_text", [False, True])
def test_a_run_trains_and_samples_with_chunks(trains_text, make_config, train):
    sample = {"prompt": LONG, "negative_prompt": "the dog", "width": 32, "height": 32, "steps": 2}
    samples = [f"sampling.samples.0.{name}={value}" for name, value in sample.items()]
    options = ("model.text_chunks=2", f"text_encoder.train={trains_text}", "sampling.at_end=true", "max_steps=2")
    config = make_config(*samples, *options, "output.dtype=float32")
    trainer = train(config)
    [request] = image_requests(config.sampling.samples[0])
    [lora] = trainer.run_folder.models_dir.glob("*.safetensors")
    made = {}
    for chunks in (1, 2):
        pipe = load_pipeline(config.model.base, {str(lora): 1.0}, CPU, dtype="float32", text_chunks=chunks)
        made[chunks] = np.asarray(next(generate_images(pipe, [request], 1))[1]).astype(int)
    with Image.open(trainer.callbacks.samples[0]) as picture:
        sampled = np.asarray(picture)
    np.testing.assert_allclose(sampled, made[2], atol=1)
    assert np.abs(made[1] - sampled).max() > 1


@pytest.mark.parametrize(("name", "chunks"), [("sd15", 2), ("sdxl", 1)])
def test_the_hidden_states_of_a_word_are_multiplied_by_its_weight(name, chunks, tiny_model):
    pipe = DiffusionPipeline.from_pretrained(tiny_model(name))
    family = FAMILIES[name].with_text_chunks(chunks)
    extend_prompts(family, pipe)
    plain, other = encode_records(family, pipe, ["a cat and the dog", ""])
    weighted = family.with_word_weights(True)
    extend_prompts(weighted, pipe)
    marked, untouched = encode_records(weighted, pipe, ["a (cat:1.5) [and] the dog", ""])
    count = [len(pipe.tokenizer(word, add_special_tokens=False).input_ids) for word in ("a", "cat", "and")]
    factors = torch.ones(77 * chunks)
    start = 1 + count[0]
    factors[start : start + count[1]] = 1.5
    factors[start + count[1] : start + count[1] + count[2]] = 1 / 1.1
    torch.testing.assert_close(marked["prompt_embeds"], plain["prompt_embeds"] * factors[:, None])
    torch.testing.assert_close(untouched["prompt_embeds"], other["prompt_embeds"])
    if name == "sdxl":
        torch.testing.assert_close(marked["pooled_prompt_embeds"], plain["pooled_prompt_embeds"])


def test_weights_reach_the_images_of_prompts_and_negative_prompts(tiny_model):
    pipe = load_pipeline(str(tiny_model("sd15")), {}, CPU, dtype="float32", word_weights=True)

    def made(prompt: str, negative: str) -> np.ndarray:
        sample = SampleConfig(prompt=prompt, negative_prompt=negative, width=32, height=32, steps=2)
        return np.asarray(next(generate_images(pipe, image_requests(sample), 1))[1]).astype(int)

    own = made("a cat", "the dog")
    np.testing.assert_array_equal(made("(a cat:1.0)", "(the dog:1)"), own)
    for changed in (made("(a cat:3)", "the dog"), made("a cat", "(the dog:3)")):
        assert np.abs(changed - own).max() > 1
    assert np.abs(made("(a cat:3)", "the dog") - made("a cat", "(the dog:3)")).max() > 1


def test_weighted_captions_have_cache_keys_of_their_own(tiny_sd15, tmp_path):
    base, _ = prepared(tiny_sd15, "lora")
    own = text_keys(["(a cat:2)"], base, FileHashes(tmp_path, 0))
    base.family = base.family.with_word_weights(True)
    assert text_keys(["(a cat:2)"], base, FileHashes(tmp_path, 0)) != own
