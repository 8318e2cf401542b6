import json
import os
import signal
import subprocess
import sys

import pytest

from modules.config import atomic_file
from modules.config.atomic_file import new_file, write_bytes
from modules.session import atomic

WRITER = """
import sys
from modules.config.atomic_file import write_bytes
number = 0
while True:
    write_bytes(sys.argv[1], bytes([number % 256]) * 200_000)
    number += 1
    if number == 3:
        print("writing", flush=True)
"""


def dead_pid() -> int:
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    return process.pid


def test_what_is_written_is_read_back(tmp_path):
    write_bytes(tmp_path / "a.bin", b"\x00\xff\r\n")
    atomic.write_text(tmp_path / "a.txt", "a\nü")
    atomic.write_json(tmp_path / "a.json", {"path": "\udcff", "list": [1, None]})
    assert (tmp_path / "a.bin").read_bytes() == b"\x00\xff\r\n"
    assert (tmp_path / "a.txt").read_bytes() == "a\nü".encode()
    assert json.loads((tmp_path / "a.json").read_bytes()) == {"path": "\udcff", "list": [1, None]}
    assert sorted(os.listdir(tmp_path)) == ["a.bin", "a.json", "a.txt"]


def test_nan_is_refused_in_json_and_leaves_the_old_file(tmp_path):
    atomic.write_json(tmp_path / "a.json", 1)
    with pytest.raises(ValueError):
        atomic.write_json(tmp_path / "a.json", float("nan"))
    assert (tmp_path / "a.json").read_text() == "1\n"


def test_an_interrupted_write_leaves_the_old_file_and_no_temporary(tmp_path):
    target = tmp_path / "a.bin"
    write_bytes(target, b"old")

    def write_and_be_interrupted():
        with new_file(target) as temporary:
            temporary.write_bytes(b"ne")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_and_be_interrupted()
    assert target.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["a.bin"]


def test_an_error_on_the_way_to_the_disk_leaves_the_old_file(tmp_path, monkeypatch):
    def full_disk(descriptor):
        raise OSError(28, "No space left on device")

    write_bytes(tmp_path / "a.bin", b"old")
    monkeypatch.setattr(os, "fsync", full_disk)
    with pytest.raises(OSError, match="No space"):
        write_bytes(tmp_path / "a.bin", b"new")
    assert (tmp_path / "a.bin").read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["a.bin"]


@pytest.mark.skipif(os.name == "nt", reason="SIGKILL")
def test_a_reader_never_sees_a_partial_file_when_the_writer_is_killed(tmp_path):
    target = tmp_path / "a.bin"
    for _ in range(3):
        writer = subprocess.Popen([sys.executable, "-c", WRITER, str(target)], stdout=subprocess.PIPE)
        with writer:
            writer.stdout.readline()
            for _ in range(50):
                data = target.read_bytes()
                assert len(data) == 200_000
                assert len(set(data)) == 1
            writer.send_signal(signal.SIGKILL)
        assert len(target.read_bytes()) == 200_000
    atomic.sweep_temporaries(tmp_path)
    assert os.listdir(tmp_path) == ["a.bin"]


def test_a_new_folder_appears_only_when_it_is_complete(tmp_path):
    target = tmp_path / "backup"
    with atomic.new_folder(target) as temporary:
        (temporary / "sub").mkdir()
        (temporary / "sub" / "weights").write_bytes(b"w")
        assert not target.exists()
        assert temporary.parent == target.parent
        assert atomic.is_temporary(temporary)
    assert (target / "sub" / "weights").read_bytes() == b"w"
    assert os.listdir(tmp_path) == ["backup"]
    assert not atomic.is_temporary(target)


def test_every_file_of_a_new_folder_is_synced_before_the_rename(tmp_path, monkeypatch):
    synced = []
    real_replace = os.replace
    monkeypatch.setattr(atomic, "sync_file", lambda path: synced.append(path.name))
    monkeypatch.setattr(os, "replace", lambda *paths: (synced.append("rename"), real_replace(*paths)))
    with atomic.new_folder(tmp_path / "backup") as temporary:
        (temporary / "sub").mkdir()
        (temporary / "sub" / "weights").write_bytes(b"w")
        (temporary / "state").write_bytes(b"s")
    assert sorted(synced[:-1]) == ["state", "weights"]
    assert synced[-1] == "rename"


def test_a_failed_new_folder_leaves_nothing(tmp_path):
    def write_and_fail():
        with atomic.new_folder(tmp_path / "backup") as temporary:
            (temporary / "weights").write_bytes(b"w")
            raise RuntimeError

    with pytest.raises(RuntimeError):
        write_and_fail()
    assert os.listdir(tmp_path) == []


