"""Masks are found beside their pictures, go the way of their picture, and are cached with it."""

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from modules.config.ConceptConfig import ConceptConfig
from modules.config.DiffusionConfig import DiffusionConfig
from modules.config.LossConfig import LossConfig
from modules.config.ModelConfig import ModelConfig
from modules.config.TrainConfig import TrainConfig
from modules.curation.Journal import Journal
from modules.curation.mask_files import MaskFile
from modules.curation.MaskPainting import Brush, MaskPainting
from modules.data.Augmentation import Augmentation
from modules.data.cache_keys import latent_keys
from modules.data.caching import cache_latents
from modules.data.CaptionSource import CaptionSource
from modules.data.concepts import scan
from modules.data.epoch_plan import MicroBatch
from modules.data.errors import DataError
from modules.data.FileHashes import FileHashes
from modules.data.images import fit_image, load_image
from modules.data.mask_names import is_mask
from modules.data.masks import MASK, find_masks, load_mask, unused_masks_warning
from modules.data.prepare import prepare_data
from modules.data.records import CachedRecords
from modules.data.SampleSource import SampleSource
from modules.data.TensorCache import TensorCache
from modules.families.registry import FAMILIES
from modules.weights.BaseModel import BaseModel

SIZES = ((32, 32), (48, 32), (32, 48))


def write_mask(path: Path, size=(32, 32), white=(0, 0, 16, 32)) -> Path:
    """A mask that is white in the box `white` (left, top, right, bottom)."""
    mask = Image.new("L", size, 0)
    mask.paste(255, white)
    mask.save(path)
    return path


def prepare(folder: Path, masked=True, **data):
    config = TrainConfig(
        concepts=[ConceptConfig(path=str(folder))],
        data={"resolution": 32, "bucket_step": 8, **data},
        loss={"masked_training": masked},
    )
    return prepare_data(config, FAMILIES["sd15"])


@pytest.fixture
def base(tiny_sd15) -> BaseModel:
    return BaseModel(FAMILIES["sd15"], ModelConfig(base=str(tiny_sd15)), torch.device("cpu"))


@pytest.fixture
def hashes(tmp_path) -> FileHashes:
    return FileHashes(tmp_path / "hashes", 0)


# --- which files are masks --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["000-masklabel.png", "000-mask.PNG", "000_mask.jpg", "000.mask.png"])
def test_a_mask_is_found_beside_its_picture_and_is_no_picture(picture_folder, name):
    folder = picture_folder(SIZES)
    write_mask(folder / name)
    dataset = scan([ConceptConfig(path=str(folder))])
    assert [Path(path).name for path in dataset.paths] == ["000.png", "001.png", "002.png"]
    assert find_masks(dataset) == [str(folder / name), None, None]


def test_a_picture_that_is_only_called_like_a_mask_is_a_picture():
    assert is_mask("cat-mask.png", {"cat-mask", "cat"})
    assert is_mask("Cat-Mask.Png", {"cat-mask", "cat"})
    assert not is_mask("venetian_mask.png", {"venetian_mask", "cat"})
    assert not is_mask("-mask.png", {"-mask", ""})
    assert not is_mask("cat-mask.txt", {"cat-mask", "cat"})


def test_of_two_masks_the_same_one_is_always_taken(picture_folder):
    folder = picture_folder(SIZES[:1])
    for name in ("000_mask.png", "000-masklabel.png", "000-mask.png"):
        write_mask(folder / name)
    assert find_masks(scan([ConceptConfig(path=str(folder))])) == [str(folder / "000-masklabel.png")]


def test_masks_are_looked_for_only_in_masked_training(picture_folder):
    folder = picture_folder(SIZES)
    write_mask(folder / "000-mask.png")
    assert prepare(folder, masked=False)[0].column(MASK) is None
    assert prepare(folder)[0].column(MASK) == [str(folder / "000-mask.png"), None, None]


def concept_with_masks(folder, masks):
    return ConceptConfig(path=str(folder), mask_folder=str(masks))


