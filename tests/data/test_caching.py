from __future__ import annotations

import shutil
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from modules.config.ConceptConfig import ConceptConfig
from modules.config.ModelConfig import ModelConfig
from modules.data import caching, decoding, read_ahead
from modules.data.buckets import assign_buckets
from modules.data.cache_keys import latent_keys, text_keys
from modules.data.caching import cache_latents, cache_text
from modules.data.concepts import captions, scan
from modules.data.decoding import check_unusable, find_undecodable, load_pixels
from modules.data.errors import DataError
from modules.data.FileHashes import FileHashes
from modules.data.LatentEncoder import LatentEncoder
from modules.data.TensorCache import TensorCache
from modules.families.registry import FAMILIES
from modules.weights.BaseModel import BaseModel
from tests.support.waiting import PATIENCE_SECONDS, wait_until


def make_base(folder: Path, **model) -> BaseModel:
    return BaseModel(FAMILIES["sd15"], ModelConfig(base=str(folder), **model), torch.device("cpu"))


def prepare(folder: Path):
    dataset = scan([ConceptConfig(path=str(folder))])
    return dataset, assign_buckets(dataset.widths, dataset.heights, 32, 8, 2.0, True)


@pytest.fixture
def base(tiny_sd15) -> BaseModel:
    return make_base(tiny_sd15)


@pytest.fixture
def hashes(tmp_path) -> FileHashes:
    return FileHashes(tmp_path / "hashes", 0)


def spoil(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-60])


# --- keys -------------------------------------------------------------------------------------------------------------


def test_keys_follow_the_content_not_the_name_or_the_place(base, hashes, picture_folder, tmp_path):
    folder = picture_folder()
    before = latent_keys(*prepare(folder), base, hashes)
    assert len(set(before)) == 4
    moved = tmp_path / "elsewhere"
    shutil.move(folder, moved)
    for path in sorted(moved.glob("*.png"), reverse=True):
        path.rename(path.with_stem(f"p{path.stem}"))
    assert latent_keys(*prepare(moved), base, hashes) == before


def test_equal_pictures_share_a_key_and_a_file_that_can_not_be_read_has_none(base, hashes, picture_folder):
    folder = picture_folder()
    shutil.copy(folder / "000.png", folder / "001.png")
    dataset, buckets = prepare(folder)
    (folder / "003.png").unlink()
    keys = latent_keys(dataset, buckets, base, hashes)
    assert keys[0] == keys[1]
    assert keys[3] is None


def test_another_shape_dtype_or_encoder_is_another_key(tiny_sd15, hashes, picture_folder, tmp_path):
    dataset, buckets = prepare(picture_folder())
    keys = [latent_keys(dataset, buckets, make_base(tiny_sd15), hashes)[0]]
    smaller = assign_buckets(dataset.widths, dataset.heights, 24, 8, 2.0, True)
    keys.append(latent_keys(dataset, smaller, make_base(tiny_sd15), hashes)[0])
    keys.append(latent_keys(dataset, buckets, make_base(tiny_sd15, weight_dtype="bfloat16"), hashes)[0])
    other = tmp_path / "other"
    shutil.copytree(tiny_sd15, other)
    assert latent_keys(dataset, buckets, make_base(other), hashes)[0] == keys[0]
    file = other / "vae" / "diffusion_pytorch_model.safetensors"
    file.write_bytes(file.read_bytes()[:-1] + b"\x01")
    keys.append(latent_keys(dataset, buckets, make_base(other), hashes)[0])
    assert len(set(keys)) == 4


