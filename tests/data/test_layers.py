"""The layers of an image are found by its name, keep their transparency, and are cached with it."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from modules.config.ConceptConfig import ConceptConfig
from modules.config.ModelConfig import ModelConfig
from modules.config.SampleConfig import SampleConfig
from modules.config.TrainConfig import TrainConfig
from modules.config.validation import find_problems
from modules.data.cache_keys import latent_keys
from modules.data.caching import cache_latents
from modules.data.concepts import captions
from modules.data.conditions import conditions_of
from modules.data.conditions.layers import LAYER, load_layers
from modules.data.conditions.references import references_in
from modules.data.errors import DataError
from modules.data.FileHashes import FileHashes
from modules.data.health import check_health
from modules.data.prepare import prepare_data
from modules.data.run_summary import disk_needs
from modules.data.RunPlan import samples_digest
from modules.data.sample_images import settings_of_captions
from modules.data.TensorCache import TensorCache
from modules.families.latents import encode_pixels
from modules.families.registry import FAMILIES
from modules.weights.BaseModel import BaseModel
from modules.weights.inspect import BaseInfo

FAMILY = FAMILIES["qwen_image_layered"]
SIZES = ((32, 32), (32, 32), (48, 32), (32, 48))


def settings(folder: Path, layers: Path | str, **concept) -> TrainConfig:
    return TrainConfig(
        family=FAMILY.name,
        concepts=[ConceptConfig(path=str(folder), layer_folder=str(layers), **concept)],
        data={"resolution": 32, "bucket_step": 32},
    )


def prepare(folder: Path, layers: Path | str, **concept):
    return prepare_data(settings(folder, layers, **concept), FAMILY)


@pytest.fixture
def base(tiny_model) -> BaseModel:
    return BaseModel(FAMILY, ModelConfig(base=str(tiny_model(FAMILY.name))), torch.device("cpu"))


def test_images_with_other_numbers_of_layers_are_in_other_buckets(picture_folder, layer_folder):
    folder = picture_folder(SIZES)
    dataset, buckets = prepare(folder, layer_folder(folder, counts=(2, 1)))
    assert [[Path(path).name for path in own] for own in dataset.column(LAYER)] == [
        ["000_0.png", "000_1.png"],
        ["001_0.png"],
        ["002_0.png", "002_1.png"],
        ["003_0.png"],
    ]
    assert buckets.names == ["32x32x2", "32x32x3"]
    assert buckets.costs == [2 * 32 * 32, 3 * 32 * 32]
    assert buckets.index.tolist() == [1, 0, 1, 0]
    described = [condition.describe(dataset) for condition in conditions_of(FAMILY)]
    assert described == [None, ("Layers", "1 to 2 of each image")]
    found = settings_of_captions(dataset, captions(dataset), FAMILY).values()
    assert {settings["reference"] for settings in found} == set(dataset.paths)


def test_a_folder_of_layers_inside_the_folder_of_images_holds_no_images(picture_folder, layer_folder):
    folder = picture_folder(SIZES)
    layers = layer_folder(folder).rename(folder / "layers")
    dataset, _ = prepare(folder, layers)
    assert len(dataset) == len(SIZES)


def test_image_and_layers_are_cropped_and_turned_alike_and_keep_their_transparency(tmp_path):
    """An opaque ground below a square in the upper left corner, on images twice as wide as their bucket."""
    (tmp_path / "images").mkdir()
    (tmp_path / "layers").mkdir()
    ground = Image.new("RGBA", (64, 32), (10, 20, 30, 255))
    top = Image.new("RGBA", (128, 64), (250, 0, 0, 0))  # of twice the size; what it hides is red
    top.paste((0, 255, 0, 128), (32, 0, 64, 32))
    Image.alpha_composite(ground, top.resize((64, 32))).save(tmp_path / "images" / "a.png")
    ground.save(tmp_path / "layers" / "a_0.png")
    top.save(tmp_path / "layers" / "a_1.png")
    dataset, buckets = prepare(tmp_path / "images", tmp_path / "layers", augmentation={"fixed_flip": True})
    pixels = load_layers(dataset, buckets, 0)
    assert pixels.shape == (3, 4, 32, 32)
    image, lower, upper = ((pixels + 1) * 127.5).round()
    assert (image[3] == 255).all()
    assert (lower == np.array([10, 20, 30, 255])[:, None, None]).all()
    assert upper[:, 2, 28].tolist() == [0, 255, 0, 128]
    assert upper[:, 28, 2].tolist() == [0, 0, 0, 0]
    over = lower[:3] * (1 - upper[3] / 255) + upper[:3] * upper[3] / 255
    assert np.abs(over - image[:3]).max() <= 4  # rounding, of 255, where edges are resized


@pytest.mark.parametrize(
    ("lacks", "message"),
    [
        ("folder", r"concepts.0.layer_folder .* does not exist; choose a folder of layers, or empty it"),
        (
            "layers",
            r"1 image has no layers, such as .*001.png, but Qwen-Image-Layered learns to decompose images",
        ),
        ("aspect", r"layer .*000_1.png is 64 x 32 and its image 000.png 32 x 32: a layer needs the aspect ratio"),
    ],
)
def test_layers_that_cannot_be_learned_are_refused(picture_folder, layer_folder, lacks, message):
    folder = picture_folder(SIZES[:2])
    layers = layer_folder(folder)
    if lacks == "folder":
        layers = layers / "none"
    elif lacks == "layers":
        for path in layers.glob("001_*"):
            path.unlink()
    else:
        Image.new("RGBA", (64, 32)).save(layers / "000_1.png")
    with pytest.raises(DataError, match=message):
        prepare(folder, layers)


def test_an_unreadable_layer_leaves_its_image_out(picture_folder, layer_folder):
    folder = picture_folder(SIZES)
    layers = layer_folder(folder)
    (layers / "001_1.png").write_bytes(b"no image")
    dataset, _ = prepare(folder, layers)
    assert [Path(path).name for path in dataset.paths] == ["000.png", "002.png", "003.png"]
    assert "its layer" in dataset.unreadable[0][1]
    whole = (layers / "003_1.png").read_bytes()
    (layers / "003_1.png").write_bytes(whole[: len(whole) // 2])
    dataset, buckets = prepare(folder, layers)
    with pytest.raises(DataError, match=r"its layer 003_1\.png can't be read"):
        load_layers(dataset, buckets, 2)


def test_an_image_is_cached_with_its_layers_and_once_more_as_what_the_model_sees(
    base, picture_folder, layer_folder, tmp_path
):
    folder = picture_folder(SIZES)
    layers = layer_folder(folder, counts=(2, 1))
    dataset, buckets = prepare(folder, layers)
    keys = latent_keys(dataset, buckets, base, FileHashes(tmp_path / "hashes", 0))
    cache = TensorCache(tmp_path / "cache", "latents", 0)
    assert cache_latents(dataset, buckets, keys, cache, base) == {}
    for sample, num_layers in enumerate((2, 1, 2, 1)):
        record = cache.get(keys[sample])
        pixels = torch.from_numpy(load_layers(dataset, buckets, sample))
        with base.using("vae"), torch.no_grad():
            each = [encode_pixels(FAMILY, base.vae, one[None])[0] for one in pixels]
        assert record["latents"].shape[1] == 1 + num_layers
        torch.testing.assert_close(record["latents"], torch.cat(each, dim=1), rtol=0, atol=1e-5)
        (reference,) = references_in(record)
        assert torch.equal(reference, record["latents"][:, :1])
    before = samples_digest(dataset)
    (layers / "000_1.png").rename(layers / "000_3.png")
    Image.new("RGBA", (32, 32), "blue").save(layers / "001_0.png")
    dataset, buckets = prepare(folder, layers)
    changed = latent_keys(dataset, buckets, base, FileHashes(tmp_path / "new", 0))
    assert changed[0] == keys[0]  # renamed
    assert changed[1] != keys[1]
    assert samples_digest(dataset) != before


def test_settings_without_layers_or_that_would_change_them_apart_are_refused(picture_folder):
    config = settings(picture_folder(SIZES), "", augmentation={"hue": 0.1, "brightness": 0.1})
    config.sampling.samples = [SampleConfig(prompt="a hat"), SampleConfig()]
    problems = {problem.path: problem for problem in find_problems(config)}
    assert "learns to decompose images; choose the folder" in problems["concepts.0.layer_folder"].message
    assert "decomposes images; choose one" in problems["sampling.samples.0.reference"].message
    assert problems["concepts.0.augmentation.hue"].remedy.values == {"concepts.0.augmentation.hue": 0.0}
    assert not {"concepts.0.reference_folder", "concepts.0.augmentation.brightness"} & {*problems}
    other = replace(settings("images", "layers"), family="sd15")
    problem = next(problem for problem in find_problems(other) if problem.path == "concepts.0.layer_folder")
    assert "does not decompose images into layers; empty it" in problem.message


def test_the_dataset_check_tells_of_layers_in_another_order(tmp_path):
    (tmp_path / "images").mkdir()
    (tmp_path / "layers").mkdir()
    ground = Image.new("RGBA", (128, 128), (200, 180, 0, 255))
    top = Image.new("RGBA", (128, 128), (0, 0, 0, 0))
    top.paste((0, 0, 250, 255), (16, 16, 64, 64))
    for name, layers in (("good", (ground, top)), ("reversed", (top, ground))):
        Image.alpha_composite(ground, top).convert("RGB").save(tmp_path / "images" / f"{name}.jpg")
        for number, layer in enumerate(layers):
            layer.save(tmp_path / "layers" / f"{name}_{number}.png")
    config = settings(tmp_path / "images", tmp_path / "layers")
    config.model.base = "/nowhere"  # the check is of the data alone
    (finding,) = (finding for finding in check_health(config).findings if finding.kind == "layers")
    assert finding.level == "warning"
    assert finding.paths == [str(tmp_path / "images" / "reversed.jpg")]
    assert finding.message.startswith("1 image doesn't match its composited layers (_0 is the bottom)")


def test_the_disk_estimate_counts_layers_and_the_image_twice(picture_folder, layer_folder):
    folder = picture_folder(SIZES[:1])
    config = settings(folder, layer_folder(folder, counts=(4,)))
    dataset, buckets = prepare_data(config, FAMILY)
    needs = disk_needs(config, FAMILY, BaseInfo("hub", None, 1, ""), dataset, buckets, num_texts=0)
    assert needs[0].needed_bytes == pytest.approx(6 * 32 * 32 * FAMILY.latent_bytes_per_pixel)
