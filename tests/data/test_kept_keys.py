"""The keys of cache entries are those of earlier versions, so that no cache is encoded again after an update."""

import hashlib
from collections.abc import Callable
from types import SimpleNamespace

import numpy as np
import pytest
from PIL import Image

from modules.config.files import config_from_values
from modules.data.cache_keys import image_parts, latent_keys, text_keys
from modules.data.prepare import prepare_data
from modules.data.RunPlan import samples_digest
from modules.families.registry import FAMILIES
from tests.support.pictures import write_layers, write_pictures
from tests.support.small_inputs import real_inputs
from tests.support.videos import write_sounding_video, write_video

SIZES = ((32, 32), (48, 32), (32, 48), (64, 64))


class NamesAsHashes:
    """In place of FileHashes: contents are the names of files, and masks are told apart, as their pixels are read."""

    def of(self, paths, masks=()):
        return [f"{path.rpartition('/')[2]}{' as mask' if path in masks else ''}" for path in paths]

    def combined(self, files, *others):
        return " ".join([*files, *others])


def write_frames(folder, count=9):
    """Two folders of frames, which are clips."""
    for name in ("one", "two"):
        (folder / name).mkdir(parents=True)
        for number in range(count):
            Image.new("RGB", (48, 32), (number, 0, 0)).save(folder / name / f"{number}.png")
    return {"path": str(folder), "frame_folders_fps": 16.0}


def with_references(folder):
    references = folder / "references"
    references.mkdir()
    for name, size in (("000", (32, 32)), ("001_0", (64, 32)), ("001_1", (32, 32)), ("002", (90, 48)), ("003", (8, 8))):
        Image.new("RGB", size).save(references / f"{name}.png")
    return {"reference_folder": str(references)}


def with_sources(folder):
    write_frames(folder / "sources")
    return {**clips(folder), "source_folder": str(folder / "sources")}


def with_masked_sources(folder):
    """A folder of frames as the mask of one clip, and an image as that of the other."""
    (folder / "masks" / "one").mkdir(parents=True)
    for number in range(9):
        Image.new("L", (48, 32), number).save(folder / "masks" / "one" / f"{number}.png")
    Image.new("L", (48, 32)).save(folder / "masks" / "two.png")
    return {**with_sources(folder), "mask_folder": str(folder / "masks")}


def with_masks(folder):
    for name in ("000-mask", "003-mask"):
        Image.new("L", (32, 32), 255).save(folder / "pictures" / f"{name}.png")
    return {}


def with_layers(folder):
    return {"layer_folder": str(write_layers(folder / "layers", folder / "pictures", (2, 1)))}


def plain(folder):
    return {}


def flipped(folder):
    return {"augmentation": {"flip": True}}


def flipped_and_masked(folder):
    return {**with_masks(folder), **flipped(folder)}


def clips(folder):
    return write_frames(folder / "clips")


def sounding_clips(folder):
    """One with an audio track and one without."""
    write_sounding_video(folder / "clips" / "loud.mp4", 9, np.full((2, 48000), 0.5, np.float32), fps=24)
    write_video(folder / "clips" / "mute.mp4", 9, fps=24)
    return {"path": str(folder / "clips")}


def two_sections(folder):
    write_video(folder / "clips" / "long.mp4", 66, fps=24)
    return {"path": str(folder / "clips")}