def test_text_keys_depend_on_caption_and_text_encoder_only(tiny_sd15, hashes, tmp_path):
    texts = ["a cat", "a dog", "a cat", ""]
    keys = text_keys(texts, make_base(tiny_sd15), hashes)
    assert keys[0] == keys[2]
    assert len(set(keys)) == 3
    other = tmp_path / "other"
    shutil.copytree(tiny_sd15, other)
    vae = other / "vae" / "diffusion_pytorch_model.safetensors"
    vae.write_bytes(vae.read_bytes()[:-1] + b"\x01")
    assert text_keys(texts, make_base(other), hashes) == keys
    encoder = other / "text_encoder" / "model.safetensors"
    encoder.write_bytes(encoder.read_bytes()[:-1] + b"\x01")
    assert not set(text_keys(texts, make_base(other), hashes)) & set(keys)


def test_encodings_of_a_quantized_text_encoder_have_keys_of_their_own(tiny_sd15, hashes):
    def keys(**quantized):
        return set(text_keys(["a cat", ""], make_base(tiny_sd15, **quantized), hashes))

    assert keys(denoiser_quantization="int8") == keys()
    assert not keys(text_encoder_quantization="int8") & (keys() | keys(text_encoder_quantization="nf4"))


@pytest.mark.parametrize(("name", "are_others"), [("motif_video", True), ("wan21_i2v", False)])
def test_image_features_of_a_quantized_text_encoder_have_keys_of_their_own(name, are_others, picture_folder, hashes):
    dataset, buckets = prepare(picture_folder())

    def keys(quantization: str) -> set[str | None]:
        config = SimpleNamespace(text_encoder_quantization=quantization, text_encoders=[])
        base = SimpleNamespace(family=FAMILIES[name], dtype="float32", component_files=lambda *_: [], config=config)
        return set(latent_keys(dataset, buckets, base, hashes))

    assert (keys("none") != keys("int8") != keys("nf4")) is are_others


# --- records ----------------------------------------------------------------------------------------------------------


def test_cached_latents_are_those_that_diffusers_gives(base, tiny_sd15, hashes, picture_folder, tmp_path):
    from diffusers import AutoencoderKL

    dataset, buckets = prepare(picture_folder())
    keys = latent_keys(dataset, buckets, base, hashes)
    cache = TensorCache(tmp_path / "cache", "latents", 0)
    assert cache_latents(dataset, buckets, keys, cache, base) == {}
    vae = AutoencoderKL.from_pretrained(tiny_sd15, subfolder="vae").eval()
    for sample in range(len(dataset)):
        pixels = torch.from_numpy(load_pixels(dataset, buckets, sample))[None]
        with torch.no_grad():
            expected = vae.encode(pixels).latent_dist.mode()[0] * vae.config.scaling_factor
        torch.testing.assert_close(cache.get(keys[sample])["latents"], expected, rtol=1e-5, atol=1e-6)


def test_cached_text_is_what_the_pipeline_encodes(base, tiny_sd15, hashes, tmp_path):
    from diffusers import StableDiffusionPipeline

    texts = ["a photo of a cat", "a dog", "a dog", ""]
    keys = text_keys(texts, base, hashes)
    cache = TensorCache(tmp_path / "cache", "text", 0)
    cache_text(texts, keys, cache, base)
    pipe = StableDiffusionPipeline.from_pretrained(tiny_sd15)
    for text, key in zip(texts, keys, strict=True):
        with torch.no_grad():
            expected, _ = pipe.encode_prompt(text, "cpu", 1, False)
        torch.testing.assert_close(cache.get(key)["prompt_embeds"], expected[0], rtol=1e-5, atol=1e-5)


def test_ranks_share_the_work_without_overlap(base, hashes, picture_folder, tmp_path):
    dataset, buckets = prepare(picture_folder(((32, 32),) * 7))
    keys = latent_keys(dataset, buckets, base, hashes)
    texts = [options[0] for options in captions(dataset)]
    for rank in range(3):
        # each as a rank that has not seen what the others write meanwhile
        cache = TensorCache(tmp_path / f"{rank}", "latents", rank)
        cache_latents(dataset, buckets, keys, cache, base, shard=(rank, 3))
        cache = TensorCache(tmp_path / f"{rank}", "text", rank)
        cache_text(texts, text_keys(texts, base, hashes), cache, base, shard=(rank, 3))
    for kind in ("latents", "text"):
        written = [path.stem for path in tmp_path.glob(f"*/rank-*/{kind}/*/*.safetensors")]
        assert len(written) == len(set(written)) == 7


