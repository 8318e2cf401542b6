"""Textual inversion: new words train and nothing else, and other programs see what they have become."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from diffusers import StableDiffusion3Pipeline, StableDiffusionPipeline, StableDiffusionXLPipeline
from safetensors.torch import load_file

from modules.config.errors import UserError
from modules.config.TrainConfig import TrainConfig
from modules.families.conditioning import encode_text
from modules.methods.embedding import new_words
from modules.methods.parts import trained_in
from modules.methods.registry import METHODS
from modules.weights.embedding_files import add_embedding
from modules.weights.errors import WeightsError
from tests.support.prepared import prepared
from tests.support.short_training import REQUEST, a_batch, our_picture, plain_picture, train

EMBEDDING = METHODS["embedding"]
WORDS = [
    {"placeholder": "<cat>", "vectors": 3, "initial_text": "photo dog"},
    {"placeholder": "zebra-1", "vectors": 1, "initial_text": "red", "file_name": "stripes"},
]
PROMPTS = ("a photo of <cat> and zebra-1, by the sea", "the dog beside a <cat>, moving")
PICTURE = replace(REQUEST, prompt="a photo of a <cat> under the red sky, zebra-1")
PIPELINES = {"sd15": StableDiffusionPipeline, "sdxl": StableDiffusionXLPipeline, "sd3": StableDiffusion3Pipeline}
MODELS = {"tiny_sd15": "sd15", "tiny_sdxl": "sdxl", "tiny_sd3": "sd3"}


def trained(folder, family, words=WORDS, steps=4, **settings):
    base, config = prepared(folder, "embedding", family, embeddings=words, **settings)
    train(base, config, steps, PROMPTS)
    return base, config


def load(folder, family):
    pipe = PIPELINES[family].from_pretrained(folder)
    pipe.set_progress_bar_config(disable=True)
    return pipe


def test_the_choice_of_text_encoders_to_train_is_not_that_of_the_words(tiny_sd15):
    parts = {"train": True, "only": [2]}
    base, config = prepared(tiny_sd15, "embedding", embeddings=WORDS, text_encoder=parts)
    assert list(trained_in(EMBEDDING, base, config)) == ["text_encoder"]


@pytest.mark.parametrize("model", MODELS)
def test_the_new_vectors_train_and_no_other_number_of_the_model(model, request):
    base, config = prepared(request.getfixturevalue(model), "embedding", MODELS[model], embeddings=WORDS)
    parts = list(EMBEDDING.components(base.family, config))
    assert parts == list(base.family.text.encoders)
    modules = (*base.family.denoisers, *parts, base.family.vae)
    before = {(part, n): t.clone() for part in modules for n, t in base.module(part).state_dict().items()}
    train(base, config, 3, PROMPTS)
    after = {(part, n): t for part in modules for n, t in base.module(part).state_dict().items()}
    changed = {key for key in before if not torch.equal(before[key], after[key])}
    assert {part for part, _ in changed} == set(parts)
    assert all(name.endswith(".new.weight") for _, name in changed)
    loss = EMBEDDING.loss(base, config)
    shapes = {tuple(parameter.shape) for parameter in loss.parameters() if parameter.requires_grad}
    assert {rows for rows, _ in shapes} == {4}  # not the vocabulary: neither gradient nor optimizer has it
    for part in parts:
        moved = new_words(base.module(part)).new.weight - before[part, _name_of(base.module(part))]
        assert (moved.abs().amax(1) > 1e-3).all()


def _name_of(encoder):
    return next(name for name, parameter in encoder.named_parameters() if parameter.requires_grad)


@pytest.mark.parametrize("model", ["tiny_sd15", "tiny_sd3"])
def test_every_step_gives_each_vector_a_gradient_also_without_the_word(model, request):
    base, config = prepared(request.getfixturevalue(model), "embedding", MODELS[model], embeddings=WORDS)
    loss = EMBEDDING.loss(base, config)
    assert not loss.unused_parameters
    loss(a_batch())[0].backward()
    for parameter in loss.parameters():
        if parameter.requires_grad:
            assert torch.equal(parameter.grad, torch.zeros_like(parameter))


@pytest.mark.parametrize("model", MODELS)
def test_new_words_start_as_their_initial_text_and_leave_other_prompts_alone(model, request):
    folder = request.getfixturevalue(model)
    family = MODELS[model]
    words = [{"placeholder": "<cat>", "vectors": 1, "initial_text": "a", "preserve_norm": False}]
    base, _ = prepared(folder, "embedding", family, embeddings=words)
    plain = load(folder, family)
    for prompt, other in (("<cat> <cat> red", "a a red"), ("a photo, of the sky.", "a photo, of the sky.")):
        ours = encode_text(base.family, base.pipe, [prompt])
        theirs = encode_text(base.family, plain, [other])
        if "<cat>" in prompt and family == "sd3":
            continue  # T5's words begin with a mark of the space before them, an added token does not
        for name, value in ours.items():
            torch.testing.assert_close(value, theirs[name], rtol=0, atol=2e-5)


def test_a_word_of_several_vectors_takes_their_places_among_other_words(tiny_sd15):
    base, _ = prepared(tiny_sd15, "embedding", embeddings=WORDS)
    tokenizer = base.pipe.tokenizer
    prompt = base.pipe.maybe_convert_prompt("the dog, <cat>s and zebra-1 <cat> sky", tokenizer)
    ids = tokenizer(prompt, add_special_tokens=False).input_ids
    first = new_words(base.pipe.text_encoder).first
    new = [token - first for token in ids if token >= first]
    assert new == [0, 1, 2, 3, 0, 1, 2]
    assert len(ids) > len(new) + 8


@pytest.mark.parametrize("model", MODELS)
def test_a_plain_pipeline_with_the_files_makes_the_picture_of_our_sampler(model, tmp_path, request):
    folder = request.getfixturevalue(model)
    family = MODELS[model]
    base, config = trained(folder, family)
    ours = our_picture(base.pipe, PICTURE)
    files = EMBEDDING.save(base, config, tmp_path, "words", {"steps": "4"})
    assert [file.name for file in files] == ["cat.safetensors", "stripes.safetensors"]
    plain = load(folder, family)
    prompt = PICTURE.prompt
    if family == "sd15":
        for file, word in zip(files, WORDS, strict=True):
            plain.load_textual_inversion(file, token=word["placeholder"])
    elif family == "sdxl":
        for file, word in zip(files, WORDS, strict=True):
            tensors = load_file(file)
            for key, number in (("clip_l", ""), ("clip_g", "_2")):
                encoder, tokenizer = getattr(plain, f"text_encoder{number}"), getattr(plain, f"tokenizer{number}")
                token = word["placeholder"]
                plain.load_textual_inversion(tensors[key], token=token, text_encoder=encoder, tokenizer=tokenizer)
    else:
        prompt = _give_sd3_the_words(plain, files, prompt)
    assert np.abs(plain_picture(plain, replace(PICTURE, prompt=prompt)) - ours).max() <= 1e-5
    assert np.abs(plain_picture(load(folder, family), PICTURE) - ours).max() > 1e-3


def _give_sd3_the_words(plain, files, prompt):
    """diffusers has no loader for this family: tokens and rows by hand, and the prompt written out."""
    for file, word in zip(files, WORDS, strict=True):
        names = [word["placeholder"]] + [f"{word['placeholder']}_{number}" for number in range(1, word["vectors"])]
        prompt = prompt.replace(word["placeholder"], " ".join(names))
        for key, number in (("clip_l", ""), ("clip_g", "_2"), ("t5xxl", "_3")):
            encoder, tokenizer = getattr(plain, f"text_encoder{number}"), getattr(plain, f"tokenizer{number}")
            tokenizer.add_tokens(names)
            encoder.resize_token_embeddings(len(tokenizer))
            rows = tokenizer.convert_tokens_to_ids(names)
            encoder.get_input_embeddings().weight.data[rows] = load_file(file)[key]
    return prompt


def test_files_hold_what_other_programs_look_for(tiny_sd15, tiny_sd3, tmp_path):
    base, config = trained(tiny_sd15, "sd15", output={"dtype": "float16"})
    cat, stripes = (load_file(path) for path in EMBEDDING.save(base, config, tmp_path, "sd15", {}))
    assert {name: (tuple(t.shape), t.dtype) for name, t in cat.items()} == {"emb_params": ((3, 32), torch.float16)}
    assert stripes["emb_params"].shape == (1, 32)
    base, config = trained(tiny_sd3, "sd3", steps=1)
    path = EMBEDDING.save(base, config, tmp_path, "sd3", {})[0]
    widths = [base.module(part).get_input_embeddings().old.embedding_dim for part in base.family.text.encoders]
    shapes = {name: tuple(tensor.shape) for name, tensor in load_file(path).items()}
    assert shapes == {name: (3, width) for name, width in zip(("clip_l", "clip_g", "t5xxl"), widths, strict=True)}
    with pytest.raises(WeightsError, match=r"is not an embedding for a StableDiffusionPip.*, but has clip_.*; choose"):
        add_embedding(load(tiny_sd15, "sd15"), path)


@pytest.mark.parametrize("model", MODELS)
def test_an_embedding_file_teaches_a_pipeline_its_word_once(model, tmp_path, request):
    folder = request.getfixturevalue(model)
    base, config = trained(folder, MODELS[model])
    plain = load(folder, MODELS[model])
    files = EMBEDDING.save(base, config, tmp_path, "words", {})
    assert [add_embedding(plain, file) for file in files] == ["<cat>", "zebra-1"]
    assert np.abs(our_picture(plain, PICTURE) - our_picture(base.pipe, PICTURE)).max() <= 1e-5
    with pytest.raises(WeightsError, match=r"cat\.safetensors': the model already knows its word '<cat>'; load"):
        add_embedding(plain, files[0])


def test_norms_are_kept_at_the_vocabularys_where_asked(tiny_sd15):
    words = [WORDS[0], {**WORDS[1], "preserve_norm": False}]
    base, _ = trained(tiny_sd15, "sd15", words, steps=8)
    module = new_words(base.pipe.text_encoder)
    mean = module.old.weight.norm(dim=1).mean()
    lengths = module.vectors().norm(dim=1)
    torch.testing.assert_close(lengths[:3], mean.expand(3), rtol=1e-5, atol=0)
    assert (lengths[3] - mean).abs() > 0.01 * mean
    assert torch.equal(module.vectors()[3], module.new.weight[3])


@pytest.mark.parametrize("weight_dtype", ["bfloat16", "float16", "float64"])
def test_new_vectors_are_float32_at_least_and_the_encoder_keeps_its_dtype(weight_dtype, tiny_sd15):
    base, config = prepared(tiny_sd15, "embedding", model={"weight_dtype": weight_dtype}, embeddings=WORDS)
    dtype = getattr(torch, weight_dtype)
    assert new_words(base.pipe.text_encoder).new.weight.dtype == torch.promote_types(dtype, torch.float32)
    assert base.pipe.text_encoder.dtype == dtype
    if weight_dtype == "bfloat16":  # float16 is for autocast only
        EMBEDDING.loss(base, config)(a_batch(PROMPTS))[0].backward()
        assert new_words(base.pipe.text_encoder).new.weight.grad.abs().amax(1).min() > 0


def test_the_end_of_a_prompt_is_found_also_where_an_old_config_numbers_it_wrongly(tiny_sd3):
    words = [{"placeholder": "<cat>"}]
    right, _ = prepared(tiny_sd3, "embedding", "sd3", embeddings=words)
    wrong, config = prepared(tiny_sd3, "lora", "sd3")
    for name in ("text_encoder", "text_encoder_2"):
        for module in wrong.module(name).modules():
            if hasattr(module, "eos_token_id"):
                module.eos_token_id = 2
    config = TrainConfig(family="sd3", method="embedding", embeddings=words)
    EMBEDDING.attach(wrong, config)
    pooled = [
        encode_text(base.family, base.pipe, ["a <cat> in the sky"])["pooled_prompt_embeds"] for base in (right, wrong)
    ]
    assert torch.equal(*pooled)


@pytest.mark.parametrize(
    ("word", "message"),
    [
        ({"placeholder": "a"}, r"^embeddings\.0\.placeholder 'a' is a word that the model already knows: choose an"),
        ({"placeholder": "<|endoftext|>"}, "already knows"),
        ({"placeholder": "<cat>", "initial_text": "  "}, r"^embeddings\.0\.initial_text .* has no tokens: write"),
    ],
)
def test_a_word_that_can_not_be_new_is_refused(word, message, tiny_sd15):
    with pytest.raises(UserError, match=message):
        prepared(tiny_sd15, "embedding", embeddings=[word])
