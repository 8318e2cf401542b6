"""Source clips are found by the names of their clips, and show the same time, cut and turned like them."""

import shutil
from types import SimpleNamespace

import numpy as np
import pytest
from PIL import Image

from modules.config.ConceptConfig import ConceptConfig
from modules.config.rules.conditions.source_clip import RULES
from modules.config.TrainConfig import TrainConfig
from modules.config.validation import find_problems
from modules.curation.copy_dataset import copy_dataset
from modules.data.cache_keys import latent_keys
from modules.data.conditions import conditions_of
from modules.data.conditions.source_clip import source_frames
from modules.data.decode_check import find_unusable
from modules.data.errors import DataError, ImageError
from modules.data.ImageRequest import ImageRequest
from modules.data.images import to_image
from modules.data.prepare import prepare_data
from modules.families.conditions import SourceClip
from modules.families.registry import FAMILIES
from tests.support.videos import gray_frames, number_of, write_video

FAMILY = FAMILIES["lucy_edit"]
(CONDITION,) = conditions_of(FAMILY)
FIRST = 10  # number of a source's first frame


@pytest.fixture
def folders(tmp_path):
    """A video of two clips of nine frames, with a source of another size and frame rate, and an image with one."""
    write_video(tmp_path / "after" / "walk.mp4", 20, fps=24)
    write_video(tmp_path / "before" / "walk.webm", 40, fps=48, size=(128, 96), first=FIRST)
    for name, size in (("after", (64, 48)), ("before", (32, 24))):
        Image.new("RGB", size, "red").save(tmp_path / name / "still.png")
    return tmp_path / "after", tmp_path / "before"


def config_of(folder, sources, frames=9, **concept):
    return TrainConfig(
        family=FAMILY.name,
        concepts=[ConceptConfig(path=str(folder), source_folder=str(sources), **concept)],
        data={"resolution": 64, "bucket_step": 32, "frames": frames, "clips": "chunks"},
    )


def prepared(*folders, **options):
    return prepare_data(config_of(*folders, **options), FAMILY)


def test_a_source_shows_what_a_player_does_at_the_times_of_its_clip(folders):
    dataset, buckets = prepared(*folders)
    assert CONDITION.describe(dataset) == ("Sources", "one for each clip or image")
    shown = [[to_image(frame) for frame in source_frames(dataset, buckets, sample)] for sample in range(len(dataset))]
    assert [len(frames) for frames in shown] == [1, 9, 9]
    for start, frames in zip((0, 9), shown[1:], strict=True):
        assert [number_of(frame) for frame in frames] == [FIRST + 2 * (start + number) for number in range(9)]
        assert {frame.size for frame in frames} == {buckets.shape_of(1)}
    starts = [CONDITION.sample_settings(dataset, sample)["reference"] for sample in range(3)]
    before = folders[1]
    assert starts == [str(before / "still.png"), str(before / "walk.webm"), f"{before / 'walk.webm'}#t=0.375"]


