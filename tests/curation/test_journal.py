"""A journal writes all files or none, undoes and redoes, and never overwrites what somebody else has written."""

from __future__ import annotations

import errno
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from modules.config.errors import UserError
from modules.config.installation import ROOT
from modules.curation import replace_files as replacing
from modules.curation.FileChanges import ChangedOutside, FileChanges, fingerprint, read_present
from modules.curation.Journal import Journal
from tests.support.full_disk import full_disk
from tests.support.killed_changes import LABEL, NUM_FILES, make_folder, new, old


@pytest.fixture
def folder(tmp_path) -> Path:
    folder = tmp_path / "cats"
    folder.mkdir()
    for name in "abcdef":
        (folder / f"{name}.txt").write_bytes(f"old {name}".encode())
    return folder


@pytest.fixture
def journal(folder, tmp_path) -> Journal:
    return Journal(folder, tmp_path / "state")


def change(folder: Path, **contents: str | None) -> FileChanges:
    """What makes NAME.txt say its content, from what it is now."""
    new = {str(folder / f"{name}.txt"): text if text is None else text.encode() for name, text in contents.items()}
    return FileChanges(new, {path: fingerprint(read_present(path)) for path in new})


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_a_change_is_undone_and_redone_over_any_files(folder, journal):
    before = contents(folder)
    applied = journal.apply("Edit", change(folder, a="new a", b=None, g="new g"))
    after = contents(folder)
    assert set(map(os.path.basename, applied.paths)) == {"a.txt", "b.txt", "g.txt"}
    expected = {**before, "a.txt": b"new a", "g.txt": b"new g"}
    del expected["b.txt"]
    assert after == expected
    assert (journal.can_undo, journal.next_undo_label) == (True, "Edit")
    journal.undo()
    assert contents(folder) == before
    assert (journal.can_undo, journal.can_redo, journal.next_redo_label) == (False, True, "Edit")
    journal.redo()
    assert contents(folder) == after


def test_the_label_of_a_change_that_a_thread_undoes_meanwhile_is_no_error(folder, journal, monkeypatch):
    journal.apply("Edit", change(folder, a="new a"))
    before = journal._kept.peek()
    journal.undo()
    after = journal._kept.peek()
    for label, states in (("next_undo_label", [before, after]), ("next_redo_label", [after, before])):
        with monkeypatch.context() as patch:
            patch.setattr(journal._kept, "peek", iter(states).__next__)
            assert getattr(journal, label) == "Edit"


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.parametrize("action", ["apply", "undo"])
def test_a_kill_at_any_moment_leaves_each_file_old_or_new_and_the_next_opening_makes_it_whole(tmp_path, action):
    moments = range(1, 80)
    for number in moments:
        make_folder(tmp_path / str(number) / "cats")
    command = [sys.executable, "-m", "tests.support.killed_changes", str(tmp_path), action]
    done = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True)
    codes = dict(map(int, line.split()) for line in done.stdout.splitlines())
    killed = [number for number in moments if codes[number] == -signal.SIGKILL]
    assert len(killed) > 20  # so many steps a change has
    assert set(codes.values()) == {-signal.SIGKILL, 0}  # and some moments come after its end
    outcomes = set()
    for number in killed:
        folder = tmp_path / str(number) / "cats"
        for name, content in found(folder).items():
            assert content in (old_or_none(name), new(name)), f"{name}.txt after a kill at {number}"
        journal = Journal(folder, tmp_path / str(number) / "state")
        whole = found(folder)
        assert whole in ({name: side(name) for name in whole} for side in (old_or_none, new))
        assert {path.name for path in folder.iterdir() if not path.name[0].isdigit()} == set()
        outcomes.add((whole == {name: new(name) for name in whole}, journal.finished))
        while journal.can_undo:
            journal.undo()
        assert found(folder) == {name: old_or_none(name) for name in range(NUM_FILES + 1)}
    finished = f"A change that was cut off is finished: {LABEL}."
    assert outcomes == {(True, ""), (False, ""), (action == "apply", finished)}


def old_or_none(number: int) -> bytes | None:
    return old(number) if number < NUM_FILES else None


def found(folder: Path) -> dict[int, bytes | None]:
    return {number: read_present(folder / f"{number}.txt") for number in range(NUM_FILES + 1)}


