"""Which clips a run trains of its videos, and their pixels."""

import shutil
import weakref
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from diffusers import AutoencoderKLWan
from PIL import Image

from modules.config.AugmentationConfig import AugmentationConfig
from modules.config.clips import clip_length, clip_rule, latent_frames
from modules.config.ConceptConfig import ConceptConfig
from modules.config.DataConfig import DataConfig
from modules.config.families import load_families
from modules.config.LossConfig import LossConfig
from modules.config.TrainConfig import TrainConfig
from modules.config.validation import find_problems
from modules.data.Augmentation import NO_AUGMENTATION
from modules.data.cache_keys import latent_keys, text_keys
from modules.data.captions import file_stem
from modules.data.clips import Clip, clip_frames, clip_of, load_clip
from modules.data.concepts import captions, scan
from modules.data.convert_captions import misencoded_captions
from modules.data.decoding import load_pixels
from modules.data.draws import uniform
from modules.data.errors import DataError
from modules.data.FileHashes import FileHashes
from modules.data.health import check_health
from modules.data.LatentEncoder import FRAMES_AHEAD, LatentEncoder
from modules.data.masks import find_masks
from modules.data.paired_files import find_paired
from modules.data.prepare import prepare_data
from modules.data.RunPlan import samples_digest
from modules.data.sample_images import refused_images, settings_of_captions
from modules.data.videos import frame_files
from modules.families.registry import FAMILIES
from modules.weights.BaseModel import BaseModel
from tests.support.remedies import with_remedy
from tests.support.run_summaries import summary_text
from tests.support.videos import LEVELS, turn_sideways, write_video


@pytest.fixture(scope="module")
def videos(tmp_path_factory):
    """long.mp4 of 40 frames, short.mp4 of 3, still.png and broken.mp4, each with a caption."""
    folder = tmp_path_factory.mktemp("videos")
    write_video(folder / "long.mp4", 40)
    write_video(folder / "short.mp4", 3)
    Image.new("RGB", (64, 48), "red").save(folder / "still.png")
    (folder / "broken.mp4").write_bytes(b"no video")
    for path in [*folder.iterdir()]:
        path.with_suffix(".txt").write_text(f"a {path.stem} one")
    return folder


def config_of(folder, family="wan21", **data):
    values = {"resolution": 64, "bucket_step": 16, "frames": 9, "max_unreadable_share": 0.5, **data}
    return TrainConfig(family=family, concepts=[ConceptConfig(path=str(folder))], data=DataConfig(**values))


def prepared(config):
    return prepare_data(config, FAMILIES[config.family])


def clips_of(config):
    """(name, number of the first frame in a video of 16 frames per second, frames) of each sample."""
    dataset, _ = prepared(config)
    names = [path.rpartition("/")[2] for path in dataset.paths]
    clips = [clip_of(dataset, sample) for sample in range(len(dataset))]
    parts = [(round(clip.start * 16, 3), clip.num_frames) if clip else ("image",) for clip in clips]
    return [(name, *part) for name, part in zip(names, parts, strict=True)]


def test_the_ends_of_a_sample_without_prompt_are_those_of_its_clip(videos, frames):
    for config, ends in (
        (config_of(videos, "wan21_flf2v"), ["long.mp4", "long.mp4#t=0.5"]),
        (config_of(videos, "wan21_flf2v", clips="middle"), ["long.mp4#t=0.938", "long.mp4#t=1.438"]),
        (config_of(videos, "wan21_i2v", clips="middle"), ["long.mp4#t=0.938"]),
        (with_frame_folders(frames, 16, family="wan21_flf2v"), ["frame0.png", "frame8.png"]),
        (with_frame_folders(frames, 24, family="wan21_flf2v", frames=5), ["frame0.png", "frame6.png"]),
        (with_frame_folders(frames, 16, family="wan21_flf2v", clips="middle"), ["frame1.png", "frame9.png"]),
        (with_frame_folders(frames, 16, family="wan21_i2v"), ["frame0.png"]),
    ):
        dataset, _ = prepared(config)
        found = settings_of_captions(dataset, captions(dataset), FAMILIES[config.family])
        ends_of_first = next(iter(found.values()))["reference"].split("\n")
        assert [Path(path).name for path in ends_of_first] == ends
        assert not refused_images(ends_of_first, FAMILIES[config.family])


