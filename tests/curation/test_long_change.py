"""A long change is written file by file, and is one step to undo, also if its program was killed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from modules.curation.FileChanges import ChangedOutside, FileChanges, fingerprint
from modules.curation.Journal import Journal
from modules.curation.LongChange import SUFFIX

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def folder(tmp_path) -> Path:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "b.txt").write_bytes(b"old b")
    return tmp_path / "data"


@pytest.fixture
def journal(folder, tmp_path) -> Journal:
    return Journal(folder, tmp_path / "journals")


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


def new_file(path: Path, content: bytes, before: bytes | None = None) -> FileChanges:
    return FileChanges({str(path): content}, {str(path): fingerprint(before)})


def test_each_file_is_there_at_once_and_one_undo_takes_back_all_of_them(folder, journal, tmp_path):
    with journal.long_change("Captions") as change:
        change.apply(new_file(folder / "a.txt", b"new a"))
        assert contents(folder) == {"a.txt": b"new a", "b.txt": b"old b"}
        change.apply(new_file(folder / "b.txt", b"first b", b"old b"))
        change.apply(new_file(folder / "b.txt", b"new b", b"first b"))

    assert journal.next_undo_label == "Captions"
    journal.undo()
    assert contents(folder) == {"b.txt": b"old b"}
    assert not journal.can_undo
    journal.redo()
    assert contents(folder) == {"a.txt": b"new a", "b.txt": b"new b"}
    assert not [*tmp_path.rglob(f"*{SUFFIX}")]


def test_a_step_is_made_of_what_is_done_when_it_ends_by_an_error_and_none_of_nothing(folder, journal):
    def fail() -> None:
        with journal.long_change("Captions") as change:
            change.apply(new_file(folder / "a.txt", b"new a"))
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    with journal.long_change("Nothing"):
        pass
    assert [step.label for step in journal.steps()] == ["Captions"]


def test_a_file_that_is_not_as_it_was_read_stays_as_it_is(folder, journal):
    with journal.long_change("Captions") as change:
        with pytest.raises(ChangedOutside):
            change.apply(new_file(folder / "b.txt", b"new b", b"another b"))
        with pytest.raises(ChangedOutside):
            change.apply(FileChanges({str(folder / "b.txt"): b"new b"}))
    assert contents(folder) == {"b.txt": b"old b"}
    assert not journal.can_undo


def test_what_others_change_meanwhile_is_not_taken_back(folder, journal):
    with journal.long_change("Captions") as change:
        change.apply(new_file(folder / "a.txt", b"new a"))
        change.apply(new_file(folder / "c.txt", b"new c"))
        journal.apply("Edit", new_file(folder / "a.txt", b"mine", b"new a"))
    assert [step.label for step in journal.steps()] == ["Captions", "Edit"]
    journal.undo()
    assert contents(folder) == {"a.txt": b"mine", "b.txt": b"old b"}
    journal.undo()
    assert contents(folder)["a.txt"] == b"new a"


KILLED = """
import os, signal, sys
from pathlib import Path
from modules.curation.FileChanges import FileChanges, fingerprint
from modules.curation.Journal import Journal
folder, state = sys.argv[1:]
with Journal(folder, Path(state)).long_change("Captions") as change:
    change.apply(FileChanges({f"{folder}/a.txt": b"new a"}))
    change.apply(FileChanges({f"{folder}/b.txt": b"new b"}, {f"{folder}/b.txt": fingerprint(b"old b")}))
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_what_a_killed_program_has_written_is_a_step_when_the_dataset_is_opened_again(folder, journal, tmp_path):
    command = [sys.executable, "-c", KILLED, folder, tmp_path / "journals"]
    assert subprocess.run(command, cwd=ROOT, check=False).returncode == -9
    assert contents(folder) == {"a.txt": b"new a", "b.txt": b"new b"}
    (notes,) = tmp_path.rglob(f"*{SUFFIX}")
    with notes.open("a", encoding="ascii") as file:  # of a file that it had not written yet, and half of a line
        file.write(json.dumps({"path": str(folder / "c.txt"), "old": None, "new": fingerprint(b"c")}) + '\n{"path"')

    opened = Journal(folder, tmp_path / "journals")

    assert opened.next_undo_label == "Captions"
    opened.undo()
    assert contents(folder) == {"b.txt": b"old b"}
    assert not notes.exists()


def test_notes_of_a_program_that_still_works_are_left_alone(folder, journal, tmp_path):
    with journal.long_change("Captions") as change:
        change.apply(new_file(folder / "a.txt", b"new a"))
        other = Journal(folder, tmp_path / "journals")
        assert not other.can_undo
        other.apply("Edit", new_file(folder / "d.txt", b"d"))
        assert os.path.exists(change.path)
