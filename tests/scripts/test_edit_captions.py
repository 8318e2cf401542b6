"""edit_captions.py shows what an edit changes, writes it when told to, and takes it back."""

from __future__ import annotations

import pytest

from modules.curation.Journal import Journal
from scripts.edit_captions import main


@pytest.fixture
def folder(picture_folder, tmp_path, monkeypatch):
    monkeypatch.setattr("modules.curation.Journal.window_state_folder", lambda: tmp_path / "state")
    return picture_folder(((64, 64),) * 3, captions=["long hair, cat", "Cat, cat, logn hair", "dog"])


def texts(folder) -> list[str]:
    return [path.read_text() for path in sorted(folder.glob("*.txt"))]


@pytest.mark.parametrize("command", [["tags"], ["add", "sky"], ["add", "sky", "--write"], ["undo"]])
def test_every_command_finishes_a_change_that_was_cut_off(folder, capsys, monkeypatch, command):
    def cut_off(*arguments):
        raise KeyboardInterrupt

    before = texts(folder)
    with monkeypatch.context() as patched:
        patched.setattr(Journal, "_replace", cut_off)
        with pytest.raises(KeyboardInterrupt):
            main(["replace", str(folder), "cat", "kitten", "--write"])
    assert texts(folder) == before
    assert main([command[0], str(folder), *command[1:]]) == 0
    assert "A change that was cut off is finished: Replace in 2 captions." in capsys.readouterr().err
    if command[0] == "undo":
        assert texts(folder) == before
    else:
        assert texts(folder)[0].startswith("long hair, kitten")


def test_tags_are_listed_with_their_counts(folder, capsys):
    assert main(["tags", str(folder)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == f"{folder}: 3 images"
    assert lines[1].split() == ["2", "cat"]


def test_an_edit_is_shown_then_written_then_undone_and_redone(folder, capsys):
    before = texts(folder)
    command = ["replace", str(folder), "cat", "kitten", "--include", "*0.png"]
    assert main(command) == 0
    shown = capsys.readouterr().out
    assert "- long hair, cat\n+ long hair, kitten\n" in shown
    assert "1 of 1 caption would change.\nNothing was written: add --write for that." in shown
    assert texts(folder) == before
    assert main([*command, "--write"]) == 0
    assert texts(folder) == ["long hair, kitten", *before[1:]]
    assert main(["undo", str(folder)]) == 0
    assert texts(folder) == before
    assert main(["redo", str(folder)]) == 0
    assert texts(folder)[0] == "long hair, kitten"
    assert "redo of 'Replace in 1 caption': 1 file written." in capsys.readouterr().out


@pytest.mark.parametrize(
    ("command", "after"),
    [
        (["add", "sky", "dog", "--front"], ["sky, dog, long hair, cat", "sky, dog, Cat, cat, logn hair", "sky, dog"]),
        (["remove", "cat", "--with-tag", "long hair"], ["long hair", "Cat, cat, logn hair", "dog"]),
        (["move", "cat"], ["cat, long hair", "Cat, cat, logn hair", "dog"]),
        (["sort", "--by-count"], ["cat, long hair", "Cat, cat, logn hair", "dog"]),
        (["tidy", "--duplicates-only"], ["long hair, cat", "Cat, logn hair", "dog"]),
        (["tidy"], ["long hair, cat", "Cat, logn hair", "dog"]),
        (["trigger", "sks", "--sentence"], ["sks long hair, cat", "sks Cat, cat, logn hair", "sks dog"]),
        (["find", "(?<=l)o", "0", "--regex"], ["l0ng hair, cat", "Cat, cat, l0gn hair", "dog"]),
    ],
)
def test_each_command_writes_its_edit(folder, command, after):
    assert main([command[0], str(folder), *command[1:], "--write"]) == 0
    assert texts(folder)[0] == after[0]
    assert texts(folder)[2] == after[2]
    assert texts(folder)[1] == after[1]


def test_what_was_changed_outside_is_asked_about(folder, capsys):
    main(["add", str(folder), "sky", "--write"])
    (caption,) = folder.glob("*2.txt")
    caption.write_text("theirs")
    assert main(["undo", str(folder)]) == 2
    assert "changed by another program" in capsys.readouterr().err
    assert main(["undo", str(folder), "--outside", "keep"]) == 0
    assert texts(folder) == ["long hair, cat", "Cat, cat, logn hair", "theirs"]


@pytest.mark.parametrize(
    ("command", "reason"),
    [
        (["undo", "{}"], "There is nothing to undo"),
        (["tags", "{}/nowhere"], "does not exist: name a folder of images"),
        (["find", "{}", "(", "", "--regex"], "correct the regular expression"),
        (["add", "{}", "x", "--set", "concepts.0.captions=prompt"], "can't be edited; set it to txt"),
    ],
)
def test_a_mistake_is_one_sentence(folder, capsys, command, reason):
    assert main([part.format(folder) for part in command]) == 2
    assert reason in capsys.readouterr().err
