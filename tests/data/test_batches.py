from __future__ import annotations

import threading
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from modules.config.AugmentationConfig import AugmentationConfig
from modules.config.ConceptConfig import ConceptConfig
from modules.config.DataConfig import DataConfig
from modules.data.Batch import Batch
from modules.data.buckets import Buckets
from modules.data.CaptionSource import CaptionSource
from modules.data.concepts import scan
from modules.data.conditions import conditions_of
from modules.data.conditions.ConditionData import Rows
from modules.data.epoch_plan import MicroBatch
from modules.data.image_views import crop_of, with_views
from modules.data.prefetch import prefetch
from modules.data.records import CachedRecords, PixelRecords
from modules.data.SampleSource import SampleSource
from modules.data.TensorCache import TensorCache
from modules.families.registry import FAMILIES


def micro_batch(*samples: tuple[int, int], real: bool = True) -> MicroBatch:
    return MicroBatch(np.array(samples), 0, real)


@pytest.fixture
def make_source(tmp_path):
    """A function that makes a source of four samples, two of them of a regularisation concept of weight 0.5."""

    def make(seed: int = 1, caption_dropout: float = 0.0, dtype=torch.float32) -> SampleSource:
        concepts = [ConceptConfig(path="a"), ConceptConfig(path="b", loss_weight=0.5)]
        dataset = SimpleNamespace(concepts=concepts, concept_index=np.array([0, 0, 1, 1]))
        captions = ["zero", "one", "two", "three", ""]
        options = [(caption,) for caption in captions[:4]]
        latents, text = TensorCache(tmp_path, "latents", 0), TensorCache(tmp_path, "text", 0)
        for number in range(4):
            latents.put(f"l{number}", {"latents": torch.full((4, 6, 6), float(number))})
        for number in range(5):
            text.put(f"t{number}", {"prompt_embeds": torch.full((7, 3), float(number))})
        return SampleSource(
            dataset=dataset,
            buckets=None,
            pictures=CachedRecords(latents, [f"l{number}" for number in range(4)], pytest.fail),
            captions=CaptionSource(dataset, options, seed, 1),
            text=CachedRecords(text, {caption: f"t{i}" for i, caption in enumerate(captions)}, pytest.fail),
            caption_dropout=caption_dropout,
            seed=seed,
            dtype=dtype,
        )

    return make


# --- what a batch holds -----------------------------------------------------------------------------------------------


def test_a_batch_holds_its_samples_in_their_order(make_source):
    batch = make_source().batch(micro_batch((2, 0), (0, 0), (1, 0)), epoch=0)
    assert batch.latents[:, 0, 0, 0].tolist() == [2.0, 0.0, 1.0]
    assert batch.text["prompt_embeds"][:, 0, 0].tolist() == [2.0, 0.0, 1.0]
    assert batch.prompts == ["two", "zero", "one"]
    assert batch.weight.tolist() == [0.5, 1.0, 1.0]
    assert batch.count == 3
    assert batch.noise.shape == batch.latents.shape


def test_noise_and_timestep_of_a_sample_do_not_depend_on_its_batch(make_source):
    source = make_source()
    together = source.batch(micro_batch((0, 0), (3, 1), (1, 0)), epoch=2)
    alone = source.batch(micro_batch((3, 1)), epoch=2)
    assert torch.equal(together.noise[1], alone.noise[0])
    assert together.u[1] == alone.u[0]


def test_another_sample_repeat_epoch_or_seed_has_other_noise_and_another_timestep(make_source):
    source = make_source()
    drawn = [
        source.batch(micro_batch((0, 0)), epoch=0),
        source.batch(micro_batch((1, 0)), epoch=0),
        source.batch(micro_batch((0, 1)), epoch=0),
        source.batch(micro_batch((0, 0)), epoch=1),
        make_source(seed=2).batch(micro_batch((0, 0)), epoch=0),
    ]
    for first in range(len(drawn)):
        for second in range(first):
            assert not torch.equal(drawn[first].noise, drawn[second].noise)
            assert drawn[first].u != drawn[second].u


def test_noise_is_normal_and_timesteps_are_uniform(make_source):
    source = make_source()
    drawn = [source.batch(micro_batch((0, 0), (1, 0)), epoch) for epoch in range(400)]
    noise = torch.cat([batch.noise.flatten() for batch in drawn])
    u = torch.cat([batch.u for batch in drawn])
    assert abs(noise.mean()) < 0.01
    assert abs(noise.std() - 1) < 0.01
    assert torch.histc(u, 4, 0, 1).sub(200).abs().max() < 50  # 4 deviations
    assert 0 <= u.min() < u.max() < 1


def test_the_same_noise_in_every_precision(make_source):
    single = make_source().batch(micro_batch((0, 0)), epoch=0)
    double = make_source(dtype=torch.float64).batch(micro_batch((0, 0)), epoch=0)
    assert double.noise.dtype == double.u.dtype == double.weight.dtype == double.latents.dtype == torch.float64
    assert torch.equal(double.noise.float(), single.noise)


def test_weights_and_timesteps_stay_exact_in_half_precision(make_source):
    batch = make_source(dtype=torch.bfloat16).batch(micro_batch((0, 0)), epoch=0)
    assert batch.latents.dtype == torch.bfloat16
    assert batch.u.dtype == batch.weight.dtype == torch.float32


def test_a_batch_that_only_keeps_a_rank_in_step_counts_nothing(make_source):
    batch = make_source().batch(micro_batch((0, 0), real=False), epoch=0)
    assert batch.count == 0
    assert batch.weight.tolist() == [0.0]