def test_masks_in_another_folder_have_the_names_of_their_pictures(picture_folder, tmp_path):
    folder, masks = picture_folder(SIZES), tmp_path / "masks"
    for place in (folder / "more", masks / "more"):
        place.mkdir(parents=True)
    Image.new("RGB", (32, 32)).save(folder / "more/000.jpg")
    write_mask(folder / "000-mask.png")  # no picture, and not looked for
    found = [write_mask(masks / name) for name in ("001.png", "002-masklabel.png", "more/000.png")]
    dataset = scan([concept_with_masks(folder, masks)])
    names = ["000.png", "001.png", "002.png", "more/000.jpg"]
    assert dataset.paths == [str(folder / name) for name in names]
    assert find_masks(dataset) == [None, *map(str, found)]


@pytest.mark.parametrize("setting", ["mask_folder", "reference_folder"])
def test_what_belongs_to_the_pictures_is_no_picture_where_it_lies_below_them(picture_folder, setting):
    folder = picture_folder(SIZES)
    (folder / "apart/more").mkdir(parents=True)
    write_mask(folder / "apart/000.png")
    write_mask(folder / "apart/more/000.png")
    for place in (folder / "apart", folder / "." / "apart"):
        dataset = scan([ConceptConfig(path=str(folder), **{setting: str(place)})])
        assert [Path(path).name for path in dataset.paths] == ["000.png", "001.png", "002.png"]
    assert len(scan([ConceptConfig(path=str(folder), **{setting: str(folder)})])) == 5  # the same folder for both


def test_a_mask_folder_that_helps_nothing_is_named(picture_folder, tmp_path):
    folder, masks = picture_folder(SIZES), tmp_path / "masks"
    config = TrainConfig(concepts=[concept_with_masks(folder, masks)])
    dataset = scan(config.concepts)
    with pytest.raises(DataError, match=r"concepts\.0\.mask_folder .*masks: does not exist; choose a folder of masks"):
        find_masks(dataset)
    masks.mkdir()
    with pytest.raises(DataError, match=r"it holds a mask of none of the 3 images; name masks like the images"):
        find_masks(dataset)
    assert "its masks are not used; turn on loss.masked_training" in unused_masks_warning(config, dataset)


def test_transparency_is_the_mask_of_a_picture_without_one(picture_folder, base, hashes, tmp_path):
    folder = picture_folder(SIZES)
    for name in ("000.png", "001.png"):
        picture = Image.open(folder / name).convert("RGBA")
        picture.putalpha(Image.fromarray(np.tile(np.linspace(0, 255, picture.width).astype(np.uint8), (32, 1))))
        picture.save(folder / name)
    mask = write_mask(folder / "000-mask.png")
    config = TrainConfig(
        concepts=[ConceptConfig(path=str(folder), alpha_mask=True)],
        data={"resolution": 32, "bucket_step": 8},
        loss={"masked_training": True},
    )
    dataset, buckets = prepare_data(config, FAMILIES["sd15"])
    assert dataset.column(MASK) == [str(mask), str(folder / "001.png"), None]
    keys, cache = latent_keys(dataset, buckets, base, hashes), TensorCache(tmp_path / "cache", "latents", 0)
    assert cache_latents(dataset, buckets, keys, cache, base) == {}
    columns = cache.get(keys[1])["mask"].mean((0, 1))
    assert (columns.diff() > 0).all()  # from transparent to opaque
    assert columns[0] < 0.15
    assert columns[-1] > 0.85
    assert "mask" not in cache.get(keys[2])


def test_a_mask_of_another_aspect_ratio_is_refused_in_one_sentence(picture_folder):
    folder = picture_folder(SIZES)
    mask = write_mask(folder / "001-mask.png", (32, 32))
    with pytest.raises(DataError) as refused:
        prepare(folder)
    assert str(refused.value) == (
        f"mask {mask} is 32 x 32 and its image 001.png 48 x 32: a mask needs the aspect ratio of its image; save it in "
        "the size of the image."
    )


@pytest.mark.parametrize("size", [(96, 64), (24, 16), (25, 17)])
def test_a_mask_may_have_another_size(picture_folder, size):
    folder = picture_folder(SIZES)
    write_mask(folder / "001-mask.png", size)
    assert prepare(folder)[0].column(MASK)[1] is not None


