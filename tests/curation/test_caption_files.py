"""Captions are read as they are written, and written back in the form that they came from."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from pathlib import Path

import pytest

from modules.config.ConceptConfig import ConceptConfig
from modules.config.installation import ROOT
from modules.curation.CaptionFiles import CaptionFiles
from modules.curation.FileChanges import ChangedOutside
from modules.curation.Journal import Journal
from modules.data.caption_tables import read_table
from modules.data.captions import MAX_CAPTION_BYTES, own_captions
from modules.data.errors import CaptionError, DataError

IMAGES = [*(f"{name}.png" for name in "abcdef"), "sub/a.png", "sub/noch eins.jpg", "sub/no caption.png"]
FORMS = {
    "LF": ("utf-8", "a cat, on a mat\n"),
    "CRLF": ("utf-8", "a cat,\r\non a mat\r\n"),
    "BOM": ("utf-8-sig", "a cat, on a mat"),
    "UTF-16": ("utf-16", "ein Käfer, grün\r\n"),
    "UTF-16 big-endian": ("utf-16-be", "a cat, on a mat"),
    "Western": ("cp1252", "ein Käfer, grün\n\n"),
    "mixed line ends": ("utf-8", "a cat\r\non a\rmat\n"),
    "empty": ("utf-8", "\n"),
}
CSV = (
    'file_name;"note, old";text\r\na.png;"1;2";"a cat, ""big"""\r\n\r\nb.png;; a dog \r\na.png;3;an animal\r\nc.png\r\n'
)
JSON_LINES = (
    '{"file_name": "a.png", "text":  ["a cat", "caf\\u00e9"] , "id": 1.50}\r\n\r\n'
    '{"text": null, "file_name": "./b.png"}\r\n{"file_name": "c.png", "text": "a dog", "tags": {"text": "x"}}'
)


def write_files(folder: Path, extension: str) -> None:
    for image, (encoding, text) in zip(IMAGES[:-1], FORMS.values(), strict=True):
        path = (folder / image).with_suffix(extension)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text.encode(encoding))


def make_dataset(folder: Path, kind: str) -> ConceptConfig:
    folder.mkdir()
    if kind in ("captions.csv", "metadata.jsonl"):
        content = CSV.encode("utf-8-sig") if kind == "captions.csv" else JSON_LINES.encode()
        (folder / kind).write_bytes(content)
        return ConceptConfig(path=str(folder), captions="table")
    write_files(folder, ".caption" if kind == ".caption" else ".txt")
    extension = ".caption" if kind == ".caption" else ".txt"
    return ConceptConfig(path=str(folder), caption_extension=extension, caption_per_line=kind == "lines")


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("kind", [".txt", ".caption", "lines", "captions.csv", "metadata.jsonl"])
def test_eighty_edits_undos_and_redos_leave_every_byte_as_it_was(tmp_path, kind, monkeypatch):
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)  # thousands of them, which matter only when power fails
    folder = tmp_path / "cats"
    concept, draw = make_dataset(folder, kind), random.Random(f"{kind} 1")
    journal, files = Journal(folder, tmp_path / "state"), CaptionFiles(concept)
    images = [str(folder / image) for image in IMAGES]
    states = [contents(folder)]  # after each step; the present one is that of `at`
    at = 0
    for image in images:
        files.read(image)
    for number in range(80):
        action = draw.choice(["edit", "edit", "undo", "redo"])
        if action == "edit":
            texts = {image: drawn_text(draw, number) for image in draw.sample(images, draw.randint(1, 4))}
            if files.write(journal, f"Edit {number}", texts).paths:
                states[at + 1 :] = [contents(folder)]
                at += 1
            for image, text in texts.items():
                assert files.read(image).text.split() == (text or "").split(), image
        elif action == "undo" and at:
            journal.undo()
            at -= 1
        elif action == "redo" and at + 1 < len(states):
            journal.redo()
            at += 1
        assert contents(folder) == states[at]
        files.reload()
    assert at  # else it tests nothing
    while journal.can_undo:
        journal.undo()
    assert contents(folder) == states[0]


def drawn_text(draw: random.Random, number: int) -> str | None:
    """A caption that every encoding of FORMS has."""
    words = ["a cat", '"quoted"', "tab\there", "grün", ";", ",", " spaced ", "{a|b}", "\\n"]
    lines = [" ".join(draw.sample(words, draw.randint(1, 4))) + f" {number}" for _ in range(draw.randint(1, 3))]
    return draw.choice(["\n".join(lines), lines[0], "", None])