# family, what its concept has, further settings, digest of all keys, start of the digest of the samples
CASES: dict[str, tuple[str, Callable, dict, str, str]] = {
    "plain": ("sd15", plain, {}, "1da14821d94e", "0149210b3066"),
    "sizes and variants": (
        "sdxl",
        flipped,
        {"data.augmentation_variants": 2, "data.resolutions": [32, 48]},
        "da610579885c",
        "75cd8a38a700",
    ),
    "masks": ("sd15", with_masks, {"loss.masked_training": True}, "4da24fd8d71d", "0149210b3066"),
    "references": ("flux2_klein", with_references, {}, "21336d7a1758", "c37cac869638"),
    "references of sizes of their own": ("qwen_image_edit_plus", with_references, {}, "0301ef4b0a38", "c37cac869638"),
    "inpainting": (
        "sd15_inpaint",
        flipped_and_masked,
        {"data.augmentation_variants": 2},
        "26b945dbd9e2",
        "7b2fd4d0ca26",
    ),
    "layers": ("qwen_image_layered", with_layers, {}, "2ea6da208a7f", "06b74e45d106"),
    "clips": ("wan22_5b", clips, {"data.frames": 9}, "2a91985fe8e3", "52093e3bc990"),
    "source clip": ("lucy_edit", with_sources, {"data.frames": 9}, "a5e8e6597599", "0f8bb871050e"),
    "source clip and its mask": ("wan21_vace", with_masked_sources, {"data.frames": 9}, "dff0d00226ac", "4c6e09692820"),
    "first frame": ("wan22_i2v_a14b", clips, {"data.frames": 9}, "0ff3dc913fd2", "ff6f15b7986d"),
    "first frame, by an image encoder, too": ("wan21_i2v", clips, {"data.frames": 9}, "840c0cd1af85", "ff6f15b7986d"),
    "first frame, by text encoders, too": (
        "hunyuan_video_i2v",
        clips,
        {"data.frames": 9},
        "26d279d58e5e",
        "52093e3bc990",
    ),
    "first frame beside the latents": (
        "motif_video",
        clips,
        {"data.frames": 9, "data.image_to_video": 0.5},
        "f0a4c69f90ab",
        "52093e3bc990",
    ),
    "sound": ("ltx2", sounding_clips, {"data.frames": 9}, "6212e96a5b82", "48bc45788374"),
    "sound, or silence in its place": ("minimax_h3", clips, {"data.frames": 22}, "dbeebc17b25c", "d6a80802a696"),
    "sections": ("helios", two_sections, {"data.frames": 66}, "266a92aa6661", "70a3163b29c1"),
    "first and last frame": ("wan21_flf2v", clips, {"data.frames": 9}, "ba779e33da8e", "ff6f15b7986d"),
    "a share of last frames": (
        "wan22_i2v_a14b",
        clips,
        {"data.frames": 9, "data.last_frame": 0.5},
        "d30d164927b6",
        "ff6f15b7986d",
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_what_a_sample_has_gives_the_key_and_the_digest_that_it_always_gave(name, tmp_path):
    family_name, concept, settings, keys_digest, samples = CASES[name]
    write_pictures(tmp_path / "pictures", SIZES)
    values = {
        "family": family_name,
        "concepts": [{"path": str(tmp_path / "pictures"), **concept(tmp_path)}],
        "data": {"resolution": 64, "bucket_step": 32},
        "seed": 3,
    }
    for path, value in settings.items():
        section, key = path.split(".")
        values.setdefault(section, {})[key] = value
    with real_inputs():
        found = keys_of(config_from_values(values), FAMILIES[family_name])
    assert (found[0][:12], found[1][:12]) == (keys_digest, samples)


def keys_of(config, family):
    dataset, buckets = prepare_data(config, family)
    model = SimpleNamespace(text_encoder_quantization="none")
    base = SimpleNamespace(
        family=family, component_files=lambda *names: list(names), dtype="torch.float32", config=model
    )
    hashes = NamesAsHashes()
    keys = latent_keys(dataset, buckets, base, hashes)
    captions = ["a cat"] * len(dataset)
    if family.text.sees_images:
        keys += text_keys(captions, base, hashes, image_parts(dataset, buckets, base, hashes, range(len(dataset))))
    else:
        keys += text_keys(captions, base, hashes)
    return hashlib.sha256("".join(keys).encode()).hexdigest(), samples_digest(dataset)
