"""A picture has a fixed set of augmentations; each showing draws one, and an epoch stays as long as without them."""

import os

import numpy as np
import pytest
from PIL import Image

from modules.config.AugmentationConfig import AugmentationConfig
from modules.config.ConceptConfig import ConceptConfig
from modules.config.DataConfig import DataConfig
from modules.config.TrainConfig import TrainConfig
from modules.data import image_views, prepare
from modules.data.Augmentation import NO_AUGMENTATION, Augmentation
from modules.data.buckets import assign_buckets, crop_box
from modules.data.concepts import captions, scan
from modules.data.epoch_plan import count_samples, plan_epoch
from modules.data.errors import DataError
from modules.data.holdout import hold_out
from modules.data.image_views import augmentation_of, crop_of, with_views
from modules.data.images import adjust_colors, fit_image
from modules.data.prepare import prepare_data
from modules.data.RunPlan import RunPlan
from modules.families.registry import FAMILIES

FLIP = {"augmentation": AugmentationConfig(flip=True)}
SIZES = ((64, 48), (48, 64), (64, 64), (80, 40))


def make(folder, seed=1, data=None, **concept):
    """(dataset, buckets) of the folder's pictures; data: settings."""
    data = DataConfig(resolution=32, bucket_step=8, **(data or {}))
    pictures = hold_out(scan([ConceptConfig(path=str(folder), **concept)]), data.validation_share)
    dataset, resolution = with_views(pictures, data, seed)
    return dataset, assign_buckets(dataset.widths, dataset.heights, resolution, 8, 2.0, True)


def augmentations(dataset):
    return [augmentation_of(dataset, sample) for sample in range(len(dataset))]


# --- which views there are --------------------------------------------------------------------------------------------


def test_without_augmentation_and_with_one_resolution_a_picture_is_one_sample(picture_folder):
    dataset, _ = make(picture_folder(SIZES))
    assert dataset.views is None
    assert set(augmentations(dataset)) == {NO_AUGMENTATION}
    assert dataset.num_views.tolist() == [1] * 4


def test_a_picture_has_a_view_for_each_variant_in_each_resolution(picture_folder):
    folder = picture_folder(SIZES)
    dataset, buckets = make(folder, data={"resolutions": [32, 48, 32], "augmentation_variants": 3}, **FLIP)
    assert len(dataset) == 4 * 2 * 3
    assert dataset.num_images == 4
    assert dataset.num_views.tolist() == [6, 0, 0, 0, 0, 0] * 4
    assert [os.path.basename(path) for path in dataset.paths[::6]] == ["000.png", "001.png", "002.png", "003.png"]
    areas = np.array(buckets.shapes)[buckets.index].prod(1)
    assert (areas.reshape(4, 2, 3)[:, 0] <= 32 * 32).all()
    assert (areas.reshape(4, 2, 3)[:, 1] > 32 * 32).all()
    assert captions(dataset)[:7] == [("a photo of a cat, number 0",)] * 6 + [("a photo of a cat, number 1",)]


def test_buckets_of_several_resolutions_are_those_of_each_alone(picture_folder):
    folder = picture_folder(SIZES)
    _, both = make(folder, data={"resolutions": [32, 48]})
    for place, resolution in enumerate((32, 48)):
        _, alone = make(folder, data={"resolutions": [resolution]})
        expected = [alone.shapes[number] for number in alone.index]
        assert [both.shapes[number] for number in both.index[place::2]] == expected
    assert both.shapes == sorted(set(both.shapes))


def test_a_concept_may_have_a_resolution_of_its_own(picture_folder):
    folder = picture_folder(((64, 64),))
    data = DataConfig(resolution=32, resolutions=[24, 32])
    concepts = [ConceptConfig(path=str(folder)), ConceptConfig(path=str(folder), resolution=48)]
    _, resolution = with_views(scan(concepts), data, 1)
    assert resolution.tolist() == [24, 32, 48]


