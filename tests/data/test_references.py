"""Reference images are found by the names of their images, go their way, and are cached with them."""

from contextlib import nullcontext
from dataclasses import replace
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
from modules.config.validation import find_problems
from modules.data.cache_keys import image_parts, latent_keys, text_keys
from modules.data.caching import cache_latents
from modules.data.concepts import caption_prompts, captions
from modules.data.conditions import conditions_of
from modules.data.conditions.references import (
    load_references,
    load_references_of_text,
    reference_size,
    references_in,
    references_of,
)
from modules.data.errors import DataError
from modules.data.FileHashes import FileHashes
from modules.data.ImageRequest import ImageRequest
from modules.data.prepare import prepare_data
from modules.data.run_summary import disk_needs
from modules.data.sample_images import check_sample_images, refused_images, settings_of_captions
from modules.data.TensorCache import TensorCache
from modules.families.conditions import References
from modules.families.registry import FAMILIES
from modules.sampling.generation import with_prompts
from modules.weights.BaseModel import BaseModel
from modules.weights.inspect import BaseInfo
from tests.support.icc import SPACES, rgb_profile, stored_as

SIZES = ((32, 32), (48, 32), (32, 48))
ONE, MANY = FAMILIES["flux1_kontext"], FAMILIES["flux2_klein"]


def write(path: Path, size=(32, 32), color="red") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", size, color).save(path)
    return path


def settings(folder: Path, references: Path | str, family=MANY, **concept) -> TrainConfig:
    return TrainConfig(
        family=family.name,
        concepts=[ConceptConfig(path=str(folder), reference_folder=str(references), **concept)],
        data={"resolution": 32, "bucket_step": 16},
    )


def prepare(folder: Path, references: Path | str, family=MANY, **concept):
    return prepare_data(settings(folder, references, family, **concept), family)


def names(dataset) -> list[list[str]]:
    return [[Path(one.path).name for one in references_of(dataset, sample)] for sample in range(len(dataset))]


def test_references_are_named_like_their_image_or_numbered(picture_folder, tmp_path):
    folder, references = picture_folder(SIZES), tmp_path / "references"
    for name in ("000.jpg", "001_10.png", "001_2.png", "001_0.webp", "other.png", "001.txt.bak"):
        write(references / name) if name.endswith(("g", "p")) else (references / name).write_text("no image")
    (condition,) = conditions_of(MANY)
    dataset, _ = prepare(folder, references)
    assert names(dataset) == [["000.jpg"], ["001_0.webp", "001_2.png", "001_10.png"], []]
    found = settings_of_captions(dataset, captions(dataset), MANY).values()
    (first,), several = (settings["reference"].split("\n") for settings in found)
    assert [Path(path).name for path in (first, *several)] == ["000.jpg", "001_0.webp", "001_2.png", "001_10.png"]
    assert condition.describe(dataset) == ("References", "2 of 3 images have reference images")


def test_a_reference_is_read_in_srgb(picture_folder, tmp_path):
    folder, path = picture_folder(SIZES[:1]), tmp_path / "references" / "000.png"
    write(path, color=stored_as((200, 60, 40), SPACES["Display P3"]))
    with Image.open(path) as image:
        image.save(path, icc_profile=rgb_profile(SPACES["Display P3"]))
    dataset, buckets = prepare(folder, path.parent)
    (reference,) = load_references(dataset, buckets, 0, MANY)
    assert np.abs((reference[:, 8, 8] + 1) * 127.5 - (200, 60, 40)).max() <= 3


def test_a_file_with_the_name_of_an_image_is_no_numbered_reference_of_another(tmp_path):
    for name in ("a.png", "a_1.png"):
        write(tmp_path / "images" / name)
        write(tmp_path / "references" / name)
    assert names(prepare(tmp_path / "images", tmp_path / "references")[0]) == [["a.png"], ["a_1.png"]]


def test_references_of_a_subfolder_are_in_its_namesake(tmp_path):
    write(tmp_path / "images" / "x" / "a.png")
    write(tmp_path / "images" / "y" / "a.png")
    write(tmp_path / "references" / "y" / "a.png")
    assert names(prepare(tmp_path / "images", tmp_path / "references")[0]) == [[], ["a.png"]]


