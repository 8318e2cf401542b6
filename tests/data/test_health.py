"""The health check tells of everything unusual, and of an error exactly where the training would fail."""

import shutil

import pytest
from PIL import Image

from modules.config.files import config_from_values
from modules.data.health import check_health
from tests.support.icc import SPACES, rgb_profile, srgb_profile

SIZES = ((64, 64), (64, 64), (64, 64), (96, 64), (64, 96))


@pytest.fixture
def folder(picture_folder):
    return picture_folder(SIZES)


@pytest.fixture
def check(folder):
    def check(*concepts, most_decoded=None, **settings):
        values = {
            "model": {"base": "/nowhere"},  # the check is of the data alone
            "batch_size": 1,
            "data": {"resolution": 64, "bucket_step": 16, **settings.pop("data", {})},
            "concepts": [{"path": str(folder), **concept} for concept in concepts or ({},)],
            **settings,
        }
        return check_health(config_from_values(values), most_decoded=most_decoded)

    return check


def found(health):
    return {finding.kind: finding for finding in health.findings}


def test_a_sound_folder_has_nothing_unusual(check):
    health = check()
    assert health.findings == []
    assert health.can_train
    assert health.num_pictures == 5


def test_missing_captions_are_listed(check, folder):
    (folder / "001.txt").unlink()
    finding = found(check())["missing_caption"]
    assert (finding.level, finding.count) == ("warning", 1)
    assert finding.paths == [str(folder / "001.png")]


def test_a_picture_that_is_left_out_is_not_among_those_without_a_caption(check, folder):
    (folder / "001.txt").unlink()
    (folder / "001-mask.png").write_bytes(b"no image")
    masked = {"loss": {"masked_training": True}, "data": {"max_unreadable_share": 0.5}}
    health = found(check(**masked))
    assert health["unreadable"].paths == [str(folder / "001.png")]
    assert "missing_caption" not in health
    (folder / "002.txt").unlink()
    assert found(check(**masked))["missing_caption"].paths == [str(folder / "002.png")]


def test_empty_captions_are_listed_even_if_all_are(check, folder):
    for number in range(5):
        (folder / f"00{number}.txt").write_text(" \n" * (number % 2))
    finding = found(check())["empty_caption"]
    assert (finding.level, finding.count) == ("warning", 5)
    assert finding.message.startswith("5 images have an empty caption (trained without one), such as ")
    assert "empty_caption" not in found(check({"caption_fallback": "a cat"}))
    surrounded = found(check({"caption_prefix": "sks"}))["empty_caption"].message
    assert surrounded.startswith(
        "5 images have an empty caption (trained with caption_prefix and caption_suffix alone)"
    )
    (folder / "metadata.csv").write_text("file_name,caption\n" + "".join(f"00{n}.png,{n or ''}\n" for n in range(5)))
    health = found(check({"captions": "table"}))
    assert health["empty_caption"].paths == [str(folder / "000.png")]
    assert "missing_caption" not in health


@pytest.mark.parametrize("extension", [".caption", ".cap", ".CAPTION", ".json"])
def test_caption_files_of_another_extension_are_named_with_the_setting_that_reads_them(check, folder, extension):
    for number in range(3):
        (folder / f"00{number}.txt").rename(folder / f"00{number}{extension}")
    finding = found(check())["other_extension"]
    assert finding.message == (
        f"3 images have a {extension} file but no .txt file, which alone is read: set concepts.0.caption_extension to "
        f"{extension}, or rename the files, such as {folder / f'000{extension}'}."
    )
    assert "other_extension" in found(check({"caption_fallback": "a cat"}))
    found_then = found(check({"caption_extension": extension}))
    assert found_then["missing_caption"].count == 2
    assert found_then["other_extension"].message.startswith(f"2 images have a .txt file but no {extension} file")


def test_a_second_caption_file_that_differs_in_case_is_named(check, folder):
    (folder / "000.TXT").write_text("another")
    if (folder / "000.txt").read_text() == "another":
        pytest.skip("this file system does not tell the case of names apart")
    (folder / "001.txt").rename(folder / "001.TXT")
    assert [(finding.kind, finding.paths) for finding in check().findings] == [
        ("two_captions", [str(folder / "000.TXT")])
    ]