def test_a_video_is_a_clip_of_its_start_or_middle_or_several_that_follow_each_other(videos):
    others = [("short.mp4", 0, 1), ("still.png", "image")]  # three frames are fewer than five, the next number
    assert clips_of(config_of(videos)) == [("long.mp4", 0, 9), *others]
    middle = [("long.mp4", 15, 9), ("short.mp4", 1, 1), others[1]]
    assert clips_of(config_of(videos, clips="middle")) == middle
    (drawn, *same) = clips_of(config_of(videos, clips="random"))
    assert drawn == ("long.mp4", int(uniform(config_of(videos).seed, "long.mp4", "clip") * 32), 9)
    assert drawn[1] > 0
    assert same[1:] == others[1:]
    assert clips_of(config_of(videos, clips="chunks")) == [("long.mp4", 9 * n, 9) for n in range(4)] + others
    assert clips_of(config_of(videos, frames=81)) == [("long.mp4", 0, 37), *others]
    assert clips_of(config_of(videos, frames=81, fps=8)) == [("long.mp4", 0, 17), *others]


@pytest.fixture
def frames(tmp_path):
    """A folder of twelve frames, the number-th in the gray level 20 * number, with a caption, beside a single image."""
    folder = tmp_path / "frames"
    (folder / "walk.v2").mkdir(parents=True)
    for number in range(12):
        Image.new("RGB", (64, 48), (20 * number,) * 3).save(folder / f"walk.v2/frame{number}.png")
    (folder / "walk.v2.txt").write_text("a walk")
    (folder / "walk.v2/notes.md").write_text("no frame")
    Image.new("RGB", (64, 48), "red").save(folder / "still.png")
    return folder


def with_frame_folders(folder, fps, **values):
    config = config_of(folder, **values)
    return replace(config, concepts=[replace(config.concepts[0], frame_folders_fps=fps)])


@pytest.mark.parametrize(("fps", "expected"), [(16, range(9)), (24, (0, 1, 3, 4, 6)), (8, (0, 0, 1, 1, 2, 2, 3, 3, 4))])
def test_a_folder_of_frames_is_a_video_at_the_rate_of_its_concept(frames, fps, expected):
    config = with_frame_folders(frames, fps)
    assert clips_of(config)[1:] == [("walk.v2", 0, len(expected))]
    dataset, buckets = prepared(config)
    levels = ((load_pixels(dataset, buckets, 1)[0].mean((1, 2)) + 1) * 127.5 / 20).round().astype(int)
    assert levels.tolist() == list(expected)
    assert captions(dataset)[1] == ("a walk",)


@pytest.mark.parametrize("name", ["frame0-masklabel.png", "frame3-mask.jpg", "frame11_mask.PNG"])
def test_the_masks_of_single_frames_are_no_frames(frames, name):
    config = with_frame_folders(frames, 16)
    expected = clips_of(config), frame_files(str(frames / "walk.v2"))
    Image.new("L", (64, 48)).save(frames / "walk.v2" / name)
    assert (clips_of(config), frame_files(str(frames / "walk.v2"))) == expected


def test_the_mask_of_a_video_lies_beside_it_and_is_no_image(videos, frames, tmp_path):
    files = shutil.copytree(videos, tmp_path / "files")
    for name, config in (("long", config_of(files)), ("walk.v2", with_frame_folders(frames, 16))):
        expected = clips_of(config)
        mask = Path(config.concepts[0].path) / f"{name}-masklabel.png"
        Image.new("L", (64, 48)).save(mask)
        assert clips_of(config) == expected
        dataset, _ = prepared(replace(config, loss=LossConfig(masked_training=True)))
        masks = dict(zip(map(file_stem, dataset.paths), find_masks(dataset), strict=True))
        assert masks.pop(name) == str(mask)
        assert set(masks.values()) == {None}


def test_the_references_and_layers_of_a_folder_of_frames_have_its_whole_name(frames, tmp_path):
    others = tmp_path / "others"
    others.mkdir()
    for name in ("walk.v2_0.png", "walk.v2_1.png", "walk.png", "still.png"):
        Image.new("RGB", (64, 48)).save(others / name)
    concept = ConceptConfig(
        path=str(frames), frame_folders_fps=16, reference_folder=str(others), layer_folder=str(others)
    )
    dataset = scan([concept], videos=True)
    assert [Path(path).name for path in dataset.paths] == ["still.png", "walk.v2"]
    for setting in ("reference_folder", "layer_folder"):
        found = [
            [Path(path).name for path in of_sample] for of_sample in find_paired(dataset, setting, "file", "files")
        ]
        assert found == [["still.png"], ["walk.v2_0.png", "walk.v2_1.png"]]