def test_half_of_the_variants_are_mirrored(picture_folder):
    dataset, _ = make(picture_folder(SIZES), data={"augmentation_variants": 4}, **FLIP)
    mirrored = np.array([augmentation.mirrored for augmentation in augmentations(dataset)])
    assert mirrored.reshape(4, 4).sum(1).tolist() == [2] * 4


def test_looks_stay_when_pictures_are_added_and_change_with_the_seed(picture_folder):
    settings = AugmentationConfig(flip=True, crop_jitter=True, rotation=10, brightness=0.2, hue=0.1)
    folder = picture_folder(SIZES)
    before = augmentations(make(folder, augmentation=settings)[0])
    assert len(set(before)) == 16
    assert augmentations(make(folder, seed=2, augmentation=settings)[0]) != before
    Image.new("RGB", (64, 64)).save(folder / "00.png")  # comes first
    assert augmentations(make(folder, augmentation=settings)[0])[4:] == before


def test_draws_stay_within_their_ranges(picture_folder):
    settings = AugmentationConfig(rotation=10, brightness=0.2, contrast=0.1, saturation=1.0, hue=0.05)
    data = {"augmentation_variants": 200}
    dataset, _ = make(picture_folder(((64, 64),)), data=data, augmentation=settings)
    drawn = np.array([augmentation[2:] for augmentation in augmentations(dataset)])
    limits = np.array([[-10, 0.8, 0.9, 0, -0.05], [10, 1.2, 1.1, 2, 0.05]])
    assert (drawn >= limits[0]).all()
    assert (drawn <= limits[1]).all()
    assert np.abs(drawn.min(0) - limits[0]).max() < 0.4
    assert np.abs(drawn.max(0) - limits[1]).max() < 0.4


# --- which of them is shown -------------------------------------------------------------------------------------------


def test_an_epoch_shows_each_picture_as_often_as_without_views_in_views_of_its_own(picture_folder):
    dataset, buckets = make(picture_folder(SIZES), data={"resolutions": [32, 48]}, repeats=2.5, **FLIP)
    assert count_samples(len(dataset), dataset.repeats, concept_index=dataset.concept_index) == 10
    plans = [
        plan_epoch(buckets.index, dataset.repeats, 1, epoch, 4, None, dataset.concept_index, dataset.num_views)
        for epoch in range(100)
    ]
    for plan in plans:
        shown = np.bincount(dataset.views.first[plan.samples[:, 0]], minlength=len(dataset))
        assert shown.sum() == 10
        assert set(shown[::8].tolist()) <= {2, 3}
        assert len({tuple(row) for row in plan.samples.tolist()}) == 10
    counts = np.bincount(np.concatenate([plan.samples[:, 0] for plan in plans]), minlength=len(dataset))
    assert (counts > 10).all()  # 31 on average
    assert (counts < 60).all()


def test_steps_hold_one_shape_though_views_are_drawn(picture_folder):
    dataset, buckets = make(picture_folder(((64, 64),) * 40), data={"resolutions": [32, 48]})
    plan = plan_epoch(buckets.index, dataset.repeats, 1, 0, 4, num_views=dataset.num_views)
    mixed = sum(len(set(buckets.index[plan.step(i)[:, 0]].tolist())) > 1 for i in range(plan.num_steps))
    assert plan.num_steps == 10
    assert mixed <= 1


def test_a_picture_of_which_one_view_is_unusable_is_left_out(picture_folder):
    dataset, buckets = make(picture_folder(SIZES), **FLIP)
    plan = RunPlan(dataset, buckets, [5], seed=1, global_batch=4)
    assert plan.num_samples == 3
    steps = plan.steps(0, 0, 0, 1, 1)
    shown = [int(row[0]) for _ in range(20) for batch in next(steps).micro_batches for row in batch.samples]
    assert not set(shown) & {4, 5, 6, 7}