@pytest.mark.parametrize(
    ("caption", "concept", "prompt"),
    [
        ("sks ||| red, blue", {"kept_separator": "|||", "shuffle_tags": True}, "sks, red, blue"),
        ("sks, blue sky; clouds", {"secondary_separator": ";", "tag_dropout": 0.1}, "sks, blue sky, clouds"),
        (None, {"name": "fox"}, "fox"),
        (None, {}, ""),
    ],
)
def test_a_sample_with_a_prompt_from_the_dataset_has_the_references_that_belong_to_it(
    tmp_path, caption, concept, prompt
):
    image, reference = write(tmp_path / "images" / "a.png"), write(tmp_path / "references" / "a.png")
    if caption is not None:
        image.with_suffix(".txt").write_text(caption)
    dataset, _ = prepare(tmp_path / "images", tmp_path / "references", **concept)
    texts = captions(dataset)
    prompts = caption_prompts(texts, dataset.concepts, 1)
    (sample,) = with_prompts(
        SamplingConfig(samples=[SampleConfig()]), prompts, settings_of_captions(dataset, texts, MANY)
    ).samples
    assert (sample.prompt, sample.reference) == (prompt, str(reference))


@pytest.mark.parametrize(
    ("files", "family", "message"),
    [
        (None, MANY, "does not exist; choose a folder of reference images, or empty it"),
        (("other.png",), MANY, "it holds a reference of none of the 3 images"),
        (("000_0.png", "000_1.png"), ONE, "has 2 reference images, such as"),
    ],
)
def test_a_folder_that_cannot_be_meant_is_refused(picture_folder, tmp_path, files, family, message):
    folder, references = picture_folder(SIZES), tmp_path / "references"
    for name in files or ():
        write(references / name)
    with pytest.raises(DataError, match=message):
        prepare(folder, references, family)


def test_a_family_that_sees_no_references_says_so(picture_folder, tmp_path):
    config = settings(picture_folder(SIZES), tmp_path, FAMILIES["sd15"])
    problem = next(problem for problem in find_problems(config) if problem.path == "concepts.0.reference_folder")
    assert problem.blocking
    assert "takes no reference images" in problem.message
    assert problem.remedy.values == {"concepts.0.reference_folder": ""}


def test_an_unreadable_reference_leaves_its_image_out(picture_folder, tmp_path):
    folder, references = picture_folder(SIZES), tmp_path / "references"
    write(references / "000.png")
    (references / "001.png").write_bytes(b"no image")
    dataset, _ = prepare(folder, references)
    assert [Path(path).name for path in dataset.paths] == ["000.png", "002.png"]
    assert "its reference" in dataset.unreadable[0][1]


@pytest.mark.parametrize(
    ("own", "of_image", "expected"),
    [
        ((640, 320), (1280, 640), (480, 320)),  # the same aspect ratio: the shape of the image, whatever that is
        ((100, 100), (1280, 640), (384, 384)),  # another one: its own, with the area of that shape
        ((400, 100), (1280, 640), (768, 192)),
        ((10000, 10), (1280, 640), (12384, 64)),
    ],
)
def test_the_size_in_which_a_reference_is_encoded(own, of_image, expected):
    assert reference_size(own, of_image, (480, 320), 16) == expected


def test_a_reference_of_the_same_aspect_ratio_is_augmented_like_its_image(tmp_path):
    """Left half black, right half white, as the image: mirrored together, they stay alike."""
    half = Image.new("RGB", (32, 32), "white")
    half.paste("black", (0, 0, 16, 32))
    for name in ("images/a.png", "references/a_0.png"):
        (tmp_path / name).parent.mkdir()
        half.save(tmp_path / name)
    write(tmp_path / "references" / "a_1.png", (64, 32))
    config = settings(tmp_path / "images", tmp_path / "references")
    config.concepts[0].augmentation = replace(config.concepts[0].augmentation, flip=True)
    config.data.augmentation_variants = 8
    dataset, buckets = prepare_data(config, MANY)
    left = set()
    for sample in range(len(dataset)):
        aligned, other = load_references(dataset, buckets, sample, MANY)
        assert other.shape == (3, 64, 64)
        left.add(float(aligned[0, 0, 0]))
    assert left == {-1.0, 1.0}