def test_a_folder_of_frames_is_checked_and_cached_as_a_whole(frames, tmp_path):
    config = with_frame_folders(frames, 16)
    hashes = FileHashes(tmp_path / "cache", 0)
    folder = str(frames / "walk.v2")
    (before,) = hashes.of([folder])
    shutil.copytree(folder, frames / "copy")
    assert hashes.of([str(frames / "copy")]) == [before]
    kinds = {finding.kind: finding for finding in check_health(config).findings}
    assert kinds["duplicate"].paths == [folder]
    assert kinds["missing_caption"].count == 2
    assert "lonely_caption" not in kinds
    (frames / "walk.v2/frame7.png").write_bytes(b"no image")
    assert hashes.of([folder]) != [before]
    unreadable = check_health(config).findings
    assert any(finding.kind == "unreadable" and folder in finding.paths for finding in unreadable)


def test_single_frames_that_a_model_for_images_leaves_out_are_not_unreadable(tmp_path):
    write_video(tmp_path / "walk.mp4", 16, fps=16)
    for number in range(9):
        Image.new("RGB", (64, 64), (20 * number, 0, 0)).save(tmp_path / f"{number}.png")
    config = config_of(tmp_path, "wan22_i2v_a14b", clips="chunks", max_unreadable_share=0)
    findings = {finding.kind: finding for finding in check_health(config).findings}
    assert not findings.keys() & {"unreadable", "unreadable_share"}
    assert (findings["still"].level, findings["still"].count) == ("note", 9)
    assert "images are left out, such as " in findings["still"].message
    assert "it is a single frame, and Wan 2.2 I2V A14B learns from videos" in findings["still"].message


def test_without_a_rate_the_images_of_a_folder_are_single_images(frames):
    assert len(clips_of(config_of(frames))) == 13
    assert len(clips_of(with_frame_folders(frames, 16, frames=1))) == 13


def test_a_broken_video_is_left_out_and_each_clip_has_the_caption_of_its_video(videos):
    dataset, _ = prepared(config_of(videos, clips="chunks"))
    assert [path.rpartition("/")[2] for path, _ in dataset.unreadable] == ["broken.mp4"]
    assert [options[0] for options in captions(dataset)] == ["a long one"] * 4 + ["a short one", "a still one"]
    findings = {finding.kind: finding.message for finding in check_health(config_of(videos)).findings}
    assert "broken.mp4" in findings["unreadable"]
    assert "lonely_caption" not in findings
    assert "1x" not in findings.get("small_bucket", "")


@pytest.fixture
def timed(tmp_path):
    """walk.mp4 with four clips of nine frames, 0.56 s each, whose first and third have captions of their own."""
    folder = tmp_path / "timed"
    folder.mkdir()
    write_video(folder / "walk.mp4", 40)
    lines = ("a walk", "[0:00 - 0:00.5] it starts", "[0:01 - 0:01.8] it turns", "[0:09 - 0:10] it ends")
    (folder / "walk.txt").write_text("\n".join(lines))
    return config_of(folder, clips="chunks")


def test_a_clip_has_the_caption_of_its_time_and_else_that_of_its_video(timed):
    concept = timed.concepts[0]
    concept.caption_suffix = "."
    assert captions(prepared(timed)[0]) == [("it starts.",), ("a walk.",), ("it turns.",), ("a walk.",)]
    table = Path(concept.path, "captions.csv")
    table.write_text("file_name,caption\nwalk.mp4,[0:00 - 0:00.5] a start\nwalk.mp4,a table\nwalk.mp4,a desk\n")
    concept.captions = "table"
    assert captions(prepared(timed)[0]) == [("a start.",), *[("a table.", "a desk.")] * 3]


def test_another_caption_of_one_clip_is_the_only_text_that_is_encoded_again(timed, tmp_path, tiny_model):
    timed.model.base = str(tiny_model("wan21"))
    base, hashes = BaseModel(FAMILIES["wan21"], timed.model, torch.device("cpu")), FileHashes(tmp_path / "cache", 0)

    def keys():
        dataset, buckets = prepared(timed)
        texts = [options[0] for options in captions(dataset)]
        return text_keys(texts, base, hashes), latent_keys(dataset, buckets, base, hashes)

    (first, second, third, last), latents = keys()
    caption = Path(timed.concepts[0].path, "walk.txt")
    caption.write_text(caption.read_text().replace("it turns", "it stops"))
    (*others, end), same_latents = keys()
    assert (*others, end) == (first, second, others[2], last)
    assert others[2] != third
    assert same_latents == latents


