"""Scanning finds every readable picture once, in an order that the disk has no say in."""

import os
import subprocess
import sys

import numpy as np
import pytest
from PIL import Image

from modules.config.ConceptConfig import ConceptConfig
from modules.data.concepts import caption_prompts, captions, scan
from modules.data.epoch_plan import plan_epoch
from modules.data.errors import DataError


def concept(path, **changes):
    return ConceptConfig(path=str(path), **changes)


def add_picture(path, size=(8, 6), caption=None, **save):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", size).save(path, **save)
    if caption is not None:
        path.with_suffix(".txt").write_text(caption, encoding="utf-8")


def names(dataset, root):
    return [os.path.relpath(path, root).replace(os.sep, "/") for path in dataset.paths]


def test_pictures_come_sorted_by_relative_path(tmp_path):
    for name in ("b.png", "a/z.png", "a.png", "B.png", "a/b/c.png"):
        add_picture(tmp_path / name)
    assert names(scan([concept(tmp_path)]), tmp_path) == ["B.png", "a.png", "a/b/c.png", "a/z.png", "b.png"]


@pytest.mark.parametrize("name", ["a.png", "a.JPG", "a.jpeg", "a.webp", "a.bmp", "a.gif", "a.tif", "a.TIFF"])
def test_each_picture_format_is_found_whatever_the_case_of_its_extension(tmp_path, name):
    add_picture(tmp_path / name)
    dataset = scan([concept(tmp_path)])
    assert names(dataset, tmp_path) == [name]
    assert (dataset.widths[0], dataset.heights[0]) == (8, 6)


def test_hidden_files_and_folders_and_other_files_are_skipped(tmp_path):
    for name in ("a.png", ".b.png", ".hidden/c.png", "._a.png"):
        add_picture(tmp_path / name)
    (tmp_path / "notes.md").write_text("no picture")
    (tmp_path / "folder.png").mkdir()
    assert names(scan([concept(tmp_path)]), tmp_path) == ["a.png"]


def test_subfolders_are_left_out_when_asked(tmp_path):
    add_picture(tmp_path / "a.png")
    add_picture(tmp_path / "sub/b.png")
    assert names(scan([concept(tmp_path, include_subfolders=False)]), tmp_path) == ["a.png"]


def link(path, target):
    try:
        path.symlink_to(target)
    except OSError as error:
        pytest.skip(f"no symbolic links here: {error}")


def test_links_that_go_round_in_circles_end(tmp_path):
    add_picture(tmp_path / "sub/a.png")
    link(tmp_path / "sub/up", tmp_path)
    link(tmp_path / "self.png", "self.png")
    link(tmp_path / "gone.png", "nowhere.png")
    dataset = scan([concept(tmp_path)])
    assert names(dataset, tmp_path) == ["sub/a.png"]
    assert [path.rpartition("/")[2] for path, _ in dataset.unreadable] == ["gone.png", "self.png"]


def test_a_folder_that_links_lead_to_twice_is_read_once(tmp_path):
    add_picture(tmp_path / "elsewhere/a.png")
    (tmp_path / "concept").mkdir()
    link(tmp_path / "concept/one", tmp_path / "elsewhere")
    link(tmp_path / "concept/two", tmp_path / "elsewhere")
    assert names(scan([concept(tmp_path / "concept")]), tmp_path / "concept") == ["one/a.png"]


def test_sizes_are_those_of_the_upright_picture(tmp_path):
    exif = Image.Exif()
    exif[0x0112] = 6  # turned by 90 degrees
    add_picture(tmp_path / "a.jpg", (20, 10), exif=exif)
    add_picture(tmp_path / "b.png", (20, 10), exif=exif)
    add_picture(tmp_path / "c.tif", (20, 10), exif=exif)
    add_picture(tmp_path / "d.webp", (20, 10), exif=exif)
    add_picture(tmp_path / "e.jpg", (20, 10))
    dataset = scan([concept(tmp_path)])
    assert dataset.widths.tolist() == [10, 10, 10, 10, 20]
    assert dataset.heights.tolist() == [20, 20, 20, 20, 10]


def test_arrays_are_compact_and_aligned(tmp_path):
    add_picture(tmp_path / "one/a.png", (8, 6))
    add_picture(tmp_path / "two/b.png", (5, 7))
    off = concept(tmp_path / "nowhere", enabled=False)
    dataset = scan([concept(tmp_path / "one", repeats=2.5), off, concept(tmp_path / "two")])
    assert len(dataset) == 2
    assert dataset.concept_index.tolist() == [0, 2]
    assert dataset.repeats.tolist() == [2.5, 1.0]
    assert dataset.widths.tolist() == [8, 5]
    assert {array.dtype for array in (dataset.concept_index, dataset.widths, dataset.heights)} == {np.dtype(np.int32)}


def test_a_folder_may_be_in_two_concepts(tmp_path):
    add_picture(tmp_path / "a.png")
    dataset = scan([concept(tmp_path), concept(tmp_path, captions="prompt", prompt="x")])
    assert dataset.paths == [str(tmp_path / "a.png")] * 2
    assert dataset.concept_index.tolist() == [0, 1]


