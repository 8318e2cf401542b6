"""Masks for inpainting are drawn by hash or read from files, and cached with what they leave of their image."""

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from modules.config.ConceptConfig import ConceptConfig
from modules.config.ModelConfig import ModelConfig
from modules.config.SampleConfig import SampleConfig
from modules.config.SamplingConfig import SamplingConfig
from modules.config.TrainConfig import TrainConfig
from modules.data.cache_keys import latent_keys
from modules.data.caching import cache_latents
from modules.data.conditions import conditions_of
from modules.data.conditions.inpainting import (
    KINDS,
    MASKED,
    MASKS,
    RULE,
    MaskRule,
    chosen_inpainting,
    draw_mask,
)
from modules.data.decoding import load_pixels
from modules.data.errors import DataError
from modules.data.FileHashes import FileHashes
from modules.data.masks import MASK
from modules.data.prepare import prepare_data
from modules.data.run_summary import disk_needs, image_warnings
from modules.data.sample_images import check_sample_images, settings_of_captions
from modules.data.TensorCache import TensorCache
from modules.families.inpainting import mask_channels
from modules.families.latents import encode_pixels
from modules.families.registry import FAMILIES
from modules.sampling.generation import with_prompts
from modules.ui.models.concept_preview import preview_looks
from modules.weights.BaseModel import BaseModel
from modules.weights.inspect import BaseInfo

FAMILY = FAMILIES["sd15_inpaint"]
SIZES = ((32, 32), (48, 32))


def settings(folder: Path, family="sd15_inpaint", **changes) -> TrainConfig:
    data = {"resolution": 32, "bucket_step": 8, "inpainting_variants": 3, **changes.pop("data", {})}
    return TrainConfig(family=family, concepts=[ConceptConfig(path=str(folder))], data=data, **changes)