def test_the_check_names_captions_of_times_without_a_clip_and_clips_without_a_caption(timed):
    path = str(Path(timed.concepts[0].path, "walk.mp4"))
    findings = {finding.kind: finding for finding in check_health(timed).findings}
    assert "clip_without_caption" not in findings
    assert findings["unused_caption"].paths == [path]
    assert findings["unused_caption"].message == (f"1 timed caption covers no clip, such as [0:09 - 0:10] of {path}.")
    caption = Path(timed.concepts[0].path, "walk.txt")
    caption.write_text(caption.read_text().removeprefix("a walk"))
    finding = {finding.kind: finding for finding in check_health(timed).findings}["clip_without_caption"]
    assert (finding.count, finding.paths) == (2, [path])
    assert f"such as [0:00.56 - 0:01.12] of {path}" in finding.message


def test_captions_of_videos_are_converted_to_utf8(timed):
    caption = Path(timed.concepts[0].path, "walk.txt")
    caption.write_text("café", "cp1252")
    assert list(misencoded_captions(timed)) == [str(caption)]


def test_the_pixels_are_those_of_the_clips_frames_and_a_bucket_has_one_number_of_frames(videos):
    dataset, buckets = prepared(config_of(videos, clips="chunks", fps=8))
    second = load_pixels(dataset, buckets, 1)
    width, height = buckets.shape_of(1)
    assert second.shape == (3, 9, height, width)
    levels = (second[0, :, height // 2, width // 2] + 1) * 127.5 / LEVELS
    assert levels.round().tolist() == [18 + 2 * number for number in range(9)]
    frames = {buckets.names[buckets.index[sample]] for sample in range(len(dataset))}
    assert frames == {f"{width}x{height}x9", f"{width}x{height}"}
    assert load_pixels(dataset, buckets, 2).shape == load_pixels(dataset, buckets, 3).shape == (3, height, width)


def test_an_augmented_clip_changes_in_all_frames_alike(videos):
    config = config_of(videos)
    config.concepts[0].augmentation = AugmentationConfig(flip=True, crop_jitter=True, brightness=0.2)
    dataset, buckets = prepared(config)
    variants = [load_pixels(dataset, buckets, sample) for sample in range(config.data.augmentation_variants)]
    for pixels in variants:
        steps = np.diff(pixels[0, :, pixels.shape[2] // 2, 8])
        assert steps == pytest.approx(np.full(8, steps.mean()), abs=0.02)
    assert len({pixels.tobytes() for pixels in variants}) > 1


def test_other_clips_are_other_samples_and_images_stay_the_same_ones(videos, tmp_path):
    digests = {samples_digest(prepared(config_of(videos, **data))[0]) for data in ({}, {"clips": "middle"}, {"fps": 8})}
    assert len(digests) == 3
    shutil.copy(videos / "still.png", tmp_path)
    images, clips = (samples_digest(prepared(config_of(tmp_path, frames=count))[0]) for count in (1, 9))
    assert images != clips  # no clip is a sample of its own kind


def test_videos_are_only_for_models_of_videos_with_more_than_one_frame(videos, tmp_path):
    for config in (config_of(videos, family="sd15"), config_of(videos, frames=1)):
        assert [path.rpartition("/")[2] for path in prepared(config)[0].paths] == ["still.png"]
    write_video(tmp_path / "a.mp4", 3)
    with pytest.raises(DataError, match=r"contains only videos, which models of videos train if data\.frames"):
        prepared(config_of(tmp_path, frames=1))


def test_a_number_of_frames_that_the_vae_would_cut_is_refused_with_a_remedy():
    config = replace(TrainConfig(family="wan22_5b"), data=DataConfig(frames=16))
    (problem,) = [one for one in find_problems(config) if one.path == "data.frames"]
    assert problem.message == "data.frames 16: Wan 2.2 TI2V-5B takes a multiple of 4 plus 1; use 13 or 17."
    assert problem.blocking
    assert with_remedy(config, problem.remedy).data.frames == 17
    assert not [one for one in find_problems(replace(config, family="sd15")) if one.path == "data.frames"]


def test_clips_have_frames_beyond_the_multiple_where_the_model_needs_them():
    lengths = [clip_length(count, 17, rest=5) for count in (1, 5, 21, 22, 38, 39)]
    assert lengths == [1, 1, 1, 22, 22, 39]
    config = replace(TrainConfig(family="minimax_h3"), data=DataConfig(frames=5))
    (problem,) = [one for one in find_problems(config) if one.path == "data.frames"]
    assert problem.message == "data.frames 5: MiniMax H3 takes a multiple of 17 plus 5; use 1 or 22."
    rule = clip_rule(with_remedy(config, problem.remedy))
    assert (rule.frames, rule.step, rule.rest) == (22, 17, 5)
    for count, taken in ((20, "33"), (50, "33 or 66")):
        config = replace(TrainConfig(family="helios"), data=DataConfig(frames=count))
        (problem,) = [one for one in find_problems(config) if one.path == "data.frames"]
        assert problem.message == f"data.frames {count}: Helios takes a multiple of 33; use {taken}."


def test_the_summary_of_a_run_counts_images_videos_and_clips(videos, tiny_model):
    config = config_of(videos, clips="chunks")
    config.model.base = str(tiny_model("wan21"))
    lines = dict(line.split(":", 1) for line in summary_text(config).splitlines())
    assert lines["Images"].split() == ["1"]
    assert lines["Clips"].strip() == "5 of 2 videos"
    assert "x9: 4" in lines["Buckets"]


def test_the_frames_of_a_clip_are_encoded_in_pieces_and_never_all_in_memory(tmp_path, tiny_model):
    vae = AutoencoderKLWan.from_pretrained(tiny_model("wan21"), subfolder="vae").eval()
    shape, alive, most = (64, 48), set(), 0
    path = str(write_video(tmp_path / "a.mp4", 97))
    whole = load_clip(path, Clip(0.0, 97, 16.0), shape, NO_AUGMENTATION)

    def counted():
        nonlocal most
        for number, frame in enumerate(clip_frames(path, Clip(0.0, 97, 16.0), shape, NO_AUGMENTATION)):
            alive.add(number)
            weakref.finalize(frame, alive.discard, number)
            most = max(most, len(alive))
            yield frame

    encoder = LatentEncoder(FAMILIES["wan21"], vae)
    pieces = encoder.encode_clip(counted)
    assert most <= 2 * FRAMES_AHEAD
    # float32 of other strides, for which a processor may have other kernels
    torch.testing.assert_close(pieces, encoder.encode(torch.from_numpy(whole)[None])[0])


def test_a_clip_that_does_not_fit_in_memory_is_tiled_and_then_refused(tmp_path, tiny_model, monkeypatch):
    vae = AutoencoderKLWan.from_pretrained(tiny_model("wan21"), subfolder="vae").eval()
    encoder, fits = LatentEncoder(FAMILIES["wan21"], vae), iter([False, True, False])

    def run_if_it_fits(run, device):
        is_enough = next(fits)
        if is_enough:
            run()
        return is_enough

    monkeypatch.setattr("modules.data.LatentEncoder.fits_in_memory", run_if_it_fits)
    path = str(write_video(tmp_path / "a.mp4", 5))
    frames = partial(clip_frames, path, Clip(0.0, 5, 16.0), (64, 48), NO_AUGMENTATION)
    assert encoder.encode_clip(frames).shape == (16, 2, 6, 8)
    with pytest.raises(DataError, match=r"a clip of 5 frames of 64 x 48 pixels, even in tiles: lower data\.frames"):
        encoder.encode_clip(frames)


def test_the_check_names_videos_of_variable_rate_and_those_stored_sideways(tmp_path):
    write_video(tmp_path / "variable.mkv", 12, times=[40 * n for n in range(10)] + [1200, 1240])
    turn_sideways(write_video(tmp_path / "constant.mp4", 12, fps=30), tmp_path / "sideways.mp4")
    write_video(tmp_path / "rounded.webm", 12, fps=24)  # its times are in whole milliseconds
    health = check_health(config_of(tmp_path, frames=5))
    findings = {finding.kind: finding for finding in health.findings}
    assert findings["variable_rate"].paths == [str(tmp_path / "variable.mkv")]
    assert findings["sideways"].paths == [str(tmp_path / "sideways.mp4")]
    assert findings["sideways"].message == (
        f"1 video is stored sideways and trained upright, such as {tmp_path / 'sideways.mp4'}."
    )


@pytest.mark.parametrize(
    ("family", "frames", "latents"),
    [("minimax_h3", 1, 1), ("minimax_h3", 22, 7), ("minimax_h3", 124, 37), ("wan21", 81, 21), ("mochi", 1, 1)],
)
def test_a_clip_has_the_latent_frames_of_its_models_vae(family, frames, latents):
    assert latent_frames(frames, load_families()[family]) == latents