def test_bad_pictures_are_listed_and_left_out(tmp_path, monkeypatch):
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 1000)
    add_picture(tmp_path / "good.png")
    add_picture(tmp_path / "bomb.png", (100, 100))
    (tmp_path / "empty.jpg").write_bytes(b"")
    (tmp_path / "text.jpg").write_text("I am a text")
    dataset = scan([concept(tmp_path)])
    assert names(dataset, tmp_path) == ["good.png"]
    assert [os.path.basename(path) for path, _ in dataset.unreadable] == ["bomb.png", "empty.jpg", "text.jpg"]
    reasons = [reason for _, reason in dataset.unreadable]
    assert "decompression bomb" in reasons[0]
    assert reasons[1:] == ["it is empty", "its content is that of no image format that is read"]


def test_a_scan_that_is_no_longer_wanted_ends_at_the_next_folder_or_picture(tmp_path):
    for folder in "abc":
        for number in range(3):
            add_picture(tmp_path / folder / f"{number}.png")
    for num_asked in (2, 6):  # among the folders (the one at the top is one), and among the pictures
        answers = [True] * num_asked
        with pytest.raises(DataError, match="canceled"):
            scan([concept(tmp_path)], 1, lambda answers=answers: bool(answers) and answers.pop())
    asked = []
    assert len(scan([concept(tmp_path)], 1, lambda: asked.append(1) or True)) == 9
    assert len(asked) == 4 + 9


def test_missing_captions_are_counted_where_text_files_are_expected(tmp_path):
    add_picture(tmp_path / "a.png", caption="a cat")
    add_picture(tmp_path / "b.png")
    add_picture(tmp_path / "sub/a.png")
    assert len(scan([concept(tmp_path)]).missing_captions) == 2
    assert len(scan([concept(tmp_path, captions="file_name")]).missing_captions) == 0
    assert len(scan([concept(tmp_path, caption_fallback="a cat")]).missing_captions) == 0
    assert len(scan([concept(tmp_path, caption_extension=".caption")]).missing_captions) == 3


def test_captions_come_in_the_order_of_the_samples(tmp_path):
    add_picture(tmp_path / "a.png", caption="a cat")
    add_picture(tmp_path / "b.png")
    dataset = scan([concept(tmp_path), concept(tmp_path, captions="prompt", prompt="a dog")])
    assert captions(dataset) == [("a cat",), ("",), ("a dog",), ("a dog",)]


def test_all_captions_that_can_not_be_read_are_named_at_once(tmp_path):
    for name, content in (("c", b"x" * 10**6), ("a", "a cat".encode("utf-16")), ("b", b"caf\xe9"), ("d", b"fine")):
        add_picture(tmp_path / f"{name}.png")
        (tmp_path / f"{name}.txt").write_bytes(content)
    with pytest.raises(DataError) as caught:
        captions(scan([concept(tmp_path)]))
    assert str(caught.value).startswith(
        f"3 captions can't be read ({tmp_path / 'a.txt'} is UTF-16, not UTF-8; {tmp_path / 'b.txt'} is not UTF-8 "
        f"(byte 0xe9 at 3); {tmp_path / 'c.txt'} is larger than 64 KB): save "
    )


def test_no_enabled_concept_is_refused(tmp_path):
    for concepts in ([], [concept(tmp_path, enabled=False)]):
        with pytest.raises(DataError, match="concepts: none is enabled"):
            scan(concepts)


def test_a_concept_without_a_folder_is_named(tmp_path):
    add_picture(tmp_path / "good/a.png")
    good = concept(tmp_path / "good")
    with pytest.raises(DataError, match=r"concepts\.1\.path .*gone: does not exist; choose a folder"):
        scan([good, concept(tmp_path / "gone")])
    with pytest.raises(DataError, match=r"concepts\.0\.path .*a\.png: is not a folder"):
        scan([concept(tmp_path / "good/a.png")])
    with pytest.raises(DataError, match=r"concepts\.1\.path is empty"):
        scan([good, concept("")])


def test_a_concept_without_pictures_is_named(tmp_path):
    add_picture(tmp_path / "sub/a.png")
    with pytest.raises(DataError, match=r"0\.path .*contains no images.*turn on concepts\.0\.include_subfolders"):
        scan([concept(tmp_path, include_subfolders=False)])


def test_a_concept_whose_pictures_are_all_bad_is_named(tmp_path):
    (tmp_path / "text.jpg").write_text("I am a text")
    with pytest.raises(DataError, match=r"concepts\.0\.path .*none of its 1 image can be read \(text\.jpg: its"):
        scan([concept(tmp_path)])


def test_a_subfolder_that_must_not_be_read_is_listed(tmp_path, monkeypatch):
    add_picture(tmp_path / "a.png")
    add_picture(tmp_path / "locked/b.png")
    scandir = os.scandir

    def refuse_locked(folder):  # chmod would not stop root
        if "locked" in folder:
            raise PermissionError(13, "Permission denied")
        return scandir(folder)

    monkeypatch.setattr(os, "scandir", refuse_locked)
    dataset = scan([concept(tmp_path)])
    assert names(dataset, tmp_path) == ["a.png"]
    assert dataset.unreadable == [(str(tmp_path / "locked"), "Permission denied")]
    with pytest.raises(DataError, match=r"concepts\.0\.path .*can't be listed \(Permission denied\)"):
        scan([concept(tmp_path / "locked")])


