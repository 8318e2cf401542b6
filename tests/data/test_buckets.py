"""Buckets have about one area, fit the step, and lie as near to each picture's aspect as the step allows."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from modules.config.DataConfig import DataConfig
from modules.config.image_sizes import _has_other_shapes
from modules.data.buckets import assign_buckets, bucket_shapes, check_resolution, crop_box
from modules.data.errors import DataError

resolutions = st.integers(8, 160).map(lambda n: n * 8)
steps = st.sampled_from([8, 16, 32, 64])
side = st.integers(1, 20_000)
pictures = st.lists(st.tuples(side, side), min_size=1, max_size=20)


def assign(sizes, resolution=512, step=64, max_aspect=2.0, bucketing=True, upscale=True, **limits):
    widths, heights = np.array(sizes, np.int32).T
    return assign_buckets(widths, heights, resolution, step, max_aspect, bucketing, upscale, **limits)


def shape_of(size, **settings):
    buckets = assign([size], **settings)
    return buckets.shapes[buckets.index[0]]


def test_known_shapes_at_512():
    assert bucket_shapes(512, 64, 2.0) == [(384, 640), (448, 576), (512, 512), (576, 448), (640, 384)]


@pytest.mark.parametrize(
    ("size", "shape"),
    [
        ((1000, 1000), (512, 512)),
        ((1500, 1000), (640, 384)),
        ((1000, 1500), (384, 640)),
        ((4000, 3000), (576, 448)),
        ((9000, 1000), (640, 384)),  # beyond max_aspect
        ((1, 1), (512, 512)),
    ],
)
def test_known_pictures_get_the_nearest_shape(size, shape):
    assert shape_of(size) == shape


@settings(deadline=None)
@given(resolutions, steps, st.floats(1, 8), pictures)
def test_every_shape_fits_step_area_and_aspect(resolution, step, max_aspect, sizes):
    buckets = assign(sizes, resolution, step, max_aspect)
    for width, height in buckets.shapes:
        assert width % step == height % step == 0
        assert min(width, height) >= step
        assert width * height <= resolution**2
        # the other side is the largest that fits: one step more on the shorter would pass the area
        assert width == height or min(width, height) + step > resolution**2 / max(width, height)
        assert max(width, height) <= max_aspect * min(width, height)


@settings(deadline=None)
@given(resolutions, steps, st.floats(1, 8), pictures)
def test_no_other_shape_has_a_nearer_aspect(resolution, step, max_aspect, sizes):
    buckets = assign(sizes, resolution, step, max_aspect)
    possible = np.log([w / h for w, h in bucket_shapes(resolution, step, max_aspect)])
    for (width, height), index in zip(sizes, buckets.index, strict=True):
        chosen = buckets.shapes[index]
        distances = np.abs(possible - np.log(width / height))
        assert abs(np.log(chosen[0] / chosen[1]) - np.log(width / height)) <= distances.min() + 1e-9


@settings(deadline=None)
@given(resolutions, steps, st.floats(1, 8), pictures)
def test_only_shapes_in_use_are_listed_and_sorted(resolution, step, max_aspect, sizes):
    buckets = assign(sizes, resolution, step, max_aspect)
    assert buckets.shapes == sorted(set(buckets.shapes))
    assert buckets.index.dtype == np.int32
    assert sorted(set(buckets.index.tolist())) == list(range(len(buckets.shapes)))


def test_a_picture_gets_the_same_shape_whatever_the_others_are():
    many = [(w, h) for w in range(100, 3000, 130) for h in range(100, 3000, 170)]
    buckets = assign(many)
    assert [buckets.shapes[i] for i in buckets.index] == [shape_of(size) for size in many]


def test_without_bucketing_every_picture_is_a_square():
    buckets = assign([(100, 900), (500, 400)], resolution=520, bucketing=False)
    assert buckets.shapes == [(520, 520)]
    assert buckets.index.tolist() == [0, 0]


def test_a_step_larger_than_the_resolution_is_refused():
    with pytest.raises(DataError, match=r"data\.bucket_step 64: must not be larger than data\.resolution \(32\)"):
        assign([(10, 10)], resolution=32)


def test_a_resolution_off_the_grid_is_refused_with_its_neighbours():
    with pytest.raises(DataError) as error:
        check_resolution(500, 64, 8, family="sd15")
    assert str(error.value) == "data.resolution 500: sd15 needs a multiple of 8; use 496 or 504."


def test_a_step_off_the_grid_and_a_sampling_size_are_refused_by_their_names():
    with pytest.raises(DataError, match=r"data\.bucket_step 20: the model needs a multiple of 8; use 16 or 24\."):
        check_resolution(512, 20, 8)
    with pytest.raises(DataError, match=r"sampling\.samples\.0\.width 4: the model needs a multiple of 8; use 8\."):
        check_resolution(4, 8, 8, setting="sampling.samples.0.width")
    check_resolution(512, 64, 8)


def test_known_crops():
    assert crop_box(1000, 500, 512, 512) == ((1024, 512), (256, 0, 768, 512))
    assert crop_box(500, 1000, 512, 512) == ((512, 1024), (0, 256, 512, 768))
    assert crop_box(640, 384, 640, 384) == ((640, 384), (0, 0, 640, 384))
    assert crop_box(601, 512, 512, 512) == ((601, 512), (44, 0, 556, 512))


@settings(deadline=None)
@given(side, side, st.integers(1, 256).map(lambda n: 8 * n), st.integers(1, 256).map(lambda n: 8 * n))
def test_a_crop_keeps_the_aspect_covers_the_bucket_and_is_centred(width, height, bucket_w, bucket_h):
    (w, h), (left, top, right, bottom) = crop_box(width, height, bucket_w, bucket_h)
    assert (right - left, bottom - top) == (bucket_w, bucket_h)
    assert 0 <= left <= right <= w
    assert 0 <= top <= bottom <= h
    assert w == bucket_w or h == bucket_h
    assert abs((w - right) - left) <= 1
    assert abs((h - bottom) - top) <= 1
    scale = max(bucket_w / width, bucket_h / height)
    assert abs(w - width * scale) <= 0.5 + 1e-6
    assert abs(h - height * scale) <= 0.5 + 1e-6


@pytest.mark.parametrize("bucketing", [True, False])
def test_one_resolution_for_each_picture_gives_the_buckets_of_one_for_all(bucketing):
    widths, heights = np.random.default_rng(0).integers(100, 3000, (2, 2000), np.int32)
    one = assign_buckets(widths, heights, 512, 64, 2.0, bucketing)
    each = assign_buckets(widths, heights, np.full(2000, 512, np.int32), 64, 2.0, bucketing)
    assert each.shapes == one.shapes
    assert np.array_equal(each.index, one.index)
    assert each.index.dtype == one.index.dtype


def test_a_step_beyond_the_resolution_names_the_setting_of_that_resolution():
    with pytest.raises(DataError) as error:
        check_resolution(32, 64, 8, setting="concepts.1.resolution")
    assert str(error.value) == (
        "data.bucket_step 64: must not be larger than concepts.1.resolution (32); use 32 or less."
    )


@pytest.mark.parametrize(
    ("size", "shape"),
    [
        ((1500, 1000), (640, 384)),  # large enough
        ((640, 384), (640, 384)),
        ((639, 500), (576, 448)),
        ((300, 200), (256, 192)),
        ((500, 70), (128, 64)),  # cropped to the aspect ratio
        ((40, 30), (64, 64)),  # not even a step
        ((512, 511), (512, 448)),
    ],
)
def test_small_images_keep_their_size_unless_they_are_to_be_upscaled(size, shape):
    assert shape_of(size, upscale=False) == shape


@settings(deadline=None)
@given(resolutions, steps, pictures)
def test_without_upscaling_no_image_is_enlarged_by_more_than_a_step_nor_any_shape_too_large(resolution, step, sizes):
    step = min(step, resolution)
    buckets = assign(sizes, resolution, step, upscale=False)
    for number, (width, height) in enumerate(sizes):
        bucket_w, bucket_h = buckets.shape_of(number)
        assert bucket_w * bucket_h <= resolution**2
        if min(width, height) >= step and width <= 2 * height and height <= 2 * width:
            resized, _ = crop_box(width, height, bucket_w, bucket_h)
            assert resized[0] <= width + step
            assert resized[1] <= height + step


@pytest.mark.parametrize("upscale", [True, False])
def test_no_side_is_longer_than_the_longest(upscale):
    sizes = [(3000, 1000), (200, 700), (600, 600), (1000, 2500)]
    shapes = assign(sizes, max_aspect=4.0, max_side=640, upscale=upscale).shapes
    assert max(max(shape) for shape in shapes) == 640
    assert (512, 512) in shapes
    assert max(max(shape) for shape in assign(sizes, max_aspect=4.0, upscale=upscale).shapes) > 640


def test_without_buckets_all_images_can_have_one_size_that_is_no_square():
    buckets = assign([(3000, 1000), (200, 700)], bucketing=False, fixed_shape=(384, 640))
    assert (buckets.shapes, buckets.index.tolist()) == ([(384, 640)], [0, 0])


@pytest.mark.parametrize("step", [16, 64])
def test_a_step_that_leaves_only_the_square_is_known_to_the_settings(step):
    for resolution, max_aspect in itertools.product(range(step, 6 * step, step), (1.2, 2.0, 3.0)):
        data = DataConfig(resolution=resolution, bucket_step=step, max_aspect=max_aspect)
        is_alone = len(bucket_shapes(resolution, step, max_aspect)) == 1
        assert _has_other_shapes(data, resolution, step) != is_alone
