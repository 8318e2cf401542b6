"""Complete runs of pivotal tuning: what is saved and how it is read, resumed, gone on from, and on two ranks."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from PIL import Image

from modules.config.errors import UserError
from modules.config.files import save_config
from modules.sampling.generation import generate_images, image_requests
from modules.weights.load_pipeline import load_pipeline
from modules.weights.safe import load_tensors
from tests.support import rank_scenarios
from tests.support.RankPool import run_alone

# The captions are like "a photo of a cat, number 3".
WORDS = ("embeddings.0.placeholder=number", "embeddings.0.vectors=2", "embeddings.0.initial_text=photo of")
RATES = ("lora.embedding_learning_rate=0.01", "optimizer.learning_rate=0.001")
RUN = ("method=pivotal", *WORDS, *RATES, "batch_size=4", "output.format=both")
SAMPLE = {"prompt": "a cat, number 3", "width": 32, "height": 32, "steps": 2, "seed": 3}
SAMPLES = ("sampling.at_end=true", *(f"sampling.samples.0.{name}={value}" for name, value in SAMPLE.items()))
CPU = torch.device("cpu")


def saved(trainer) -> dict[str, str]:
    folder = trainer.run_folder.models_dir
    return {path.relative_to(folder).as_posix(): str(path) for path in trainer.callbacks.saved}


@pytest.mark.parametrize("trains_text", [False, True])
def test_the_lora_in_kohyas_format_holds_the_words_which_are_also_files_of_their_own(trains_text, make_config, train):
    config = make_config(*RUN, *SAMPLES, "max_steps=3", "output.dtype=float32", f"text_encoder.train={trains_text}")
    trainer = train(config)
    files = saved(trainer)
    lora, kohya, word = "model.safetensors", "model_kohya.safetensors", "model/number.safetensors"
    assert set(files) == {lora, kohya, word}
    vectors = load_tensors(files[word])["emb_params"]
    assert torch.equal(load_tensors(files[kohya])["bundle_emb.number.emb_params"], vectors)
    adapted = {name.partition("_")[0] for name in load_tensors(files[kohya]) if name.startswith("lora_te")}
    assert bool(adapted) == trains_text
    with Image.open(trainer.callbacks.samples[0]) as image:
        own = np.asarray(image).astype(int)
    [request] = image_requests(config.sampling.samples[0])
    for loras, words in (([kohya], []), ([lora], [word])):
        pipe = load_pipeline(
            config.model.base, {files[name]: 1.0 for name in loras}, CPU, embeddings=[files[name] for name in words],
            dtype="float32",
        )  # fmt: skip
        made = np.asarray(next(generate_images(pipe, [request], 1))[1]).astype(int)
        assert np.abs(made - own).max() <= 1


def test_words_and_adapters_have_rates_of_their_own(make_config, train):
    shown = train(make_config(*RUN, "max_steps=2", "tensorboard=true")).callbacks.steps[-1].metrics
    assert (shown["lr/unet"], shown["lr/text_encoder"]) == (0.001, 0.01)


def test_training_goes_on_from_a_file_with_its_words(make_config, train, start, tmp_path):
    files = saved(train(make_config(*RUN, "max_steps=3", "output.dtype=float32")))
    again = (*RUN, f"workspace_dir={tmp_path / 'again'}")
    trainer = start(make_config(*again, f"lora.start_from={files['model_kohya.safetensors']}"))
    words = next(value for name, value in trainer.loop.trainable.items() if name.endswith("new.weight"))
    vectors = load_tensors(files["model/number.safetensors"])["emb_params"]
    lengths = words.norm(dim=1, keepdim=True)  # preserve_norm fixes them
    torch.testing.assert_close(words / lengths, vectors / vectors.norm(dim=1, keepdim=True))
    without = make_config(*again, f"lora.start_from={files['model.safetensors']}")
    with pytest.raises(UserError, match=r"does not hold 2 vectors of the word 'number' \(embeddings\.0\)"):
        start(without)


def test_a_resumed_run_ends_as_the_undisturbed_one(make_config, train, tmp_path):
    whole = train(make_config(*RUN, "max_steps=6", f"workspace_dir={tmp_path / 'whole'}"))
    train(make_config(*RUN, "max_steps=3", "backup.at_end=true"))
    resumed = train(make_config(*RUN, "max_steps=6"), resume=True)
    assert resumed.callbacks.losses == whole.callbacks.losses[3:]
    for name, value in whole.loop.trainable.items():
        assert torch.equal(resumed.loop.trainable[name], value), name


def test_two_ranks_train_the_same_as_one(make_config, two_ranks, tmp_path):
    outcomes = {}
    for name, run in {"one": run_alone, "two": two_ranks.run}.items():
        settings = ("batch_size_mode=global", "model.weight_dtype=float64", f"workspace_dir={tmp_path / name}")
        save_config(make_config(*RUN, *settings, "max_steps=6"), tmp_path / f"{name}.yaml")
        outcomes[name] = run(rank_scenarios.train, config=str(tmp_path / f"{name}.yaml"))
    one, two = outcomes["one"], outcomes["two"]
    assert two[0]["digest"] == two[1]["digest"]
    assert two[0]["losses"] == pytest.approx(one["losses"], rel=1e-9)