def test_the_window_can_use_these_files_without_torch():
    code = (
        "import sys, modules.data.concepts, modules.data.buckets, modules.data.epoch_plan, modules.data.images;"
        "print(*{'torch', 'diffusers', 'transformers'} & set(sys.modules))"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == ""


def test_regularisation_pictures_are_together_shown_as_often_as_the_others(tmp_path):
    for name, count in (("subject", 4), ("prior", 6), ("other prior", 2)):
        for number in range(count):
            add_picture(tmp_path / name / f"{number}.png")
    prior = {"regularisation": True}
    dataset = scan(
        [
            concept(tmp_path / "subject", repeats=3.0),
            concept(tmp_path / "prior", **prior),
            concept(tmp_path / "other prior", repeats=3.0, **prior),
        ]
    )
    assert dataset.repeats[:4].tolist() == [3.0] * 4
    assert dataset.repeats[4:].sum() == pytest.approx(12)
    assert dataset.repeats[-1] == pytest.approx(3 * dataset.repeats[4])  # repeats share it out among them


def test_regularisation_pictures_alone_are_shown_as_their_repeats_say(tmp_path):
    add_picture(tmp_path / "prior" / "0.png")
    dataset = scan([concept(tmp_path / "prior", repeats=2.0, regularisation=True)])
    assert dataset.repeats.tolist() == [2.0]


def test_patterns_choose_pictures_by_their_path_below_the_folder(tmp_path):
    for name in ("a.png", "b.JPG", "people/c.png", "people/old/d.png", "things/e.png"):
        add_picture(tmp_path / name)

    def found(**patterns):
        return names(scan([concept(tmp_path, **patterns)]), tmp_path)

    assert found(include="people/*, *.jpg") == ["b.JPG", "people/c.png", "people/old/d.png"]
    assert found(exclude="People/old/*,?.jpg") == ["a.png", "people/c.png", "things/e.png"]
    assert found(include="people/*", exclude="*/old/*") == ["people/c.png"]
    with pytest.raises(DataError, match=r"concepts\.0\.path .*: concepts\.0\.include .* match none of its images"):
        found(include="*.gif")


def test_captions_of_a_table_are_those_of_its_rows(tmp_path):
    for name in ("a.png", "sub/b.png", "c.png"):
        add_picture(tmp_path / name, caption="not this")
    (tmp_path / "metadata.csv").write_text("file_name,text\na.png,a cat\nsub/b.png,a dog\nsub/b.png,an animal\n")
    dataset = scan([concept(tmp_path, captions="table")])
    assert captions(dataset) == [("a cat",), ("",), ("a dog", "an animal")]
    assert len(dataset.missing_captions) == 1


def test_a_concept_fills_the_share_of_an_epoch_that_it_asks_for(tmp_path):
    for name, count in (("few", 3), ("many", 30), ("some", 7)):
        for number in range(count):
            add_picture(tmp_path / name / f"{number}.png")
    dataset = scan([concept(tmp_path / "few", share=0.25), concept(tmp_path / "many"), concept(tmp_path / "some")])
    assert dataset.repeats[3:].tolist() == [1.0] * 37
    assert dataset.repeats[:3].sum() / dataset.repeats.sum() == pytest.approx(0.25)
    for epoch in range(3):
        plan = plan_epoch(np.zeros(40, int), dataset.repeats, 1, epoch, 4, concept_index=dataset.concept_index)
        shown = np.bincount(dataset.concept_index[plan.samples[:, 0]])
        assert shown.tolist() == [12, 30, 7]  # 37 / 0.75 * 0.25 = 12.3


def test_concepts_that_all_have_a_share_keep_the_length_of_the_epoch(tmp_path):
    for name, count in (("one", 10), ("two", 30)):
        for number in range(count):
            add_picture(tmp_path / name / f"{number}.png")
    dataset = scan([concept(tmp_path / "one", share=0.3), concept(tmp_path / "two", share=0.3, repeats=2)])
    assert dataset.repeats.sum() == pytest.approx(70)
    assert dataset.repeats[:10].sum() == pytest.approx(35)


def test_samples_without_a_prompt_get_the_first_captions_or_else_the_names_of_concepts():
    concepts = [ConceptConfig(name="fox", path="a"), ConceptConfig(name="off", path="b", enabled=False)]
    texts = [("",), ("a fox", "a red fox"), ("a fox",), ("a hen",)]
    assert caption_prompts(texts, concepts, 5) == ("a fox", "a hen")
    assert caption_prompts(texts, concepts, 1) == ("a fox",)
    assert caption_prompts([("",)], concepts, 2) == ("fox",)
    assert caption_prompts([("",)], [ConceptConfig(path="a")], 2) == ()