def test_what_another_program_has_written_is_not_overwritten(folder, journal):
    edit = change(folder, a="new a", b="new b", g="new g")
    (folder / "b.txt").write_text("theirs")
    (folder / "g.txt").write_text("theirs, too")
    before = contents(folder)
    with pytest.raises(ChangedOutside, match="2 files were changed by another program") as caught:
        journal.apply("Edit", edit)
    assert set(map(os.path.basename, caught.value.paths)) == {"b.txt", "g.txt"}
    assert (contents(folder), journal.can_undo) == (before, False)
    journal.apply("Edit", change(folder, a="new a", b="new b"))  # made from what it is now
    journal.undo()
    assert contents(folder) == before


def test_what_changes_while_it_is_being_written_is_not_overwritten_either(folder, journal, monkeypatch):
    def writes_meanwhile(path):
        (folder / "c.txt").write_text("theirs")
        sync_file(path)

    sync_file = replacing.sync_file
    monkeypatch.setattr(replacing, "sync_file", writes_meanwhile)
    before = contents(folder)
    with pytest.raises(ChangedOutside, match=r"c\.txt"):
        journal.apply("Edit", change(folder, a="new a", b="new b", c="new c"))
    assert contents(folder) == {**before, "c.txt": b"theirs"}
    assert not journal.can_undo


@pytest.mark.parametrize("choice", ["keep", "overwrite"])
def test_undo_asks_about_files_that_were_changed_since(folder, journal, choice):
    before = contents(folder)
    journal.apply("Edit", change(folder, a="new a", b="new b"))
    (folder / "b.txt").write_text("theirs")
    with pytest.raises(ChangedOutside, match=r"b\.txt"):
        journal.undo()
    assert contents(folder) == {**before, "a.txt": b"new a", "b.txt": b"theirs"}
    journal.undo(choice)
    assert contents(folder) == ({**before, "b.txt": b"theirs"} if choice == "keep" else before)
    if choice == "overwrite":  # nothing is lost
        journal.redo()
        assert contents(folder) == {**before, "a.txt": b"new a", "b.txt": b"theirs"}


def test_a_file_that_is_already_as_undo_would_make_it_is_no_question(folder, journal):
    before = contents(folder)
    journal.apply("Edit", change(folder, a="new a", b="new b"))
    (folder / "b.txt").write_bytes(b"old b")
    assert [os.path.basename(path) for path in journal.undo().paths] == ["a.txt"]
    assert contents(folder) == before


REMEDIES = {
    errno.ENOSPC: "free some space on its disk",
    errno.EACCES: "make the file and its folder writable",
    errno.EROFS: "copy the dataset to a disk that can be written to",
    errno.ENOENT: "bring its folder back, or reload the dataset",
}


@pytest.mark.parametrize("number", REMEDIES)
@pytest.mark.parametrize("step", ["write", "rename"])
def test_a_change_that_fails_changes_nothing_and_says_why(folder, journal, monkeypatch, number, step):
    def write(path, data):
        if path.name.startswith(".2.tmp-"):
            raise OSError(number, os.strerror(number))
        return write_bytes(path, data)

    def rename(source, target):
        if Path(target) == folder / "c.txt":
            raise OSError(number, os.strerror(number), source)
        os.replace(source, target)

    write_bytes = Path.write_bytes
    monkeypatch.setattr(*((Path, "write_bytes", write) if step == "write" else (replacing, "rename", rename)))
    before = contents(folder)
    with pytest.raises(UserError) as caught:
        journal.apply("Edit", change(folder, a="new a", b=None, c="new c", d="new d"))
    expected = (
        f"{folder / 'c.txt'} can't be written ({os.strerror(number)}), and no file was changed: {REMEDIES[number]}."
    )
    assert str(caught.value) == expected
    assert contents(folder) == before
    assert not journal.can_undo


def test_a_full_disk_under_the_journal_changes_nothing(folder, journal, tmp_path):
    journal.apply("Edit", change(folder, a="new a"))
    before = contents(folder)
    with (
        full_disk(tmp_path / "state"),
        pytest.raises(UserError, match=r"undo history in .* can't be written \(No space"),
    ):
        journal.apply("Edit", change(folder, a="newer a"))
    assert contents(folder) == before
    journal.undo()


