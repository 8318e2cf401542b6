"""The figures of a dataset are those of what a run would train."""

from pathlib import Path

import pytest

from modules.config.files import config_from_values
from modules.curation.report import report_lines
from modules.curation.statistics import BucketFill, dataset_statistics, place_in, tagged_paths
from modules.data.concepts import captions
from modules.data.ImageSettings import Crop, ImageSetting, ImageSettings, settings_file
from modules.data.prepare import prepare_data
from modules.families.registry import FAMILIES
from tests.support.pictures import write_pictures
from tests.support.videos import write_video

SIZES = [(64, 64)] * 5 + [(64, 96)] * 3 + [(48, 32), (160, 64)]


def statistics_of(
    folder: Path, batch: int = 2, family: str = "sd15", concept=None, num_tokens=None, token_limit=None, **data
):
    config = config_from_values({
        "family": family,
        "concepts": [{"path": str(folder), **(concept or {})}],
        "data": {"resolution": 64, "bucket_step": 16, **data},
    })  # fmt: skip
    dataset, buckets = prepare_data(config, FAMILIES[family])
    return dataset_statistics(dataset, buckets, captions(dataset), batch, num_tokens, token_limit)


def test_shapes_sizes_and_steps_are_counted_as_they_are_trained(tmp_path):
    folder = write_pictures(tmp_path / "pictures", SIZES)
    settings = {"000.png": ImageSetting(left_out=True), "009.png": ImageSetting(crop=Crop(0, 0, 64, 64))}
    Path(settings_file(str(folder))).write_bytes(ImageSettings(settings).to_bytes())
    found = statistics_of(folder, concept={"repeats": 1.5})
    assert (found.num_images, found.num_set_aside, found.num_cropped, found.num_clips) == (9, 1, 1, 0)
    assert found.aspects == {"2:3": 3, "3:4": 0, "4:5": 0, "1:1": 5, "5:4": 0, "4:3": 0, "3:2": 1}
    assert found.sides == {"below 256": 9}
    assert found.buckets == [
        BucketFill("64x64", 7.5, 3, 1.5),
        BucketFill("48x80", 4.5, 2, 0.5),
        BucketFill("80x48", 1.5, 0, 1.5),
    ]
    assert found.mixed_share == pytest.approx(3.5 / 13.5)
    # 48 x 32 to a width of 80; the others fill 64 x 64 and 48 x 80 as they are
    assert found.upscaling == {
        "not upscaled": 8, "up to 1.1 x": 0, "up to 1.5 x": 0, "up to 2 x": 1, "more than 2 x": 0,
    }  # fmt: skip


def test_views_count_once_and_with_their_largest_upscaling(tmp_path):
    folder = write_pictures(tmp_path / "pictures", [(64, 64)])
    found = statistics_of(folder, resolutions=[64, 96])
    assert found.num_images == 1
    assert found.upscaling["up to 1.5 x"] == 1
    assert sum(bucket.samples for bucket in found.buckets) == 1


def test_words_tokens_and_tags_of_captions_are_counted(tmp_path):
    texts = ["cat, blue sky", "cat,  dog, blue  sky", "", "one two three four five six, seven eight nine ten eleven"]
    folder = write_pictures(tmp_path / "pictures", [(64, 64)] * 4, texts)
    found = statistics_of(folder, num_tokens={texts[0]: 5, texts[3]: 80})
    assert found.words == {"none": 1, "1 to 9": 2, "10 to 19": 1}
    assert found.tokens == {"1 to 19": 1, "20 to 39": 0, "40 to 75": 0, "76 to 150": 1}
    assert list(found.tags.items()) == [("blue sky", 2), ("cat", 2), ("dog", 1)]
    limited = statistics_of(folder, num_tokens={texts[0]: 5, texts[3]: 80}, token_limit=77)
    assert list(limited.tokens) == ["1 to 19", "20 to 39", "40 to 75", "76 to 77", "78 to 150"]
    assert found.num_tags == 3
    assert (list(found.single_tags), found.num_single_tags) == (["dog"], 1)


def test_each_label_names_the_images_that_it_counts(tmp_path):
    folder = write_pictures(tmp_path / "pictures", SIZES, ["cat, dog", *["cat, blue sky"] * 9])
    found = statistics_of(folder, resolutions=[64, 96])

    def names(figure: str, label: str) -> list[int]:
        return sorted(int(Path(path).stem) for path in found.paths[figure][label])

    assert names("aspects", "2:3") == [5, 6, 7]
    assert names("sides", "below 256") == list(range(10))
    assert names("upscaling", "more than 2 x") == [8]
    assert names("buckets", "64x64") == [0, 1, 2, 3, 4]  # each once, also with several views
    assert names("tags", "dog") == names("single_tags", "dog") == [0]
    assert names("words", "1 to 9") == list(range(10))
    counts = {label: len(paths) for label, paths in found.paths["aspects"].items()}
    assert counts == found.aspects


def test_a_value_is_marked_where_it_lies_among_the_ranges():
    assert place_in(75, (1, 20, 40, 76)) == pytest.approx(3 + 35 / 36)
    assert place_in(1, (4, 8)) == 0.25
    assert place_in(9, (4, 8)) == 2.5


def test_an_image_counts_once_for_each_tag_of_its_captions():
    assert tagged_paths([("1", ["a; b", "b; c"], ";"), ("2", ["b, c"], ",")]) == {
        "a": ["1"],
        "b": ["1", "2"],
        "c": ["1", "2"],
    }
    assert tagged_paths([("1", ["a, b"], ""), ("2", ["cat"], ",")]) == {}


def test_clips_and_the_durations_of_their_videos_are_counted(tmp_path):
    for number, frames in enumerate((9, 40)):
        write_video(tmp_path / f"{number}.mp4", frames, fps=16)
    found = statistics_of(tmp_path, family="wan21", frames=9, clips="chunks")
    assert found.num_clips == found.num_images == 5
    assert found.seconds == {"none": 1, "1": 0, "2 to 4": 1}


def test_the_report_draws_each_figure(tmp_path):
    folder = write_pictures(tmp_path / "pictures", SIZES, ["cat, dog"] * 10)
    lines = list(report_lines(statistics_of(folder)))
    assert "Buckets, samples of an epoch in steps of 2: 20% of them in steps of mixed shapes" in lines
    assert f"  64x64  5 = 2 x 2 + 1  {'#' * 30}" in lines
    assert f"  80x48  2 = 1 x 2 + 0  {'#' * 12}" in lines
    assert lines[-2:] == [f"  cat  10  {'#' * 30}", f"  dog  10  {'#' * 30}"]