def test_a_source_is_flipped_with_its_clip(folders, tmp_path):
    for folder in folders:
        path = folder / "still.png"
        image = Image.open(path)
        image.paste("white", (0, 0, image.width // 2, image.height))
        image.save(path)
    dataset, buckets = prepared(*folders, augmentation={"flip": True}, include="*.png")
    left = [next(iter(source_frames(dataset, buckets, sample)))[:, :, 0].mean() for sample in range(len(dataset))]
    assert len(left) > 1
    assert {round(float(value), 2) for value in left} == {1.0, round(-1 / 3, 2)}


def test_frames_of_folders_are_sources_of_each_other(tmp_path):
    for name, count in (("after", 9), ("before", 10)):
        (tmp_path / name / "walk").mkdir(parents=True)
        for number, frame in enumerate(gray_frames(count)):
            frame.save(tmp_path / name / "walk" / f"{number}.png")
    dataset, buckets = prepared(tmp_path / "after", tmp_path / "before", frame_folders_fps=24)
    frames = [to_image(frame) for frame in source_frames(dataset, buckets, 0)]
    assert [number_of(frame) for frame in frames] == list(range(9))
    files = CONDITION.sample_settings(dataset, 0)["reference"].split("\n")
    assert files == [str(tmp_path / "before" / "walk" / f"{number}.png") for number in range(9)]
    request = ImageRequest("", "", 1, 64, 48, 1, 1.0, references=tuple(reversed(files)), frames=5)
    arguments = CONDITION.sample_arguments(request, 1)
    assert [number_of(frame) for frame in arguments["video"]] == list(range(5))
    assert arguments["num_frames"] == 5


def test_clips_that_their_source_is_too_short_for_are_left_out(folders):
    write_video(folders[1] / "walk.webm", 10, fps=24)
    dataset, _ = prepared(*folders)
    assert len(dataset) == 2
    ((path, reason),) = dataset.unreadable
    assert path == str(folders[0] / "walk.mp4")
    assert reason.startswith("its source clip walk.webm ends after 0.4")
    assert reason.endswith("s, before the clip does at 0.75 s")
    (folders[0] / "still.png").unlink()
    write_video(folders[1] / "walk.webm", 3, fps=24)
    with pytest.raises(DataError, match=r"walk\.mp4 can't be trained, nor can any other: its source clip"):
        prepared(*folders)


def test_a_source_that_is_missing_or_does_not_fit_is_refused(folders):
    before = folders[1]

    def refused(*options):
        with pytest.raises(DataError) as error:
            prepared(*folders)
        return str(error.value)

    Image.new("RGB", (32, 32)).save(before / "still.png")
    assert "is 32 x 32 and still.png 64 x 48: both need the same aspect ratio" in refused()
    shutil.move(before / "still.png", before / "walk_1.png")
    assert "concepts.0.source_folder has 0 source clips for" in refused()
    Image.new("RGB", (32, 24)).save(before / "still.png")
    assert "concepts.0.source_folder has 2 source clips for" in refused()
    (before / "walk.webm").unlink()
    assert "walk_1.png is an image and" in refused()
    assert "walk.mp4 is a video: replace it by one of that kind." in refused()


def test_a_damaged_source_is_named_by_the_check_and_leaves_its_sample_out(folders):
    whole = (folders[1] / "walk.webm").read_bytes()
    dataset, buckets = prepared(*folders)
    (folders[1] / "walk.webm").write_bytes(whole[:-1500])
    found = find_unusable(dataset, range(len(dataset)))
    assert [*found] == [2]
    assert found[2].startswith("its source clip walk.webm can't be read: ")
    with pytest.raises(ImageError) as error:
        list(source_frames(dataset, buckets, 2))
    assert error.value.reason.startswith("its source clip walk.webm can't be read: ")
    (folders[1] / "still.png").write_bytes(b"no image")
    assert prepared(*folders)[0].unreadable[0][1].startswith("its source clip still.png can't be read: ")


def test_a_changed_source_changes_the_key_of_its_samples_alone(folders):
    def keys(changed=""):
        hashes = SimpleNamespace(
            of=lambda paths, masks=(): ["other" if path.endswith(changed or "?") else path for path in paths],
            combined=lambda *files: "",
        )
        base = SimpleNamespace(family=FAMILY, component_files=lambda *names: list(names), dtype="")
        return np.array(latent_keys(*prepared(*folders), base, hashes))

    assert (keys() != keys("before/walk.webm")).tolist() == [False, True, True]


def test_samples_are_as_long_as_their_source(folders):
    video = str(folders[1] / "walk.webm")  # of 40 frames, 20 at the model's 24 per second

    def numbers(frames, fps=0.0, path=video):
        request = ImageRequest("", "", 1, 64, 48, 1, 1.0, references=(path,), frames=frames, fps=fps)
        return [number_of(frame) for frame in CONDITION.sample_arguments(request, 1)["video"]]

    assert numbers(5) == [10, 12, 14, 16, 18]
    assert numbers(5, fps=48) == [10, 11, 12, 13, 14]
    assert numbers(33) == [FIRST + 2 * number for number in range(17)]
    assert numbers(5, path=f"{video}#t=0.25") == [22, 24, 26, 28, 30]
    assert numbers(33, path=f"{video}#t=0.8") == [48]
    still = ImageRequest("", "", 1, 32, 24, 1, 1.0, references=(str(folders[1] / "still.png"),), frames=9)
    assert [frame.size for frame in CONDITION.sample_arguments(still, 1)["video"]] == [(32, 24)]


def test_a_control_clip_keeps_its_colors_and_is_given_for_each_prompt(folders):
    (condition,) = conditions_of(FAMILIES["cogvideox_fun"])
    prepared_data = prepared(*folders, augmentation={"fixed_brightness": -0.5}, include="*.png")
    (frame,) = condition.load(*prepared_data, 0, None).shown()
    assert frame[0].mean() == pytest.approx(1.0)
    request = ImageRequest("", "", 1, 32, 24, 1, 1.0, references=(str(folders[1] / "still.png"),), frames=9)
    arguments = condition.sample_arguments(request, 2)
    assert [[frame.size for frame in clip] for clip in arguments["control_video"]] == [[(32, 24)]] * 2


def test_settings_without_sources_or_for_other_models_are_refused(folders):
    def problems(**values):
        config = config_of(*folders)
        for name, value in values.items():
            setattr(config, name, value)
        return {problem.path: problem.message for problem in find_problems(config)}

    assert "takes no source clips" in problems(family="wan22_5b")["concepts.0.source_folder"]
    empty = [ConceptConfig(path=str(folders[0]))]
    assert "Lucy-Edit makes videos of videos" in problems(concepts=empty)["concepts.0.source_folder"]
    assert "concepts.0.source_folder" not in problems()


def test_where_sources_are_optional_clips_with_one_train_apart_and_samples_choose_by_their_images(folders, tmp_path):
    family = FAMILIES["ltx2"]
    condition = next(one for one in conditions_of(family) if isinstance(one.spec, SourceClip))
    alone = ConceptConfig(path=str(shutil.copytree(folders[0], tmp_path / "alone")))
    config = config_of(*folders)
    config.family, config.concepts = family.name, [*config.concepts, alone]
    assert [problem.path for problem in find_problems(config) if "source" in problem.path] == []
    assert RULES.further_pixels(config) == 64 * 64 * 2  # as many tokens as a clip has, in the estimate of memory
    dataset, buckets = prepare_data(config, family)
    assert condition.describe(dataset) == ("Sources", "for all but 3 of the clips and images")
    kinds = condition.passes(dataset)
    assert [bool(condition.sample_settings(dataset, sample)) for sample in range(6)] == [kind != "" for kind in kinds]
    assert sorted(kinds) == [""] * 3 + ["with source"] * 3
    assert [condition.load(dataset, buckets, sample, None) is None for sample in range(6)] == [not one for one in kinds]
    config.concepts = [alone]
    assert RULES.further_pixels(config) == 0
    dataset, _ = prepare_data(config, family)
    assert condition.describe(dataset) is condition.passes(dataset) is None
    image, video = (str(folders[1] / name) for name in ("still.png", "walk.webm"))

    def pipelines(*references, frames=9):
        request = ImageRequest("", "", 1, 64, 48, 1, 1.0, references=references, frames=frames)
        return [one.pipeline(request) for one in conditions_of(family) if one.claims(request)]

    assert pipelines() == pipelines(image) == []  # of an image, a clip goes on from it as its first frame
    assert (
        pipelines(f"{video}#t=0.2")
        == pipelines(image, image)
        == pipelines(image, frames=1)
        == [condition.spec.pipeline]
    )


def test_a_copy_of_a_dataset_has_the_sources(folders, tmp_path):
    config = config_of(*folders)
    copied = copy_dataset(config.concepts[0], str(tmp_path / "copy"))
    dataset, _ = prepare_data(config_of(copied.concept.path, copied.concept.source_folder), FAMILY)
    assert len(dataset) == 3
