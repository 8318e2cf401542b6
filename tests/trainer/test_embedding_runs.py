"""Complete runs of textual inversion: resumed, on several ranks, refused."""

from __future__ import annotations

import pytest

from modules.config.errors import UserError
from modules.config.files import save_config
from modules.weights.safe import load_tensors
from tests.support import rank_scenarios
from tests.support.RankPool import run_alone
from tests.support.stop_after import stop_after

# The captions are like "a photo of a cat, number 3".
WORDS = (
    "method=embedding",
    "embeddings.0.placeholder=number",
    "embeddings.0.vectors=2",
    "embeddings.0.initial_text=photo of",
    "embeddings.1.placeholder=photo",
    "embeddings.1.initial_text=sky",
)
RUN = (*WORDS, "optimizer.learning_rate=0.01", "batch_size=4", "data.caption_dropout=0.2", "max_steps=8")


def vectors(trainer) -> dict[str, list]:
    return {path.name: load_tensors(path)["emb_params"].tolist() for path in trainer.callbacks.saved}


def test_a_run_saves_one_file_per_placeholder_and_caches_no_text(make_config, train):
    trainer = train(make_config(*RUN))
    saved = [path.relative_to(trainer.run_folder.models_dir).as_posix() for path in trainer.callbacks.saved]
    assert saved == ["model/number.safetensors", "model/photo.safetensors"]
    assert trainer.prepared.source.text is None
    assert set(trainer.loop.trainable) == {"text_encoder.embeddings.token_embedding.new.weight"}


def test_tag_dropout_and_capitalization_leave_the_words_in_every_caption(make_config, start):
    tags = ("concepts.0.tag_separator= ", "concepts.0.tag_dropout=1", "concepts.0.capitalization=upper")
    trainer = start(make_config(*RUN, *tags, "concepts.0.capitalization_share=1"))
    captions = trainer.prepared.source.captions
    assert {captions.draw(sample, 0, 0) for sample in range(len(captions.options))} == {"photo number"}


def test_a_resumed_run_ends_with_the_same_vectors(make_config, start, train, tmp_path):
    settings = (*RUN, "ema.enabled=true")
    straight = train(make_config(*settings, f"workspace_dir={tmp_path / 'straight'}"))
    config = make_config(*settings)
    first = start(config)
    stop_after(first, 5)
    first.train()
    first.end()
    assert first.step == 5
    resumed = train(config, resume=True)
    assert resumed.callbacks.losses == straight.callbacks.losses[first.step :]
    assert vectors(resumed) == vectors(straight)
    assert vectors(resumed) != vectors(first)


def test_two_ranks_train_the_same_vectors_as_one(make_config, two_ranks, tmp_path):
    outcomes = {}
    for name, run in {"one": run_alone, "two": two_ranks.run}.items():
        settings = ("batch_size_mode=global", "model.weight_dtype=float64", f"workspace_dir={tmp_path / name}")
        save_config(make_config(*RUN, *settings, "max_steps=12"), tmp_path / f"{name}.yaml")
        outcomes[name] = run(rank_scenarios.train, config=str(tmp_path / f"{name}.yaml"))
    one, two = outcomes["one"], outcomes["two"]
    assert len(set(one["losses"])) == 12
    assert two[0]["digest"] == two[1]["digest"]
    assert two[0]["losses"] == pytest.approx(one["losses"], rel=1e-9)
    assert two[0]["norms"] == pytest.approx(one["norms"], rel=1e-8)


def test_a_placeholder_missing_from_all_captions_fails_before_caching(make_config, start):
    config = make_config(*RUN, "embeddings.2.placeholder=zebra")
    with pytest.raises(UserError, match=r"^embeddings\.2\.placeholder 'zebra' appears in no caption: add it to the c"):
        start(config)