# --- what a view looks like -------------------------------------------------------------------------------------------


def gradient(width, height):
    """Red rises to the right, green downwards."""
    y, x = np.mgrid[0:height, 0:width]
    picture = np.stack((x * 255 / (width - 1), y * 255 / (height - 1), np.full(x.shape, 128)), axis=-1)
    return Image.fromarray(picture.round().astype(np.uint8))


def test_a_mirrored_view_is_the_mirror_image_of_the_plain_one():
    picture = gradient(90, 60)
    plain = np.asarray(fit_image(picture, 48, 48)).astype(int)
    mirrored = np.asarray(fit_image(picture, 48, 48, Augmentation(mirrored=True))).astype(int)
    assert np.abs(mirrored[:, ::-1] - plain).max() <= 1


@pytest.mark.parametrize("place", [(0.0, 0.0), (0.999999, 0.999999), (0.3, 0.6)])
def test_the_box_of_a_jittered_view_is_what_is_cut_from_the_resized_picture(place):
    picture = gradient(120, 60)
    augmentation = Augmentation(crop_position=place)
    size, box = crop_box(120, 60, 40, 40, augmentation)
    assert size == (80, 40)
    assert box[0] == int(place[0] * 41)
    assert box[1] == 0
    whole = picture.resize(size, Image.Resampling.LANCZOS).crop(box)
    difference = np.asarray(fit_image(picture, 40, 40, augmentation)).astype(int) - np.asarray(whole)
    assert np.abs(difference).max() <= 2


def test_crop_places_are_spread_over_all_that_is_spare(picture_folder):
    folder = picture_folder(((120, 60),))
    settings = AugmentationConfig(crop_jitter=True)
    data = {"augmentation_variants": 400, "bucketing": False}
    dataset, _ = make(folder, data=data, augmentation=settings)
    buckets = assign_buckets(dataset.widths, dataset.heights, 32, 8, 2.0, False)
    lefts = [crop_of(dataset, buckets, sample).box[0] for sample in range(len(dataset))]
    assert min(lefts) == 0
    assert max(lefts) == 32
    assert len(set(lefts)) == 33


@pytest.mark.parametrize("degrees", [-45, -7.5, 1, 20, 45])
@pytest.mark.parametrize("shape", [(48, 48), (64, 32), (32, 64)])
def test_a_turned_view_has_no_empty_corners(degrees, shape):
    white = Image.new("RGB", (200, 150), "white")
    turned = fit_image(white, *shape, Augmentation(degrees=degrees))
    assert turned.size == shape
    assert np.asarray(turned).min() == 255


def test_a_turned_view_turns_about_its_centre_and_says_where_it_is():
    picture = gradient(200, 200)
    augmentation = Augmentation(degrees=90 / 2)
    size, (left, top, right, bottom) = crop_box(200, 200, 50, 50, augmentation)
    turned = np.asarray(fit_image(picture, 50, 50, augmentation)).astype(float)
    centre = np.asarray(picture.resize(size, Image.Resampling.LANCZOS)).astype(float)
    x, y = (left + right) // 2, (top + bottom) // 2
    middle = centre[y - 1 : y + 1, x - 1 : x + 1].mean((0, 1))
    assert np.abs(turned[24:26, 24:26].mean((0, 1)) - middle).max() < 1.5
    # to the left by 45 degrees: upwards in the turned view is towards the picture's right upper corner
    assert turned[0, 25, 0] > turned[49, 25, 0]
    assert turned[0, 25, 1] < turned[49, 25, 1]


def test_brightness_contrast_and_saturation_are_what_their_definitions_say():
    picture = gradient(16, 16)
    values = np.asarray(picture).astype(float)
    grey = np.asarray(picture.convert("L")).astype(float)[..., None]
    expected = {
        "brightness": values * 0.7,
        "contrast": (values - round(grey.mean())) * 0.7 + round(grey.mean()),
        "saturation": (values - grey) * 0.7 + grey,
    }
    for name, wanted in expected.items():
        changed = np.asarray(adjust_colors(picture, Augmentation(**{name: 0.7}))).astype(float)
        assert np.abs(changed - wanted).max() <= 1.5, name