def test_a_rank_without_a_share_encodes_and_loads_nothing_and_still_names_what_has_no_key(
    base, hashes, picture_folder, tmp_path
):
    dataset, buckets = prepare(picture_folder())
    keys = [None, *latent_keys(dataset, buckets, base, hashes)[1:]]
    cache = TensorCache(tmp_path / "cache", "latents", 0)
    assert list(cache_latents(dataset, buckets, keys, cache, base, shard=None, progress=pytest.fail)) == [0]
    cache_text(["a cat"], text_keys(["a cat"], base, hashes), cache, base, shard=None, progress=pytest.fail)
    assert find_undecodable(dataset, buckets, shard=None, progress=pytest.fail) == {}
    assert not (tmp_path / "cache").exists()


def test_pictures_that_are_known_to_be_unusable_are_not_tried_again(base, hashes, picture_folder, tmp_path):
    dataset, buckets = prepare(picture_folder())
    keys = latent_keys(dataset, buckets, base, hashes)
    cache = TensorCache(tmp_path / "cache", "latents", 0)
    assert cache_latents(dataset, buckets, keys, cache, base, known_unusable={2: "it is cut"}) == {2: "it is cut"}
    assert [number for number, key in enumerate(keys) if key in cache] == [0, 1, 3]


def test_equal_pictures_are_encoded_once(base, hashes, picture_folder, tmp_path):
    folder = picture_folder(((32, 32),) * 3)
    for number in (1, 2):
        shutil.copy(folder / "000.png", folder / f"00{number}.png")
    dataset, buckets = prepare(folder)
    cache = TensorCache(tmp_path / "cache", "latents", 0)
    cache_latents(dataset, buckets, latent_keys(dataset, buckets, base, hashes), cache, base)
    assert len(list((tmp_path / "cache").rglob("*.safetensors"))) == 1


def test_encoders_are_in_memory_only_while_they_encode(base, hashes, picture_folder, tmp_path):
    dataset, buckets = prepare(picture_folder())
    seen = []
    keys = latent_keys(dataset, buckets, base, hashes)
    cache = TensorCache(tmp_path / "cache", "latents", 0)
    cache_latents(dataset, buckets, keys, cache, base, progress=lambda *_: seen.append(base.module("vae") is not None))
    assert seen
    assert all(seen)
    assert base.module("vae") is None
    seen.clear()
    cache_latents(dataset, buckets, keys, cache, base, progress=lambda *told: seen.append(told))
    assert seen == []  # nothing is missing: the VAE is not even loaded


def test_images_of_several_shapes_are_decoded_at_the_same_time(base, hashes, picture_folder, tmp_path, monkeypatch):
    dataset, buckets = prepare(picture_folder(((32, 32), (48, 32), (32, 48))))
    assert len(buckets.shapes) == 3
    together, load = threading.Barrier(3), decoding.load_image

    def load_together(path):
        together.wait(PATIENCE_SECONDS)  # for the two others
        return load(path)

    monkeypatch.setattr(decoding, "load_image", load_together)
    cache = TensorCache(tmp_path / "cache", "latents", 0)
    cache_latents(dataset, buckets, latent_keys(dataset, buckets, base, hashes), cache, base)