def test_caption_dropout_takes_text_and_prompt_together(make_source):
    source = make_source(caption_dropout=0.5)
    samples = [(number, 0) for number in range(4)]
    batches = [source.batch(micro_batch(*samples), epoch) for epoch in range(100)]
    dropped = 0
    for batch in batches:
        for number, prompt in enumerate(batch.prompts):
            expected = 4.0 if prompt == "" else float(number)
            assert (batch.text["prompt_embeds"][number] == expected).all()
            dropped += prompt == ""
    assert 150 < dropped < 250
    again = make_source(caption_dropout=0.5)
    assert [again.batch(micro_batch(*samples), epoch).prompts for epoch in range(100)] == [b.prompts for b in batches]


def test_moving_to_the_same_device_copies_nothing(make_source):
    batch = make_source().batch(micro_batch((0, 0)), epoch=0)
    assert batch.to(torch.device("cpu")) is batch


@pytest.mark.gpu
def test_a_pinned_batch_arrives_on_the_gpu_as_it_was(make_source):
    batch = make_source().batch(micro_batch((0, 0), (1, 0)), epoch=0)
    moved = batch.pinned().to(torch.device("cuda", 0))
    assert isinstance(moved, Batch)
    assert torch.equal(moved.latents.cpu(), batch.latents)
    assert torch.equal(moved.text["prompt_embeds"].cpu(), batch.text["prompt_embeds"])
    assert moved.prompts == batch.prompts


def test_sizes_tell_of_the_picture_and_of_the_crop_of_its_view(picture_folder):
    settings = AugmentationConfig(flip=True, crop_jitter=True, rotation=5)
    concepts = [ConceptConfig(path=str(picture_folder(((100, 50),))), augmentation=settings)]
    dataset, _ = with_views(scan(concepts), DataConfig(augmentation_variants=8), seed=1)
    buckets = Buckets([(32, 24)], np.zeros(8, int))
    (condition,) = conditions_of(FAMILIES["sdxl"])
    crops = set()
    for sample in range(8):
        rows = Rows([], [(1, 0, sample, 0)], (), dataset, buckets, DataConfig())
        height, width, top, left, crop_h, crop_w = condition.given(rows)["sizes"][0].tolist()
        (resized_w, resized_h), box = crop_of(dataset, buckets, sample)
        assert (height, width, crop_h, crop_w) == (50, 100, 24, 32)
        assert (left, top) == box[:2]
        assert 0 <= left <= resized_w - 32
        assert 0 <= top <= resized_h - 24
        crops.add((left, top))
    assert len(crops) > 4


# --- records ----------------------------------------------------------------------------------------------------------


def test_a_record_that_is_missing_is_made_again(tmp_path):
    cache = TensorCache(tmp_path, "latents", 0)
    records = CachedRecords(cache, ["key"], lambda: cache.put("key", {"latents": torch.ones(2)}))
    assert torch.equal(records.record(0)["latents"], torch.ones(2))


def test_pixels_are_those_of_the_file_in_the_shape_of_the_bucket(picture_folder):
    folder = picture_folder(((48, 32), (32, 48)))
    dataset = scan([ConceptConfig(path=str(folder))])
    buckets = Buckets([(24, 40), (40, 24)], np.array([1, 0]))
    records = PixelRecords(dataset, buckets, lambda width, height: (4, height // 2, width // 2))
    pixels = records.record(0)["pixels"]
    assert pixels.shape == (3, 24, 40)
    assert pixels.dtype == torch.float32
    assert -1 <= pixels.min() < -0.9 < 0.9 < pixels.max() <= 1
    assert records.noise_shape({"pixels": pixels[None]}) == (4, 12, 20)
    assert records.record(0)["pixels"] is pixels  # read once


# --- prefetching ------------------------------------------------------------------------------------------------------


@pytest.fixture
def threads():
    """A function that counts the threads that make items for this test."""
    others = set(threading.enumerate())  # a training that a test has broken off may have left one
    return lambda: sum(thread.name == "prefetch" for thread in set(threading.enumerate()) - others)


@pytest.mark.parametrize("depth", [0, 1, 3])
def test_everything_comes_in_order(depth, threads):
    assert list(prefetch(range(20), depth)) == list(range(20))
    assert threads() == 0


@pytest.mark.parametrize("depth", [0, 2])
def test_what_the_maker_raises_comes_after_what_it_made(depth, threads):
    def make():
        yield 1
        yield 2
        raise ValueError("a broken maker")

    items = prefetch(make(), depth)
    assert [next(items), next(items)] == [1, 2]
    with pytest.raises(ValueError, match="a broken maker"):
        next(items)
    assert threads() == 0


def test_it_makes_no_more_than_its_depth_ahead():
    made = []

    def make():
        for number in range(100):
            made.append(number)
            yield number

    items = prefetch(make(), 2)
    for _ in range(5):
        next(items)
    items.close()
    assert 5 <= len(made) <= 5 + 2 + 1


def test_an_abandoned_prefetch_ends_its_thread(threads):
    def make():
        number = 0
        while True:
            yield number
            number += 1

    items = prefetch(make(), 2)
    assert next(items) == 0
    assert threads() == 1
    items.close()
    assert threads() == 0


def test_items_that_are_none_or_exceptions_are_items():
    values = [None, ValueError("an item"), (1, 2)]
    assert list(prefetch(iter(values), 2)) == values