def test_a_mask_that_is_no_picture_leaves_its_picture_out(picture_folder):
    folder = picture_folder(SIZES)
    (folder / "001-mask.png").write_bytes(b"no picture")
    kept = write_mask(folder / "002-mask.png", (32, 48))
    dataset, buckets = prepare(folder, resolutions=[32, 24])
    assert [Path(path).name for path in dataset.paths] == ["000.png", "000.png", "002.png", "002.png"]
    assert dataset.column(MASK) == [None, None, str(kept), str(kept)]
    assert len(buckets.index) == 4
    ((path, reason),) = dataset.unreadable
    assert path == str(folder / "001.png")
    assert reason.startswith("its mask 001-mask.png can't be read: ")
    for mask in ("000-mask.png", "002-mask.png"):
        (folder / mask).write_bytes(b"no picture")
    with pytest.raises(DataError, match="none of the masks can be read"):
        prepare(folder)


def test_upper_and_lower_case_of_a_mask_are_the_same(picture_folder):
    folder = picture_folder(SIZES[:1])
    (folder / "000.png").rename(folder / "Cat.Png")
    mask = write_mask(folder / "cat-Mask.PNG")
    dataset = prepare(folder)[0]
    assert [Path(path).name for path in dataset.paths] == ["Cat.Png"]
    assert dataset.column(MASK) == [str(mask)]


def test_masks_that_nobody_asked_for_are_counted(picture_folder):
    folder = picture_folder(SIZES)
    write_mask(folder / "000-mask.png")
    write_mask(folder / "001_mask.png", (48, 32))
    config = TrainConfig()
    warning = unused_masks_warning(config, prepare(folder, masked=False)[0])
    assert warning.startswith("2 images are skipped as masks because of their names")
    config.loss.masked_training = True
    assert unused_masks_warning(config, prepare(folder)[0]) is None


# --- their way to the latents -----------------------------------------------------------------------------------------


def test_white_is_one_and_black_is_zero(tmp_path):
    mask = load_mask(str(write_mask(tmp_path / "mask.png")), (32, 32), 32, 32)
    assert mask.shape == (1, 32, 32)
    assert mask.dtype == np.float32
    assert (mask[..., :16] == 1).all()
    assert (mask[..., 16:] == 0).all()


@pytest.mark.parametrize(
    "augmentation",
    [Augmentation(), Augmentation(mirrored=True), Augmentation(crop_position=(0.9, 0.1)), Augmentation(degrees=10.0)],
)
def test_a_mask_is_cut_mirrored_and_turned_as_its_picture(tmp_path, augmentation):
    path = write_mask(tmp_path / "both.png", (60, 40), (5, 3, 30, 25))
    picture = fit_image(load_image(str(path)), 32, 24, augmentation).convert("L")
    mask = load_mask(str(path), (60, 40), 32, 24, augmentation)
    np.testing.assert_allclose(mask[0], np.asarray(picture) / 255, atol=0.01)


def test_colours_do_not_change_a_mask(tmp_path):
    path = str(write_mask(tmp_path / "mask.png"))
    plain = load_mask(path, (32, 32), 32, 32)
    assert np.array_equal(load_mask(path, (32, 32), 32, 32, Augmentation(brightness=0.5, contrast=2.0, hue=0.3)), plain)


def test_white_painted_on_a_transparent_layer_is_what_is_learned():
    path = str(Path(__file__).parent / "pictures" / "mask_white_on_clear.png")
    mask = load_mask(path, (64, 32), 64, 32)
    with Image.open(path) as image:
        painted = np.asarray(image.getchannel("A"), np.float32) / 255
    assert 0 < painted.mean() < 1
    assert np.array_equal(mask[0], painted)


def test_a_mask_of_another_size_covers_the_same_part(tmp_path):
    small = load_mask(str(write_mask(tmp_path / "s.png", (16, 16), (0, 0, 8, 16))), (32, 32), 32, 32)
    large = load_mask(str(write_mask(tmp_path / "l.png", (64, 64), (0, 0, 32, 64))), (32, 32), 32, 32)
    np.testing.assert_allclose(small[..., [0, 10, 20, 31]], [[[1, 1, 0, 0]] * 32], atol=1e-6)
    np.testing.assert_allclose(large[..., [0, 10, 20, 31]], [[[1, 1, 0, 0]] * 32], atol=1e-6)


def test_the_cache_holds_the_mask_in_the_latents_size(base, hashes, picture_folder, tmp_path):
    folder = picture_folder(SIZES)
    write_mask(folder / "000-mask.png", white=(0, 0, 15, 32))
    dataset, buckets = prepare(folder)
    keys = latent_keys(dataset, buckets, base, hashes)
    cache = TensorCache(tmp_path / "cache", "latents", 0)
    assert cache_latents(dataset, buckets, keys, cache, base) == {}
    record = cache.get(keys[0])
    assert record["mask"].shape == (1, 16, 16)
    # two pixels to a cell: seven white columns, one of which half is white, eight black ones
    assert record["mask"][0, 3].tolist() == [1.0] * 7 + [0.5] + [0.0] * 8
    assert set(cache.get(keys[1])) == {"latents"}