def test_a_new_folder_never_replaces_what_is_there(tmp_path):
    target = tmp_path / "backup"
    target.mkdir()
    with pytest.raises(FileExistsError), atomic.new_folder(target):
        pass
    target.rmdir()
    with pytest.raises(FileExistsError), atomic.new_folder(target):
        target.mkdir()  # another process was faster
    assert os.listdir(tmp_path) == ["backup"]


def test_temporaries_of_dead_writers_are_swept_and_others_stay(tmp_path):
    dead = dead_pid()
    nested = tmp_path / "nested"
    nested.mkdir()
    stale_folder = tmp_path / f"backup.tmp-{dead}-0123abcd"
    stale_folder.mkdir()
    (stale_folder / "weights").write_bytes(b"w")
    stale = [tmp_path / "a.tmp--0123abcd", tmp_path / "a.tmp-0-0123abcd", nested / f"a.tmp-{dead}-0123abcd"]
    kept = [tmp_path / f"a.tmp-{os.getpid()}-0123abcd", tmp_path / f"notes.tmp-{dead}", tmp_path / "a.tmp"]
    for path in stale + kept:
        path.write_bytes(b"")
    assert sorted(atomic.sweep_temporaries(tmp_path)) == sorted([*stale, stale_folder])
    assert sorted(tmp_path.rglob("*")) == sorted([nested, *kept])


def test_a_folder_for_a_while_is_swept_when_its_maker_is_dead(tmp_path, monkeypatch):
    folder = atomic.make_temporary_folder(tmp_path / "launch")
    (folder / "settings").write_bytes(b"s")
    assert folder.parent == tmp_path
    assert atomic.sweep_temporaries(tmp_path) == []
    monkeypatch.setattr(atomic, "is_alive", lambda pid: pid != os.getpid())
    assert atomic.sweep_temporaries(tmp_path) == [folder]


def test_a_sweep_that_is_not_recursive_leaves_the_subfolders_alone(tmp_path):
    nested = tmp_path / "photos" / "a.tmp--0123abcd"
    nested.parent.mkdir()
    nested.write_bytes(b"")
    (tmp_path / "a.tmp--0123abcd").write_bytes(b"")
    atomic.sweep_temporaries(tmp_path, recursive=False)
    assert os.listdir(tmp_path) == ["photos"]
    assert nested.exists()


@pytest.mark.skipif(os.name == "nt", reason="making links needs a right on Windows")
def test_a_sweep_removes_a_link_and_not_what_it_points_to(tmp_path):
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "a.jpg").write_bytes(b"")
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "a.tmp--0123abcd").symlink_to(tmp_path / "photos")
    atomic.sweep_temporaries(tmp_path / "run")
    assert os.listdir(tmp_path / "run") == []
    assert (tmp_path / "photos" / "a.jpg").exists()


def test_sweeping_a_folder_that_does_not_exist_finds_nothing(tmp_path):
    assert atomic.sweep_temporaries(tmp_path / "none") == []


@pytest.mark.skipif(os.name != "posix", reason="permissions of this kind are POSIX's")
def test_what_a_careful_writer_kept_to_itself_is_readable_as_new_files_are(tmp_path):
    (tmp_path / "usual").touch()
    usual = (tmp_path / "usual").stat().st_mode

    def write_privately(path):
        path.write_bytes(b"x")
        path.chmod(0o600)

    with new_file(tmp_path / "file") as temporary:
        write_privately(temporary)
    with atomic.new_folder(tmp_path / "folder") as temporary:
        write_privately(temporary / "inside")
    assert (tmp_path / "file").stat().st_mode == usual
    assert (tmp_path / "folder/inside").stat().st_mode == usual
    assert sorted(os.listdir(tmp_path)) == ["file", "folder", "usual"]


def test_a_folder_is_never_seen_half_removed(tmp_path, monkeypatch):
    (tmp_path / "old").mkdir()
    (tmp_path / "old/file").touch()
    seen = []
    monkeypatch.setattr(atomic_file.shutil, "rmtree", lambda path: seen.append(os.listdir(tmp_path)))
    atomic.remove_folder(tmp_path / "old")
    assert len(seen) == 1
    assert "old" not in seen[0]
    monkeypatch.undo()
    atomic.sweep_temporaries(tmp_path)  # what a kill at that moment leaves is removed once its process is gone
    atomic.remove_folder(tmp_path / "old")  # does nothing for a missing folder