@pytest.mark.parametrize("kind", [".txt", "lines", "captions.csv", "metadata.jsonl"])
def test_the_training_reads_what_was_written(tmp_path, kind):
    concept = make_dataset(tmp_path / "cats", kind)
    journal, files = Journal(concept.path, tmp_path / "state"), CaptionFiles(concept)
    image = str(tmp_path / "cats" / "a.png")
    files.write(journal, "Edit", {image: 'a "red" cat;\nan {animal}'})
    table = read_table(concept, "concepts.0") if concept.captions == "table" else None
    several = 'a "red" cat;', "an {animal}"
    assert own_captions(image, concept, table) == (several if kind != ".txt" else (" ".join(several),))


def files_of(folder: Path, tmp_path: Path, **concept) -> tuple[CaptionFiles, Journal]:
    folder.mkdir(exist_ok=True)
    return CaptionFiles(ConceptConfig(path=str(folder), **concept)), Journal(folder, tmp_path / "state")


def test_what_was_changed_outside_is_overwritten_only_after_it_was_read_again(tmp_path):
    files, journal = files_of(tmp_path / "cats", tmp_path)
    image, file = str(tmp_path / "cats" / "a.png"), tmp_path / "cats" / "a.txt"
    file.write_text("a cat")
    shown = files.read(image)
    file.write_text("a dog")
    with pytest.raises(ChangedOutside):
        files.write(journal, "Edit", {image: "a big cat"})
    files.read(image)  # as a list in the background does; what the person edits is still what was shown
    with pytest.raises(ChangedOutside):
        journal.apply("Edit", files.changes({image: "a big cat"}, {image: shown}))
    assert file.read_text() == "a dog"
    files.reload([image])
    files.write(journal, "Edit", {image: "a big cat"})
    assert file.read_text() == "a big cat"
    assert files.refresh(journal.undo()) == [image]
    assert files.read(image).text == file.read_text() == "a dog"


def test_rows_that_another_program_adds_stay_when_a_row_is_overwritten(tmp_path):
    files, journal = files_of(tmp_path / "cats", tmp_path, captions="table")
    table, image = tmp_path / "cats" / "metadata.csv", str(tmp_path / "cats" / "a.png")
    table.write_text("file_name,text\na.png,a cat\n")
    files.read(image)
    table.write_text("file_name,text\nb.png,a dog\na.png,a cat\n")
    with pytest.raises(ChangedOutside):
        files.write(journal, "Edit", {image: "a big cat"})
    files.reload()
    files.write(journal, "Edit", {image: "a big cat"})
    assert table.read_text() == "file_name,text\nb.png,a dog\na.png,a big cat\n"


def test_images_that_share_a_caption_file_get_one_caption(tmp_path):
    files, journal = files_of(tmp_path / "cats", tmp_path)
    png, jpg = (str(tmp_path / "cats" / name) for name in ("a.png", "a.jpg"))
    with pytest.raises(DataError, match=r"a\.png and a\.jpg share the caption file .*a\.txt: give them the same"):
        files.changes({png: "a cat", jpg: "a dog"})
    files.write(journal, "Edit", {png: "a cat", jpg: "a cat"})
    assert files.read(jpg).text == "a cat"


def test_two_concepts_of_one_folder_share_its_history(tmp_path):
    words, journal = files_of(tmp_path / "cats", tmp_path)
    tags = CaptionFiles(ConceptConfig(path=f"{tmp_path}/cats/", caption_extension="tags"), "concepts.1")
    image = str(tmp_path / "cats" / "a.png")
    words.write(journal, "Write", {image: "a cat"})
    tags.write(Journal(f"{tmp_path}/cats/", tmp_path / "state"), "Tag", {image: "cat, animal"})
    assert [journal.undo().label, journal.undo().label] == ["Tag", "Write"]
    assert list((tmp_path / "cats").iterdir()) == []