def test_a_painted_mask_is_pixel_for_pixel_that_of_the_batch(base, hashes, tmp_path):
    folder, (width, height) = tmp_path / "images", (72, 100)  # upright; the bucket has another aspect ratio
    folder.mkdir()
    sideways = Image.Exif()
    sideways[0x0112] = 6
    Image.new("RGB", (height, width), (9, 99, 30)).save(folder / "cat.jpg", exif=sideways)
    concept = ConceptConfig(path=str(folder))
    painting = MaskPainting(np.zeros((height, width), np.uint8))
    painting.begin_stroke(Brush(21, softness=0.7), 4, 6)
    painting.stroke_to(60, 70)
    painting.fill_polygon([(40, 5), (70, 20), (50, 60)])
    painting.feather(2)
    Journal(folder, tmp_path / "state").apply(
        "Mask", MaskFile(str(folder / "cat.jpg"), concept).changes(painting.values)
    )

    dataset, buckets = prepare(folder)
    cache = TensorCache(tmp_path / "cache", "latents", 0)
    keys = latent_keys(dataset, buckets, base, hashes)
    assert cache_latents(dataset, buckets, keys, cache, base) == {}
    source = SampleSource(
        dataset=dataset,
        buckets=buckets,
        pictures=CachedRecords(cache, keys, pytest.fail),
        captions=CaptionSource(dataset, [("a cat",)], 1, None),
        text=None,
        seed=1,
        diffusion=DiffusionConfig(),
        loss=LossConfig(masked_training=True, unmasked_probability=0.0),
        caption_dropout=0.0,
        dtype=torch.float32,
    )
    mask = source.batch(MicroBatch(np.array([(0, 0)]), 0, True), 0).mask
    bucket_w, bucket_h = buckets.shapes[buckets.index[0]]
    assert bucket_w * height != bucket_h * width
    fitted = np.asarray(fit_image(Image.fromarray(painting.values), bucket_w, bucket_h), np.float32) / 255
    cells = fitted.reshape(bucket_h // 2, 2, bucket_w // 2, 2).mean((1, 3))
    assert 0.05 < cells.mean() < 0.95
    np.testing.assert_allclose(mask[0, 0].numpy(), cells, atol=1e-6)


def test_caches_made_without_masks_stay_valid_where_there_is_none(base, hashes, picture_folder):
    folder = picture_folder(SIZES)
    mask = write_mask(folder / "000-mask.png")
    without = latent_keys(*prepare(folder, masked=False), base, hashes)
    with_mask = latent_keys(*prepare(folder), base, hashes)
    assert with_mask[1:] == without[1:]
    assert with_mask[0] != without[0]
    write_mask(mask, white=(0, 0, 8, 32))
    assert latent_keys(*prepare(folder), base, hashes)[0] not in (with_mask[0], without[0])


def test_a_mask_that_turns_out_damaged_leaves_its_picture_out(base, hashes, picture_folder, tmp_path):
    folder = picture_folder(SIZES)
    mask = write_mask(folder / "001-mask.png", (48, 32))
    mask.write_bytes(mask.read_bytes()[:-40])
    dataset, buckets = prepare(folder)
    keys = latent_keys(dataset, buckets, base, hashes)
    unusable = cache_latents(dataset, buckets, keys, TensorCache(tmp_path / "cache", "latents", 0), base)
    assert list(unusable) == [1]
    assert unusable[1].startswith("its mask can't be read: ")


def test_a_mask_without_a_hash_is_not_told_as_its_picture(base, hashes, picture_folder, tmp_path):
    folder = picture_folder(SIZES)
    mask = write_mask(folder / "001-mask.png", (48, 32))
    dataset, buckets = prepare(folder)
    mask.unlink()
    keys = latent_keys(dataset, buckets, base, hashes)
    unusable = cache_latents(dataset, buckets, keys, TensorCache(tmp_path / "cache", "latents", 0), base)
    assert unusable == {1: "it or its mask can't be read"}