def test_a_third_of_the_circle_turns_red_into_green():
    red = Image.new("RGB", (4, 4), (255, 0, 0))
    r, g, b = adjust_colors(red, Augmentation(hue=1 / 3)).getpixel((0, 0))
    assert g == 255
    assert r < 10
    assert b < 10
    assert adjust_colors(red, Augmentation(hue=-1 / 3)).getpixel((0, 0))[2] >= 250


def test_a_plain_look_changes_nothing():
    picture = gradient(48, 48)
    assert fit_image(picture, 48, 48, NO_AUGMENTATION) is picture
    assert adjust_colors(picture, NO_AUGMENTATION) is picture
    assert NO_AUGMENTATION.cache_key_part == {}
    changed = Augmentation(crop_position=(0.0, 1.0), degrees=3.0)
    assert changed.cache_key_part == {"place": (0.0, 1.0), "degrees": 3.0}


def test_a_concept_may_have_resolutions_of_its_own(picture_folder):
    folder = picture_folder(SIZES)
    dataset, buckets = make(folder, data={"resolutions": [32]}, resolution=16, resolutions=[40, 48])
    assert dataset.num_views.tolist() == [2, 0] * 4
    areas = np.array(buckets.shapes)[buckets.index].prod(1).reshape(4, 2)
    assert (areas[:, 0] > 32 * 32).all()
    assert (areas[:, 1] > areas[:, 0]).all()


FIXED = AugmentationConfig(
    fixed_flip=True, fixed_rotation=90, fixed_brightness=-0.5, fixed_contrast=0.5, fixed_saturation=-1, fixed_hue=0.25
)
CHANGES = Augmentation(True, None, 90, 0.5, 1.5, 0.0, 0.25)


def test_fixed_changes_are_those_of_every_image_also_of_those_held_out(picture_folder):
    dataset, _ = make(picture_folder(SIZES), augmentation=FIXED, data={"validation_share": 0.4})
    assert augmentations(dataset) == [CHANGES] * 4
    assert dataset.num_views.tolist() == [1] * 4


def test_variants_are_drawn_on_top_of_fixed_changes(picture_folder):
    both = AugmentationConfig(fixed_flip=True, flip=True, fixed_hue=0.25, hue=0.1, fixed_contrast=0.5, contrast=0.2)
    plain = AugmentationConfig(flip=True, hue=0.1, contrast=0.2)
    folder = picture_folder(SIZES)
    drawn, fixed = ([*augmentations(make(folder, augmentation=chosen)[0])] for chosen in (plain, both))
    for own, changed in zip(drawn, fixed, strict=True):
        assert changed.mirrored != own.mirrored
        assert changed.hue == pytest.approx(own.hue + 0.25)
        assert changed.contrast == pytest.approx(own.contrast * 1.5)


def test_more_views_and_samples_than_can_be_planned_are_refused(picture_folder, monkeypatch):
    folder = picture_folder()
    config = TrainConfig(concepts=[ConceptConfig(path=str(folder), repeats=3.0, captions="prompt", **FLIP)])
    monkeypatch.setattr(image_views, "MAX_VIEWS", 15)
    with pytest.raises(DataError, match=r"^data\.augmentation_variants 4: with 4 images these are 16 variants"):
        prepare_data(config, FAMILIES["sd15"])
    monkeypatch.setattr(prepare, "MAX_SAMPLES", 11)
    with pytest.raises(DataError, match=r"^concepts\.0\.repeats 3: an epoch would have 12 samples, and at most 11"):
        prepare_data(config, FAMILIES["sd15"])