def test_tables_that_are_not_read_are_named(check, folder):
    (folder / "metadata.csv").write_text("file_name,text\n" + "".join(f"00{n}.png,{n}\n" for n in range(5)))
    assert check().findings == []  # as long as there are caption files
    (folder / "metadata.jsonl").write_text("")
    (text,) = [finding.message for finding in check({"captions": "table"}).findings]
    assert text == (
        f"concepts.0.caption_table is empty, so metadata.jsonl in {folder} is not read: name the table to read in it, "
        "or join them."
    )
    assert check({"captions": "table", "caption_table": "metadata.csv"}).findings == []
    for number in range(5):
        (folder / f"00{number}.txt").unlink()
    text = found(check())["unread_table"].message
    assert text == (
        f"concepts.0: no image has a .txt file, but {folder} has metadata.csv and metadata.jsonl: set "
        "concepts.0.captions to table to train with it."
    )


def test_brackets_that_are_escaped_for_weights_are_remarked_while_these_are_off(check, folder):
    (folder / "002.txt").write_text(r"fate \(series\), solo")
    finding = found(check())["escaped_brackets"]
    assert finding.paths == [str(folder / "002.png")]
    assert finding.message.startswith(
        r"1 image has a caption with \( or \), whose backslash is trained: remove it or turn on model.word_weights"
    )
    assert check(model={"base": "/nowhere", "word_weights": True}).findings == []


def test_captions_without_a_picture_are_listed(check, folder):
    (folder / "lonely.txt").write_text("nobody")
    (folder / "999.png.txt").write_text("named after the whole file name")
    assert found(check())["lonely_caption"].paths == [str(folder / "999.png.txt"), str(folder / "lonely.txt")]


def test_rows_of_a_table_without_a_picture_are_listed(check, folder):
    (folder / "metadata.csv").write_text("file_name,caption\n000.png,a cat\ngone.png,a dog\n")
    health = found(check({"captions": "table"}))
    assert health["lonely_caption"].paths == ["gone.png"]
    assert health["missing_caption"].count == 4


def test_long_captions_are_listed(check, folder):
    (folder / "002.txt").write_text("word " * 61)
    (folder / "003.txt").write_text("word " * 60)
    finding = found(check())["long_caption"]
    assert finding.paths == [str(folder / "002.png")]
    assert finding.level == "note"


def test_color_profiles_are_counted_and_the_damaged_ones_warned_of(check, folder):
    for number, profile in enumerate((rgb_profile(SPACES["Adobe RGB"]), b"damaged", srgb_profile())):
        with Image.open(folder / f"00{number}.png") as image:
            image.save(folder / f"00{number}.png", icc_profile=profile)
    health = found(check())
    assert health["color_profile"].paths == [str(folder / "000.png")]
    assert health["unusable_profile"].level == "warning"
    assert health["unusable_profile"].paths == [str(folder / "001.png")]


def test_copies_are_listed_but_not_pictures_that_only_look_alike_in_size(check, folder):
    shutil.copy(folder / "000.png", folder / "zz.png")
    (folder / "zz.txt").write_text("x")
    for number, colour in enumerate(("red", "lime")):
        Image.new("RGB", (64, 64), colour).save(folder / f"plain{number}.bmp")
        (folder / f"plain{number}.txt").write_text("x")
    assert found(check())["duplicate"].paths == [str(folder / "zz.png")]


def test_variants_of_a_picture_are_not_its_copies(check):
    health = check({"augmentation": {"flip": True}}, data={"resolutions": [48, 64]})
    assert health.findings == []
    assert health.num_pictures == 5


def test_small_and_elongated_pictures_are_listed(check, folder):
    for name, size in (("small", (40, 40)), ("long", (640, 64))):
        Image.new("RGB", size).save(folder / f"{name}.png")
        (folder / f"{name}.txt").write_text(name)
    health = found(check())
    assert health["small"].paths == [str(folder / "small.png")]
    assert health["elongated"].paths == [str(folder / "long.png")]
    assert "(17% is kept)" in health["elongated"].message


def test_shapes_with_less_than_a_step_are_named(check):
    health = found(check(batch_size=2))
    assert health["small_bucket"].count == 2
    assert health["small_bucket"].message.endswith("steps of mixed shapes: 48x80, 80x48.")
    assert "small_bucket" not in found(check({"repeats": 2.0}, batch_size=2))


def test_unreadable_pictures_are_a_warning_until_they_are_too_many(check, folder):
    (folder / "broken.png").write_bytes(b"no picture")
    health = check(data={"max_unreadable_share": 0.2})
    assert found(health)["unreadable"].paths == [str(folder / "broken.png")]
    assert health.can_train
    health = check()
    assert found(health)["unreadable_share"].level == "error"
    assert not health.can_train
    assert health.findings[0].level == "error"


def test_damage_behind_the_header_is_found_by_decoding(check, folder):
    path = folder / "000.png"
    path.write_bytes(path.read_bytes()[:-60])
    assert check(most_decoded=0).can_train
    assert not check().can_train


