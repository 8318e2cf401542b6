"""Several captions, tags, resolutions, augmentation and validation images in complete runs."""

import pytest
import torch

from modules.config.files import save_config
from modules.data.decoding import load_pixels
from modules.families.latents import encode_pixels
from tests.support import rank_scenarios
from tests.support.RankPool import run_alone
from tests.support.run_summaries import summary_text

VIEWS = (
    "data.resolutions=[32, 40]",
    "data.augmentation_variants=3",
    "concepts.0.augmentation.flip=true",
    "concepts.0.augmentation.crop_jitter=true",
    "concepts.0.augmentation.rotation=10",
    "concepts.0.augmentation.saturation=0.5",
)
TAGS = ("concepts.0.shuffle_tags=true", "concepts.0.tag_separator= ", "data.caption_variants=3")


def batches(trainer):
    return [batch for step in trainer._steps() for batch in step.micro_batches]


def test_cached_augmentations_equal_those_encoded_in_the_step(make_config, start):
    trainer = start(make_config(*VIEWS))
    trainer.prepared.base.require("vae")
    vae = trainer.prepared.base.module("vae")
    source = trainer.prepared.source
    assert len(source.dataset) == 11 * 6
    for sample in range(0, len(source.dataset), 5):
        pixels = torch.from_numpy(load_pixels(source.dataset, source.buckets, sample))[None]
        with torch.no_grad():
            live = encode_pixels(trainer.prepared.base.family, vae, pixels)[0]
        torch.testing.assert_close(source.pictures.record(sample)["latents"], live, rtol=1e-5, atol=1e-5)


def test_pixels_and_latents_get_the_same_augmentations(make_config, start):
    latents = start(make_config(*VIEWS, "max_steps=8"))
    pixels = start(make_config(*VIEWS, "max_steps=8", "method=vae"))
    for of_latents, of_pixels in zip(batches(latents), batches(pixels), strict=True):
        assert tuple(of_latents.latents.shape[2:]) == tuple(of_pixels.noise.shape[2:])
        assert torch.equal(of_latents.u, of_pixels.u)


@pytest.mark.parametrize("settings", [VIEWS, TAGS])
def test_prefetching_does_not_change_a_run(make_config, train, settings):
    losses = []
    for prefetch in (0, 1, 3):
        run = make_config(*settings, f"data.prefetch_steps={prefetch}")
        run.workspace_dir += str(prefetch)
        losses.append([step.loss for step in train(run).callbacks.steps])
    assert losses[0] == losses[1] == losses[2]


def test_augmentations_do_not_change_the_length_of_an_epoch(make_config, start):
    assert start(make_config(*VIEWS)).prepared.plan.num_samples == 11


def test_disabled_augmentation_reuses_the_existing_cache(make_config, start, tmp_path):
    start(make_config())
    before = set((tmp_path / "cache").rglob("latents/*/*.safetensors"))
    start(make_config("concepts.0.augmentation.flip=true", "data.augmentation_variants=2"))
    after = set((tmp_path / "cache").rglob("latents/*/*.safetensors"))
    assert before < after
    assert len(after) == 2 * len(before) == 22


def test_every_tag_order_in_use_is_cached_and_counted_by_the_dry_run(make_config, start):
    config = make_config(*TAGS, "max_steps=20")
    trainer = start(config)
    prompts = {prompt for batch in batches(trainer) for prompt in batch.prompts}
    assert 11 < len(prompts) <= 33
    texts = trainer.prepared.source.captions.all_texts()
    assert prompts <= set(texts)
    assert f"{len(texts)} different texts are cached" in summary_text(config)


def test_while_a_text_encoder_trains_tags_are_shuffled_each_time(make_config, start):
    config = make_config(*TAGS, "max_steps=20", "text_encoder.train=true")
    trainer = start(config)
    prompts = [prompt for batch in batches(trainer) for prompt in batch.prompts]
    assert len(set(prompts)) > 33
    assert trainer.prepared.source.text is None
    assert "encoded in each step" in summary_text(config)


def test_all_captions_of_an_image_are_cached_and_used(make_config, start, tmp_path):
    config = make_config("concepts.0.caption_per_line=true", "max_steps=20")
    for path in (tmp_path / "pictures").glob("*.txt"):
        path.write_text(f"{path.stem} one\n{path.stem} two\n")
    prompts = {prompt for batch in batches(start(config)) for prompt in batch.prompts}
    assert prompts == {f"{number:03d} {text}" for number in range(11) for text in ("one", "two")}


def test_validation_images_are_cached_and_not_trained_on(make_config, start):
    trainer = start(make_config("data.validation_share=0.3", "max_steps=20"))
    held_out = set(trainer.prepared.plan.validation_samples.tolist())
    assert held_out
    planned = trainer.prepared.plan.steps(0, 0, 0, 1, 1)
    shown = {int(row[0]) for _ in range(20) for batch in next(planned).micro_batches for row in batch.samples}
    assert shown == set(range(11)) - held_out
    for sample in held_out:
        assert trainer.prepared.source.pictures.record(sample) is not None


def test_a_resumed_run_draws_the_same_augmentations_and_captions(make_config, train):
    settings = (*VIEWS, *TAGS, "backup.unit=steps", "backup.every=2")
    straight = make_config(*settings, "max_steps=4")
    straight.workspace_dir += "-straight"
    expected = [step.loss for step in train(straight).callbacks.steps]
    train(make_config(*settings, "max_steps=2"))
    resumed = train(make_config(*settings, "max_steps=4"), resume=True)
    assert [step.loss for step in resumed.callbacks.steps] == expected[2:]


def test_one_two_and_four_ranks_draw_the_same_augmentations_and_captions(make_config, two_ranks, four_ranks, tmp_path):
    settings = (*VIEWS, *TAGS, "data.validation_share=0.2", "concepts.0.repeats=1.5", "model.weight_dtype=float64")
    curves, shown = [], []
    for name, run in {"one": run_alone, "two": two_ranks.run, "four": four_ranks.run}.items():
        config = make_config(*settings, "batch_size=8", "batch_size_mode=global", "max_steps=6")
        config.workspace_dir = str(tmp_path / name)
        save_config(config, tmp_path / f"{name}.yaml")
        outcomes = run(rank_scenarios.train, config=str(tmp_path / f"{name}.yaml"))
        ranks = [outcomes] if name == "one" else outcomes
        curves.append(ranks[0]["losses"])
        steps = zip(*(rank["pictures"] for rank in ranks), strict=True)
        shown.append([sorted(tuple(pair) for part in step for pair in part) for step in steps])
    assert shown[0] == shown[1] == shown[2]
    assert curves[1] == pytest.approx(curves[0], rel=1e-9)
    assert curves[2] == pytest.approx(curves[0], rel=1e-9)


def test_images_are_trained_in_the_size_that_is_given(make_config, train):
    config = make_config("data.bucketing=false", "data.width=24", "data.height=40", "max_steps=2")
    trainer = train(config)
    assert all(batch.latents.shape[2:] == (5, 3) for batch in batches(trainer))
    assert len(trainer.callbacks.steps) == 2