def write_mask(path: Path, size=(32, 32)) -> Path:
    """White on the left half."""
    mask = Image.new("L", size)
    mask.paste(255, (0, 0, size[0] // 2, size[1]))
    mask.save(path)
    return path


@pytest.fixture
def base(tiny_model) -> BaseModel:
    return BaseModel(FAMILY, ModelConfig(base=str(tiny_model("sd15_inpaint"))), torch.device("cpu"))


@pytest.fixture
def keys_of(base, tmp_path):
    def of(config):
        return latent_keys(*prepare_data(config, FAMILY), base, FileHashes(tmp_path / "hashes", 0))

    return of


# --- drawn masks ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shapes", [*KINDS, "mixed"])
def test_a_drawn_mask_paints_a_part_of_the_image_and_is_always_the_same(shapes):
    masks = [draw_mask(shapes, draw, 48, 32) for draw in MaskRule(shapes, 20, seed=1).draws("cat.png", -1)]
    shares = [mask.mean() for mask in masks]
    assert {mask.shape for mask in masks} == {(32, 48)}
    assert min(shares) > 0.01
    assert max(shares) < 1
    assert len({mask.tobytes() for mask in masks}) == 20
    again = [draw_mask(shapes, draw, 48, 32) for draw in MaskRule(shapes, 20, seed=1).draws("cat.png", -1)]
    assert all(np.array_equal(mask, same) for mask, same in zip(masks, again, strict=True))


def test_mixed_masks_are_of_every_kind():
    draws = MaskRule("mixed", 30, seed=1).draws("cat.png", -1)
    kinds = [
        {kind for kind in KINDS if np.array_equal(draw_mask(kind, d, 48, 32), draw_mask("mixed", d, 48, 32))}
        for d in draws
    ]
    assert set().union(*kinds) == set(KINDS)


def test_masks_differ_by_image_augmented_variant_and_seed():
    rule = MaskRule("mixed", 2, seed=1)
    draws = [rule.draws("cat.png", -1), rule.draws("cat.png", 0), rule.draws("dog.png", -1)]
    draws.append(MaskRule("mixed", 2, seed=2).draws("cat.png", -1))
    assert len({number for several in draws for number in several}) == 8


# --- the denoiser's view ----------------------------------------------------------------------------------------------


def test_a_mask_has_one_channel_or_one_for_each_pixel_of_a_latent_cell():
    mask = (torch.rand(2, 1, 16, 24) > 0.5).float()
    cells = mask_channels("latents", mask, 2, 3)
    assert torch.equal(cells, mask[:, :, ::8, ::8])
    pixels = mask_channels("pixels", mask, 2, 3)
    assert pixels.shape == (2, 64, 2, 3)
    assert torch.equal(pixels[1, :, 1, 2], mask[1, 0, 8:, 16:].flatten())


# --- the cache --------------------------------------------------------------------------------------------------------


def test_what_is_cached_is_the_image_encoded_with_gray_in_place_of_each_mask(base, picture_folder, tmp_path):
    folder = picture_folder(SIZES)
    write_mask(folder / "000-mask.png")
    config = settings(folder)
    dataset, buckets = prepare_data(config, FAMILY)
    assert dataset.column(MASK) == [str(folder / "000-mask.png"), None]  # without masked training
    (condition,) = conditions_of(FAMILY)
    assert condition.describe(dataset) == ("Masks", "1 of 2 images have one, 3 are drawn for each other image")
    assert list(image_warnings(config, dataset)) == []
    keys = latent_keys(dataset, buckets, base, FileHashes(tmp_path / "hashes", 0))
    cache = TensorCache(tmp_path / "cache", "latents", 0)
    assert cache_latents(dataset, buckets, keys, cache, base) == {}
    from_file, drawn = (cache.get(key) for key in keys)
    assert from_file[MASKS].dtype == torch.bool
    assert from_file[MASKS][:, 0, :, :8].all()
    assert not from_file[MASKS][:, 0, :, 8:].any()
    width, height = buckets.shape_of(1)
    assert drawn[MASKS].shape == (4, 1, height // 2, width // 2)
    assert drawn[MASKS][0].all()
    masks = [
        np.ones((height, width)),
        *(draw_mask("mixed", d, width, height) for d in dataset.value(RULE, 1).draws("001.png", -1)),
    ]
    with base.using("vae") as pipe, torch.no_grad():
        for number, mask in enumerate(masks):
            pixels = torch.from_numpy(load_pixels(dataset, buckets, 1) * (1 - mask)).float()
            expected = encode_pixels(FAMILY, pipe.vae, pixels[None])[0]
            torch.testing.assert_close(drawn[MASKED][number], expected, rtol=0, atol=1e-5)
            assert np.array_equal(drawn[MASKS][number, 0], mask[::2, ::2])


def test_entries_are_made_anew_only_where_the_masks_change(keys_of, picture_folder):
    folder = picture_folder(SIZES)
    first = keys_of(settings(folder))
    assert keys_of(settings(folder)) == first
    assert keys_of(settings(folder, data={"inpainting_whole": 0.9})) == first
    for changes in ({"data": {"inpainting_shapes": "strokes"}}, {"data": {"inpainting_variants": 4}}, {"seed": 7}):
        assert not set(keys_of(settings(folder, **changes))) & set(first)
    write_mask(folder / "000-mask.png")
    assert keys_of(settings(folder))[1:] == first[1:]
    assert keys_of(settings(folder))[0] != first[0]


def test_the_disk_space_of_masked_images_is_counted(picture_folder):
    folder = picture_folder(SIZES[:1])

    def needed(config):
        family = FAMILIES[config.family]
        needs = disk_needs(config, family, BaseInfo("hub", None, 0, ""), *prepare_data(config, family), 0)
        return needs[0].needed_bytes

    assert needed(settings(folder)) == pytest.approx((1 + 1 + 3) * needed(settings(folder, "sd15")))
    packed = {"data": {"bucket_step": 16}}  # their masks take a byte for each pixel, as much as the latents
    of_pixels = needed(settings(folder, "flux1_fill", **packed))
    assert of_pixels == pytest.approx((1 + 2 * (1 + 3)) * needed(settings(folder, "flux1", **packed)))
    write_mask(folder / "000-mask.png")
    assert needed(settings(folder)) == pytest.approx((1 + 1) * needed(settings(folder, "sd15")))


def test_each_use_of_an_image_draws_one_of_its_masks(keys_of):
    record = {
        MASKS: torch.tensor([True, False, False, False]).reshape(4, 1, 1, 1),
        MASKED: torch.arange(4.0).reshape(4, 1, 1, 1),
    }
    chosen = [chosen_inpainting(record, (1, epoch, 0, 0), whole=0.25) for epoch in range(400)]
    numbers = [int(one[1]) for one in chosen]
    assert all(one[0] == (number == 0) for one, number in zip(chosen, numbers, strict=True))
    assert [numbers.count(number) / 400 for number in range(4)] == pytest.approx([0.25] * 4, abs=0.08)
    assert 0 not in [int(chosen_inpainting(record, (1, epoch, 0, 0), whole=0.0)[1]) for epoch in range(50)]
    of_file = {name: value[1:2] for name, value in record.items()}
    assert {int(chosen_inpainting(of_file, (1, epoch, 0, 0), whole=1.0)[1]) for epoch in range(9)} == {1}


# --- samples and previews ---------------------------------------------------------------------------------------------


def test_a_sample_with_a_prompt_from_a_caption_paints_in_that_image(picture_folder, tmp_path):
    folder = picture_folder(SIZES)
    mask = write_mask(folder / "001-mask.png", (48, 32))
    dataset, _ = prepare_data(settings(folder), FAMILY)
    found = settings_of_captions(dataset, [("a",), ("b", "c")], FAMILY)
    sampling = with_prompts(SamplingConfig(samples=[SampleConfig(), SampleConfig()]), ["a", "b"], found)
    assert [sample.reference for sample in sampling.samples] == [str(folder / "000.png"), str(folder / "001.png")]
    assert [sample.mask for sample in sampling.samples] == ["", str(mask)]
    own = SamplingConfig(samples=[SampleConfig(reference="x.png", mask="y.png")])
    (sample,) = with_prompts(own, ["b"], found).samples
    assert (sample.prompt, sample.reference, sample.mask) == ("b", "x.png", "y.png")


def test_a_mask_that_can_not_be_used_is_named(picture_folder, tmp_path):
    image, mask = str(picture_folder(SIZES) / "000.png"), str(write_mask(tmp_path / "mask.png"))

    def check(family=FAMILY, **sample):
        check_sample_images(SamplingConfig(samples=[SampleConfig(**sample)]), family)

    check(reference=image, mask=mask)
    check(FAMILIES["sd15"], mask=mask)  # ignores it
    with pytest.raises(DataError, match=r"sampling\.samples\.0\.mask .*: there is no image to paint in; set reference"):
        check(mask=mask)
    with pytest.raises(DataError, match=r"mask .*gone\.png: it can't be read .*; choose another mask"):
        check(reference=image, mask=str(tmp_path / "gone.png"))


def test_the_preview_shows_what_each_mask_leaves_of_an_image(picture_folder):
    folder = picture_folder(SIZES)
    path = str(folder / "000.png")
    titles = ["as it is, 32 x 32", "whole image", "mask 1", "mask 2", "mask 3"]
    shown = preview_looks(settings(folder), 0, path, 32)
    assert [look.title for look in shown] == titles
    assert shown[1].image.getcolors() == [(32 * 32, (128, 128, 128))]
    drawn = draw_mask("mixed", MaskRule("mixed", 3, settings(folder).seed).draws("000.png", -1)[0], 32, 32)
    assert np.array_equal((np.asarray(shown[2].image) == 128).all(-1) | ~drawn, np.ones((32, 32), bool))
    write_mask(folder / "000-mask.png")
    shown = preview_looks(settings(folder), 0, path, 32)
    assert [look.title for look in shown] == [titles[0], "mask file"]
    assert shown[1].image.crop((0, 0, 16, 32)).getcolors() == [(16 * 32, (128, 128, 128))]
    assert shown[1].image.crop((16, 0, 32, 32)).tobytes() == shown[0].image.crop((16, 0, 32, 32)).tobytes()