@pytest.mark.parametrize("captions", ["txt", "table"])
def test_a_caption_that_training_would_refuse_is_refused(tmp_path, captions):
    files, _ = files_of(tmp_path / "cats", tmp_path, captions=captions)
    (tmp_path / "cats" / "metadata.csv").write_text("file_name,text\na.png,a cat\n")
    image = str(tmp_path / "cats" / "a.png")
    with pytest.raises(CaptionError, match="larger than 64 KB: shorten it"):
        files.changes({image: "x" * (MAX_CAPTION_BYTES + 1)})


def test_a_caption_that_is_too_long_can_be_shortened(tmp_path):
    files, journal = files_of(tmp_path / "cats", tmp_path)
    image, file = str(tmp_path / "cats" / "a.png"), tmp_path / "cats" / "a.txt"
    file.write_text("x" * (MAX_CAPTION_BYTES + 1))
    assert "is larger than 64 KB: shorten it" in files.read(image).problem
    files.write(journal, "Edit", {image: files.read(image).text[:10]})
    assert (file.read_text(), files.read(image).problem) == ("x" * 10, "")


def test_another_encoding_is_kept_and_said(tmp_path):
    files, journal = files_of(tmp_path / "cats", tmp_path)
    image, file = str(tmp_path / "cats" / "a.png"), tmp_path / "cats" / "a.txt"
    file.write_bytes("grün".encode("cp1252"))
    assert (files.read(image).text, "is not UTF-8" in files.read(image).problem) == ("grün", True)
    files.write(journal, "Edit", {image: "grün, blau"})
    assert file.read_bytes() == "grün, blau".encode("cp1252")
    with pytest.raises(DataError, match=r"a\.txt is cp1252, which has no '猫': save it as UTF-8"):
        files.changes({image: "猫"})


def test_what_can_not_be_edited_says_why(tmp_path):
    files, _ = files_of(tmp_path / "cats", tmp_path)
    (tmp_path / "cats" / "a.txt").mkdir()
    (tmp_path / "cats" / "b.txt").symlink_to("nowhere.txt")
    (tmp_path / "cats" / "c.txt").write_bytes(b"\x81\x8d")
    reasons = {"a": "it is a folder", "b": "a link to a file that is not there", "c": "neither UTF-8 nor cp1252"}
    for name, reason in reasons.items():
        image = str(tmp_path / "cats" / f"{name}.png")
        assert reason in files.read(image).problem
        with pytest.raises(DataError, match=reason):
            files.changes({image: "a cat"})
    for captions, source in {"file_name": "the names of the image files", "prompt": "one prompt for all"}.items():
        files, _ = files_of(tmp_path / "cats", tmp_path, captions=captions)
        with pytest.raises(DataError, match=f"concepts.0.captions {captions}: its captions are {source}"):
            files.changes({image: "a cat"})
    files, _ = files_of(tmp_path / "cats", tmp_path, captions="table")
    assert "has no metadata.csv" in files.read(image).problem


def test_rows_follow_the_captions_that_they_hold(tmp_path):
    files, journal = files_of(tmp_path / "cats", tmp_path, captions="table")
    table, image = tmp_path / "cats" / "metadata.csv", str(tmp_path / "cats" / "a.png")
    table.write_text("file_name,text,by\na.png,one,Ann\nb.png,other,Bob\na.png,two,Cem\na.png,three,Dee\n")
    assert files.read(image).captions == ["one", "two", "three"]
    files.write(journal, "Edit", {image: "one\nthree, too\nfour"})
    expected = 'file_name,text,by\na.png,one,Ann\nb.png,other,Bob\na.png,"three, too",Cem\na.png,four,Dee\n'
    assert table.read_text() == expected
    files.write(journal, "Edit", {image: "one\nfour"})
    assert table.read_text() == "file_name,text,by\na.png,one,Ann\nb.png,other,Bob\na.png,four,Dee\n"
    files.write(journal, "Edit", {image: None, str(tmp_path / "cats" / "new.png"): "a cat"})
    assert table.read_text() == "file_name,text,by\na.png,,Ann\nb.png,other,Bob\nnew.png,a cat,\n"


def test_curation_loads_neither_torch_nor_tk():
    program = (
        "import pkgutil, sys, modules.curation as room\n"
        "for found in pkgutil.iter_modules(room.__path__): __import__(f'modules.curation.{found.name}')\n"
        "print(sorted({'torch', 'tkinter', 'diffusers', 'transformers'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, check=True, capture_output=True, text=True)
    assert done.stdout == "[]\n"