def test_of_many_images_some_from_everywhere_are_decoded(check, folder):
    broken = [folder / "001.png", folder / "003.png"]
    for path in broken:
        path.write_bytes(path.read_bytes()[:-60])
    health = found(check(most_decoded=2, data={"max_unreadable_share": 0.9}))
    assert health["unreadable"].paths == [str(folder / "003.png")]
    assert health["partly_decoded"].message.startswith("2 of 5 images were decoded")
    assert found(check(data={"max_unreadable_share": 0.9}))["unreadable"].paths == list(map(str, broken))


@pytest.mark.parametrize("resolutions", [[], [48, 64]])
def test_counts_are_those_of_the_run_which_leaves_damaged_images_out(resolutions, check, folder):
    (folder / "001.txt").unlink()
    (folder / "002.txt").unlink()
    data = {"max_unreadable_share": 0.9, "resolutions": resolutions}
    assert check(batch_size=3, data=data).num_pictures == 5
    assert found(check(batch_size=3, data=data))["missing_caption"].count == 2
    for name in ("001.png", "003.png", "004.png"):
        path = folder / name
        path.write_bytes(path.read_bytes()[:-60])
    health = check(batch_size=3, data=data)
    assert health.num_pictures == 2
    assert found(health)["missing_caption"].count == 1
    assert "2 samples < 3 per step" in found(health)["few_samples"].message
    assert "small_bucket" not in found(health) or resolutions


def test_damage_of_what_belongs_to_an_image_is_found_by_decoding(check, folder):
    mask = folder / "001-mask.png"
    Image.radial_gradient("L").resize((64, 64)).save(mask)
    mask.write_bytes(mask.read_bytes()[:-200])
    health = check(loss={"masked_training": True}, data={"max_unreadable_share": 0.5})
    assert found(health)["unreadable"].paths == [str(folder / "001.png")]
    assert "its mask 001-mask.png can't be read: " in found(health)["unreadable"].message


@pytest.mark.parametrize(
    ("concepts", "sentence"),
    [
        (({"path": "/nowhere/at all"},), "does not exist"),
        (({"path": ""},), "path is empty"),
        (({"include": "*.gif"},), "match none of its images"),
        (({"captions": "table"},), "has no metadata.csv"),
        (({"resolution": 60},), "concepts.0.resolution 60"),
        (({"validation": True},), "nothing would be trained"),
        (({"share": 0.6}, {"share": 0.5}, {}), "add up to 1.1"),
        (({"shuffle_tags": True, "tag_separator": ""},), "tag_separator is empty"),
        (({"enabled": False},), "there is no dataset yet"),
    ],
)
def test_what_training_would_refuse_is_an_error(check, concepts, sentence):
    health = check(*concepts)
    assert not health.can_train
    assert sentence in health.findings[0].message


def test_the_mistakes_of_all_concepts_are_told_at_once(check, tmp_path):
    (tmp_path / "empty").mkdir()
    health = check({"path": "/nowhere"}, {}, {"path": str(tmp_path / "empty")})
    assert [finding.level for finding in health.findings] == ["error", "error"]
    assert "concepts.0.path /nowhere: does not exist" in health.findings[0].message
    assert "concepts.2.path" in health.findings[1].message
    assert "contains no images" in health.findings[1].message


def test_a_caption_that_can_not_be_read_is_an_error(check, folder):
    (folder / "000.txt").write_bytes(b"x" * 10_000_000)
    health = check()
    assert not health.can_train
    assert "000.txt is larger than 1024 KB" in health.findings[0].message


def test_captions_that_can_not_be_read_are_all_listed_and_hide_nothing_else(check, folder):
    for name in ("001.txt", "003.txt"):
        (folder / name).write_bytes(b"caf\xe9")
    (folder / "000.txt").unlink()
    health = check()
    finding = found(health)["unreadable_caption"]
    assert (finding.level, finding.count) == ("error", 2)
    assert f"2 captions can't be read ({folder / '001.txt'} is not UTF-8 (byte 0xe9 at 3); " in finding.message
    assert f"{folder / '003.txt'} is not UTF-8" in finding.message
    assert finding.paths == [str(folder / "001.png"), str(folder / "003.png")]
    assert found(health)["missing_caption"].paths == [str(folder / "000.png")]
    assert not health.can_train


def test_a_word_that_stands_in_no_caption_is_an_error(check):
    words = {"method": "embedding", "embeddings": [{"placeholder": "zebra-1"}]}
    assert "'zebra-1' appears in no caption" in found(check(**words))["placeholder"].message


def test_a_step_of_more_samples_than_there_are_is_warned_of(check):
    assert found(check(batch_size=6))["few_samples"].message.startswith("5 samples < 6 per step")
    assert "few_samples" not in found(check(batch_size=5))
