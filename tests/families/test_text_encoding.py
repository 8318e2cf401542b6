"""How the conditioning of several prompts becomes that of a batch."""

import functools

import torch

from modules.families.conditioning import encode_text
from modules.families.registry import FAMILIES
from modules.families.TextEncoding import TextEncoding, collate_text
from tests.families.test_conformance import load_pipe

SHORT, LONG = ({"words": torch.full((length, 3), float(length)), "pooled": torch.ones(5)} for length in (2, 4))


def encoding(**options) -> TextEncoding:
    return TextEncoding(outputs=("words", "pooled"), encoders=(), tokenizers=(), **options)


def test_texts_of_unlike_length_are_padded_with_zeros_and_the_mask_tells():
    batch = collate_text(encoding(collate="pad", padded=("words",), mask="mask"), [SHORT, LONG])
    assert batch["words"].shape == (2, 4, 3)
    assert torch.equal(batch["words"][0, :2], SHORT["words"])
    assert not batch["words"][0, 2:].any()
    assert torch.equal(batch["words"][1], LONG["words"])
    assert batch["mask"].tolist() == [[True, True, False, False], [True] * 4]
    assert batch["pooled"].shape == (2, 5)


def test_texts_of_one_length_need_no_mask():
    batch = collate_text(encoding(collate="pad", padded=("words",), mask="mask"), [LONG, LONG])
    assert batch.keys() == {"words", "pooled"}


def test_a_family_that_takes_lists_gets_each_text_as_it_is():
    batch = collate_text(encoding(collate="list"), [SHORT, LONG])
    assert [value.shape for value in batch["words"]] == [(2, 3), (4, 3)]


def test_a_family_that_takes_one_length_at_a_time_gets_lists_only_of_texts_that_differ():
    batch = collate_text(encoding(collate="group"), [SHORT, LONG])
    assert [value.shape for value in batch["words"]] == [(2, 3), (4, 3)]
    assert batch["pooled"].shape == (2, 5)
    assert collate_text(encoding(collate="group"), [LONG, LONG])["words"].shape == (2, 4, 3)


def test_the_empty_prompt_may_have_options_of_its_own():
    text = encoding(options={"length": 8, "instruction": "say"}, empty_options={"instruction": None})
    assert text.options_for("a cat") == {"length": 8, "instruction": "say"}
    assert text.options_for("") == {"length": 8, "instruction": None}


def test_captions_in_json_are_encoded_in_the_form_that_the_pipeline_samples_with(tiny_model):
    pipe = load_pipe(FAMILIES["bria_fibo2"], str(tiny_model("bria_fibo2")))
    caption = '{"short_description": "a cat", "objects": [], "aesthetics": {"aesthetic_score": 5}, "context": ""}'
    seen, encode = [], pipe.encode_prompt

    @functools.wraps(encode)  # its signature is looked at
    def spy(prompt, *args, **kwargs):
        seen.append(prompt)
        return encode(prompt, *args, **kwargs)

    pipe.encode_prompt = spy
    pipe([caption], width=32, height=32, num_inference_steps=1, guidance_scale=1.0)
    encode_text(FAMILIES["bria_fibo2"], pipe, [caption])
    assert seen == [['{"short_description":"a cat"}']] * 2