@pytest.fixture
def base(tiny_model) -> BaseModel:
    return BaseModel(MANY, ModelConfig(base=str(tiny_model("flux2_klein"))), torch.device("cpu"))


def test_references_are_cached_with_their_image_and_keys_without_any_stay(base, picture_folder, tmp_path):
    folder, references = picture_folder(SIZES), tmp_path / "references"
    for name, color in (("000_0.png", "red"), ("000_1.png", "blue")):
        write(references / name, color=color)
    hashes = FileHashes(tmp_path / "hashes", 0)
    keys = latent_keys(*(prepared := prepare(folder, references)), base, hashes)
    without = latent_keys(*prepare(folder, ""), base, hashes)
    assert keys[1:] == without[1:]
    assert keys[0] != without[0]
    cache = TensorCache(tmp_path / "cache", "latents", 0)
    assert cache_latents(*prepared, keys, cache, base) == {}
    record = cache.get(keys[0])
    red, blue = references_in(record)
    assert red.shape == blue.shape == record["latents"].shape
    assert not torch.equal(red, blue)
    assert references_in(cache.get(keys[1])) == []
    write(references / "000_1.png", color="green")
    changed = latent_keys(*prepare(folder, references), base, FileHashes(tmp_path / "new", 0))
    assert changed[0] not in (keys[0], without[0])


@pytest.fixture
def edits(tiny_model):
    """A family whose text encoder sees references, smaller than its denoiser does, and a model of it."""
    base = ModelConfig(base=str(tiny_model("qwen_image_edit_plus")))
    family = FAMILIES["qwen_image_edit_plus"]
    return family, BaseModel(family, base, torch.device("cpu"))


def test_an_edit_without_its_reference_is_refused(edits, picture_folder, tmp_path):
    family, _ = edits
    folder = picture_folder(SIZES)
    write(tmp_path / "references" / "000.png")
    with pytest.raises(DataError, match=r"2 images have no reference image, such as .*001.png"):
        prepare(folder, tmp_path / "references", family)
    config = settings(folder, "", family)
    config.sampling.samples = [SampleConfig(prompt="a hat", reference=""), SampleConfig()]
    problems = {problem.path: problem.message for problem in find_problems(config)}
    assert "Qwen-Image-Edit 2509, 2511 starts from images" in problems["concepts.0.reference_folder"]
    assert "starts from an image; choose one" in problems["sampling.samples.0.reference"]
    assert "sampling.samples.1.reference" not in problems  # an image of the dataset gives it
    assert "starts from an image; name one" in refused_images([], family)


def test_denoiser_and_text_encoder_see_a_reference_in_sizes_of_their_own(edits, tmp_path):
    family, _ = edits
    write(tmp_path / "images" / "a.png", (64, 32))
    write(tmp_path / "references" / "a_0.png", (100, 50))
    write(tmp_path / "references" / "a_1.png", (30, 90))
    dataset, buckets = prepare(tmp_path / "images", tmp_path / "references", family)
    width, height = buckets.shape_of(0)
    aspects = width / height, 1 / 3  # the first is cropped like its image
    arrays = load_references(dataset, buckets, 0, family)
    assert [array.shape[:0:-1] for array in arrays] == [family.fact(References, "size")(aspect) for aspect in aspects]
    images = load_references_of_text(dataset, buckets, 0, family)
    assert [image.size for image in images] == [family.text.reference_size(aspect) for aspect in aspects]
    assert images[0].size != arrays[0].shape[:0:-1]