@pytest.mark.parametrize(
    ("on_gpu", "waits", "decoded"),
    [(True, False, [11, 12, 12]), (False, False, [4, 8, 12]), (False, True, [11, 12, 12])],
)
def test_images_are_decoded_while_a_gpu_encodes_or_if_that_mostly_waits(
    on_gpu, waits, decoded, base, hashes, picture_folder, tmp_path, monkeypatch
):
    dataset, buckets = prepare(picture_folder(((32, 32),) * 12))
    started, at_encoding, load, encode = [], [], decoding.load_image, LatentEncoder.encode

    def load_counted(path):
        started.append(path)
        return load(path)

    def encode_counted(self, pixels):
        expected = decoded[len(at_encoding)]
        wait_until(lambda: len(started) >= expected)
        at_encoding.append(len(started))
        return encode(self, pixels)

    # a thread that sleeps uses no processor; one that computes does not wait, however busy the machine is
    monkeypatch.setattr(read_ahead.time, "thread_time", (lambda: 0.0) if waits else time.perf_counter)
    monkeypatch.setattr(read_ahead, "displaced_seconds", lambda: 0.0)
    monkeypatch.setattr(caching, "is_gpu", lambda device: on_gpu)
    monkeypatch.setattr(decoding, "load_image", load_counted)
    monkeypatch.setattr(LatentEncoder, "encode", encode_counted)
    cache = TensorCache(tmp_path / "cache", "latents", 0)
    cache_latents(dataset, buckets, latent_keys(dataset, buckets, base, hashes), cache, base)
    assert at_encoding == decoded


# --- what can't be used -----------------------------------------------------------------------------------------------


def test_pictures_that_can_not_be_decoded_are_named_and_the_others_cached(base, hashes, picture_folder, tmp_path):
    folder = picture_folder()
    spoil(folder / "001.png")
    shutil.copy(folder / "001.png", folder / "100.png")  # the same bytes: known by its key
    dataset, buckets = prepare(folder)
    keys = latent_keys(dataset, buckets, base, hashes)
    (folder / "003.png").unlink()
    keys[3] = None
    cache = TensorCache(tmp_path / "cache", "latents", 0)
    unusable = cache_latents(dataset, buckets, keys, cache, base)
    assert sorted(unusable) == [1, 3, 4]
    assert all(unusable.values())
    assert [number for number, key in enumerate(keys) if key is not None and key in cache] == [0, 2]


def test_pictures_for_methods_on_pixels_are_checked_too(picture_folder):
    folder = picture_folder()
    spoil(folder / "002.png")
    progress = []
    assert list(find_undecodable(*prepare(folder), progress=lambda *told: progress.append(told))) == [2]
    assert progress[-1] == ("Checking images", 4, 4)


@pytest.mark.parametrize(("unusable", "share", "refused"), [(0, 0.0, False), (1, 0.25, False), (2, 0.25, True)])
def test_a_share_of_unusable_pictures_is_allowed(unusable, share, refused, picture_folder):
    dataset, _ = prepare(picture_folder())
    reasons = dict.fromkeys(range(unusable), "it is cut")
    if not refused:
        check_unusable(dataset, reasons, share)
        return
    with pytest.raises(DataError, match=r"2 of 4 images can't be used, more than data\.max_unreadable_share 0\.25"):
        check_unusable(dataset, reasons, share)


def test_a_folder_that_is_gone_is_the_cause_and_not_its_images(picture_folder):
    folder = picture_folder()
    dataset, _ = prepare(folder)
    folder.rename(folder.with_name("elsewhere"))
    with pytest.raises(
        DataError, match=rf"^concepts\.0\.path {folder}: the folder is gone since its images were found"
    ):
        check_unusable(dataset, {0: "it can't be read"}, 1.0)


def test_no_usable_picture_at_all_is_refused_whatever_the_share(picture_folder):
    dataset, _ = prepare(picture_folder())
    with pytest.raises(DataError, match="4 of 4"):
        check_unusable(dataset, dict.fromkeys(range(4), "it is cut"), 1.0)


def test_pixels_are_scaled_to_minus_one_and_one(picture_folder):
    dataset, buckets = prepare(picture_folder())
    pixels = load_pixels(dataset, buckets, 0)
    assert pixels.shape == (3, 32, 32)
    assert pixels.dtype == np.float32
    assert -1.0 <= pixels.min() < -0.9
    assert 0.9 < pixels.max() <= 1.0