def test_a_read_only_file_is_not_replaced(folder, journal, monkeypatch):
    may = os.access
    monkeypatch.setattr(os, "access", lambda path, mode: Path(path).name != "b.txt" and may(path, mode))  # root may all
    before = contents(folder)
    with pytest.raises(UserError, match=r"b\.txt can't be written \(it is read-only\), and no file was changed"):
        journal.apply("Edit", change(folder, a="new a", b="new b"))
    assert contents(folder) == before


def test_a_name_that_windows_reserves_is_refused_there(folder, journal, monkeypatch):
    monkeypatch.setattr(replacing, "_ON_WINDOWS", True)
    with pytest.raises(UserError, match=r"aux\.txt can't be written \(Windows has no files named 'aux\.txt'\)"):
        journal.apply("Edit", FileChanges({str(folder / "aux.txt"): b"a cat"}))
    assert not (folder / "aux.txt").exists()


def test_a_folder_that_is_gone_is_not_made_anew(folder, journal):
    edit = change(folder, a="new a", g="new g")
    shutil.rmtree(folder)
    with pytest.raises(ChangedOutside):
        journal.apply("Edit", edit)
    with pytest.raises(UserError, match=r"g\.txt can't be written .*: bring its folder back"):
        journal.apply("Edit", change(folder, g="new g"))
    assert not folder.exists()


def test_the_newest_change_can_be_undone_however_large_it_is_and_older_ones_go(folder, tmp_path):
    journal = Journal(folder, tmp_path / "state", max_bytes=3000)
    for number in range(10):
        journal.apply(f"Edit {number}", change(folder, a="x" * 100 * number))
    num_bytes = sum(path.stat().st_size for path in (tmp_path / "state").rglob("*.change"))
    assert 1 < len(journal.steps()) < 10
    assert num_bytes <= 3000
    before = contents(folder)
    journal.apply("Large", change(folder, a="y" * 5000))
    assert [step.label for step in journal.steps()] == ["Large"]
    assert len(list((tmp_path / "state").rglob("*.change"))) == 1
    journal.undo()
    assert contents(folder) == before


def test_links_and_permissions_stay(folder, journal, tmp_path):
    target = tmp_path / "elsewhere.txt"
    target.write_text("old")
    (folder / "link.txt").symlink_to(target)
    (folder / "a.txt").chmod(0o640)
    journal.apply("Edit", change(folder, link="new", a="new a"))
    assert (folder / "link.txt").is_symlink()
    assert target.read_text() == "new"
    assert (folder / "a.txt").stat().st_mode & 0o777 == 0o640
    (folder / "again.txt").symlink_to(target)
    with pytest.raises(UserError, match=r"again\.txt leads to .*elsewhere\.txt, which is to be changed in another way"):
        journal.apply("Edit", change(folder, link="one", again="other"))


def test_the_history_is_that_of_the_folder_whoever_opens_it(folder, journal, tmp_path):
    journal.apply("Edit", change(folder, a="new a"))
    (tmp_path / "alias").symlink_to(folder)
    assert Journal(tmp_path / "alias", tmp_path / "state").next_undo_label == "Edit"
    assert not Journal(tmp_path, tmp_path / "state").can_undo


def test_two_changes_at_once_wait_for_each_other(folder, journal, tmp_path, monkeypatch):
    other = Journal(folder, tmp_path / "state")
    monkeypatch.setattr("modules.curation.Journal.LOCK_SECONDS", 0)
    rename = replacing.rename

    def meanwhile(*arguments):
        with pytest.raises(UserError, match="Another window or program is changing files"):
            other.apply("Theirs", change(folder, b="theirs"))
        assert Journal(folder, tmp_path / "state").finished == ""  # which is no change that was cut off
        rename(*arguments)

    monkeypatch.setattr(replacing, "rename", meanwhile)
    journal.apply("Edit", change(folder, a="new a"))
    assert (folder / "b.txt").read_bytes() == b"old b"
    assert journal.next_undo_label == "Edit"


def test_a_damaged_history_starts_anew(folder, journal, tmp_path):
    journal.apply("Edit", change(folder, a="new a"))
    (state,) = (tmp_path / "state").rglob("state.json")
    state.write_text("{")
    assert not journal.can_undo
    journal.apply("Edit again", change(folder, a="newer a"))
    assert [step.label for step in journal.steps()] == ["Edit again"]
    journal.undo()
    assert (folder / "a.txt").read_bytes() == b"new a"