def test_a_reference_that_must_have_the_shape_of_its_image_is_cropped_to_it_in_training_and_sampling(tmp_path):
    family = FAMILIES["kandinsky5_i2i"]
    write(tmp_path / "images" / "a.png", (64, 32))
    reference = write(tmp_path / "references" / "a.png", (30, 90))
    dataset, buckets = prepare(tmp_path / "images", tmp_path / "references", family)
    (array,), (seen,) = (load(dataset, buckets, 0, family) for load in (load_references, load_references_of_text))
    assert array.shape[:0:-1] == seen.size == buckets.shape_of(0)
    (condition,) = conditions_of(family)
    request = ImageRequest("a hat", "", 0, 48, 32, 20, 3.5, references=(str(reference),))
    assert condition.sample_arguments(request, 1)["image"].size == (48, 32)


@pytest.mark.parametrize(("name", "dark"), [("flux1_control", 100), ("kandinsky5_i2i", 50)])
def test_a_control_image_keeps_its_colors_and_is_flipped_with_its_image(name, dark, tmp_path):
    write(tmp_path / "images" / "a.png")
    reference = Image.new("RGB", (32, 32), "black")
    reference.paste((100, 100, 100), (0, 0, 16, 32))
    (tmp_path / "references").mkdir()
    reference.save(tmp_path / "references" / "a.png")
    augmentation = {"fixed_flip": True, "fixed_brightness": -0.5}
    family = FAMILIES[name]
    found = prepare(tmp_path / "images", tmp_path / "references", family, augmentation=augmentation)
    (array,) = load_references(*found, 0, family)
    pixels = np.rint((array[0, 0] + 1) * 127.5)
    assert pixels.tolist() == [0] * 16 + [dark] * 16


def test_a_text_is_cached_for_its_prompt_and_the_contents_of_its_references(edits, tmp_path):
    family, base = edits
    for name in ("a.png", "b.png", "c.png"):
        write(tmp_path / "images" / name, color="green")
    for name, color in (("a.png", "red"), ("b.png", "blue"), ("c.png", "red")):
        write(tmp_path / "references" / name, color=color)

    def keys(captions, run):
        prepared = prepare(tmp_path / "images", tmp_path / "references", family)
        hashes = FileHashes(tmp_path / run, 0)
        return text_keys(captions, base, hashes, image_parts(*prepared, base, hashes, range(3)))

    first = keys(["a hat"] * 3, "first")
    assert first[0] == first[2] != first[1]
    assert not {*keys([""] * 3, "first")} & {*first}
    write(tmp_path / "images" / "a.png", color="white")
    write(tmp_path / "references" / "b.png", color="white")
    changed = keys(["a hat"] * 3, "second")
    assert changed[0] == first[0]
    assert changed[1] != first[1]
    latents = latent_keys(*prepare(tmp_path / "images", tmp_path / "references", family), base, FileHashes(tmp_path, 0))
    assert len({*latents}) == 3


@pytest.mark.parametrize(
    ("family", "files", "message"),
    [
        (ONE, {"a.png": True}, None),
        (ONE, {"a.png": True, "b.png": True}, "these are 2 images, but FLUX.1 Kontext takes 1"),
        (MANY, {"a.png": True, "b.png": False}, "b.png can't be read"),
        (MANY, {}, "holds no images"),
        (FAMILIES["sd15"], {}, None),
    ],
)
def test_references_of_samples_are_checked_before_the_start(tmp_path, family, files, message):
    for name, is_image in files.items():
        write(tmp_path / name) if is_image else (tmp_path / name).write_text("no image")
    sampling = SamplingConfig(samples=[SampleConfig(reference=str(tmp_path))])
    with pytest.raises(DataError, match=message) if message else nullcontext():
        check_sample_images(sampling, family)


def test_the_disk_estimate_counts_references(picture_folder, tmp_path):
    folder, references = picture_folder(SIZES[:1]), tmp_path / "references"
    write(references / "000.png")
    needs = []
    for chosen in (references, ""):
        config = settings(folder, chosen)
        dataset, buckets = prepare_data(config, MANY)
        info = BaseInfo("hub", None, 1, "")
        needs.append(disk_needs(config, MANY, info, dataset, buckets, num_texts=0)[0].needed_bytes)
    assert needs[0] == 2 * needs[1]
    np.testing.assert_allclose(needs[1], 32 * 32 * MANY.latent_bytes_per_pixel)
