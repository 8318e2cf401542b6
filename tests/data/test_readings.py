"""Caches of before stay valid: only files whose pixels are read in another way have new keys."""

import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest
from PIL import Image

from modules.config.ConceptConfig import ConceptConfig
from modules.config.TrainConfig import TrainConfig
from modules.data.buckets import assign_buckets
from modules.data.cache_keys import latent_keys
from modules.data.concepts import scan
from modules.data.FileHashes import FileHashes
from modules.data.masks import mask_files
from modules.data.prepare import prepare_data
from modules.data.readings import reading_of
from modules.families.registry import FAMILIES

PICTURES = Path(__file__).parent / "pictures"


@pytest.fixture
def base(tmp_path):
    """A model of which only the key of its VAE counts."""
    weights = tmp_path / "vae" / "weights"
    weights.parent.mkdir()
    weights.write_bytes(b"weights")
    return SimpleNamespace(family=FAMILIES["sd15"], dtype="float32", component_files=lambda *names: [weights])


def copied(folder, **names):
    folder.mkdir()
    for name, source in names.items():
        shutil.copy(PICTURES / source, folder / f"{name}{Path(source).suffix}")
    return folder


def test_the_keys_of_ordinary_images_are_those_of_before(tmp_path, base):
    folder = copied(tmp_path / "folder", b="icc_srgb.png", c="exif_before.png")
    shutil.copy(PICTURES / "picture.jfif", folder / "a.jpg")
    dataset = scan([ConceptConfig(path=str(folder))])
    buckets = assign_buckets(dataset.widths, dataset.heights, 32, 8, 2.0, True)
    assert latent_keys(dataset, buckets, base, FileHashes(tmp_path / "cache", 0)) == [
        "c063022da35bfcf569a4785eb51667784cc1b8a6",
        "7ba08c3a5b18acf966e448562bf54fffd120e192",
        "f2aac31527402b4125d1bfed6d016c78eb09f287",
    ]


@pytest.mark.parametrize(
    ("name", "as_mask", "reading"),
    [
        ("icc_adobe.png", False, "srgb"),
        ("icc_adobe.png", True, "srgb"),
        ("icc_srgb.png", True, ""),
        ("mask_white_on_clear.png", False, ""),
        ("mask_white_on_clear.png", True, "black"),
        ("exif_after.png", False, ""),
        ("sar_2to1.mp4", False, "square"),
        ("webm_named.mp4", False, ""),
    ],
)
def test_what_is_read_in_another_way_is_part_of_a_files_hash(tmp_path, name, as_mask, reading):
    path = str(PICTURES / name)
    assert reading_of(path, [path], as_mask) == reading
    for _ in range(2):  # read, and as remembered
        hashes = FileHashes(tmp_path, 0)
        (found,) = hashes.of([path], {path} if as_mask else ())
        assert found.partition(" ")[2] == reading
        hashes.save()


def test_a_mask_whose_transparent_layer_is_opaque_everywhere_is_the_same_as_before(tmp_path):
    Image.new("RGBA", (8, 8), "white").save(tmp_path / "a.png")
    path = str(tmp_path / "a.png")
    assert reading_of(path, [path], as_mask=True) == ""


def test_a_frame_with_a_profile_counts_for_its_folder(tmp_path):
    folder = copied(tmp_path / "walk", a="icc_srgb.png", b="icc_p3.png")
    assert reading_of(str(folder), sorted(map(str, folder.iterdir())), as_mask=False) == "srgb"


def test_damage_leaves_the_hash_so_that_decoding_can_tell_it(tmp_path):
    (tmp_path / "a.png").write_bytes(b"damaged")
    (found,) = FileHashes(tmp_path / "cache", 0).of([tmp_path / "a.png"])
    assert found is not None


def test_the_key_of_an_image_follows_how_its_mask_is_read(tmp_path, base):
    folder = copied(tmp_path / "folder", a="icc_srgb.png")
    keys = []
    for alpha in (255, 0):
        mask = Image.new("RGBA", (64, 64), "white")
        mask.putpixel((0, 0), (255, 255, 255, alpha))
        mask.save(folder / "a-masklabel.png")
        config = TrainConfig(concepts=[ConceptConfig(path=str(folder))], family="sd15")
        config.loss.masked_training = True
        dataset, buckets = prepare_data(config, FAMILIES["sd15"])
        assert mask_files(dataset) == {str(folder / "a-masklabel.png")}
        hashes = FileHashes(tmp_path / "cache", 0)
        keys += latent_keys(dataset, buckets, base, hashes)
        (content,) = hashes.of(mask_files(dataset), mask_files(dataset))
        assert content.endswith(" black") == (alpha == 0)
    assert keys[0] != keys[1]
