from __future__ import annotations

import hashlib
import json
import os

import pytest

from modules.config.regular_file import open_regular
from modules.data.FileHashes import FileHashes


@pytest.fixture
def opened(monkeypatch) -> list[str]:
    """Names of the files that are opened to be hashed."""
    names = []

    def watched(path):
        names.append(os.path.basename(path))
        return open_regular(path)

    monkeypatch.setattr("modules.data.FileHashes.open_regular", watched)
    return names


@pytest.fixture
def files(tmp_path) -> list[str]:
    paths = [tmp_path / f"{name}.png" for name in "abc"]
    for path in paths:
        path.write_bytes(path.name.encode())
    return [str(path) for path in paths]


def test_a_hash_is_that_of_the_bytes(tmp_path, files):
    expected = [hashlib.sha256(name).hexdigest() for name in (b"a.png", b"b.png", b"c.png")]
    assert FileHashes(tmp_path / "cache", 0).of(files) == expected


def test_what_is_known_is_not_read_again_by_any_rank(tmp_path, files, opened):
    first = FileHashes(tmp_path / "cache", 1)
    hashes = first.of(files)
    first.of(files)
    first.save()
    assert sorted(opened) == ["a.png", "b.png", "c.png"]
    assert FileHashes(tmp_path / "cache", 0).of(files) == hashes
    assert len(opened) == 3


def test_what_another_rank_saves_meanwhile_is_known_after_another_look(tmp_path, files, opened):
    first, second = FileHashes(tmp_path / "cache", 0), FileHashes(tmp_path / "cache", 1)
    expected = first.of(files)
    first.save()
    second.refresh()
    assert second.of(files) == expected
    assert len(opened) == 3


@pytest.mark.parametrize("stale_rank", [0, 2])
def test_a_stale_entry_of_another_rank_does_not_hide_the_new_one(stale_rank, tmp_path, files, opened):
    for rank, text in ((stale_rank, b"old"), (1, b"newer")):
        with open(files[0], "wb") as file:
            file.write(text)
        hashes = FileHashes(tmp_path / "cache", rank)
        hashes.of(files)
        hashes.save()
    opened.clear()
    for rank in range(4):
        assert FileHashes(tmp_path / "cache", rank).of(files[:1]) == [hashlib.sha256(b"newer").hexdigest()]
    assert opened == []


def test_every_file_is_a_sign_of_life(tmp_path, files):
    signs = []
    FileHashes(tmp_path / "cache", 0, on_file=lambda: signs.append(1)).of([*files, tmp_path / "gone.png"])
    assert len(signs) == 4


def test_a_file_that_changed_is_read_again(tmp_path, files, opened):
    hashes = FileHashes(tmp_path / "cache", 0)
    before = hashes.of(files)
    hashes.save()
    with open(files[1], "w", encoding="utf-8") as file:
        file.write("another")
    opened.clear()
    after = FileHashes(tmp_path / "cache", 0).of(files)
    assert opened == ["b.png"]
    assert [a == b for a, b in zip(after, before, strict=True)] == [True, False, True]


def test_a_change_of_equal_size_shows_by_its_time(tmp_path, files):
    hashes = FileHashes(tmp_path / "cache", 0)
    (before,) = hashes.of(files[:1])
    with open(files[0], "wb") as file:
        file.write(b"A.png")
    os.utime(files[0], ns=(1, 1))
    assert hashes.of(files[:1]) != [before]


def test_files_of_equal_size_and_time_that_change_places_are_read_again(tmp_path):
    first, second = tmp_path / "a.bmp", tmp_path / "b.bmp"
    for path in (first, second):
        path.write_bytes(path.name.encode())
        os.utime(path, ns=(1, 1))
    hashes = FileHashes(tmp_path / "cache", 0)
    before = hashes.of([first, second])
    hashes.save()
    first.rename(tmp_path / "c.bmp")
    second.rename(first)
    (tmp_path / "c.bmp").rename(second)
    assert FileHashes(tmp_path / "cache", 0).of([first, second]) == before[::-1]


def test_an_encoder_replaced_by_one_of_equal_size_and_time_has_another_hash(tmp_path):
    found = []
    for content in (b"one", b"two"):
        (tmp_path / "new").write_bytes(content)
        os.utime(tmp_path / "new", ns=(10**9, 10**9))  # one second, as in images with SOURCE_DATE_EPOCH
        (tmp_path / "new").replace(tmp_path / "vae.safetensors")
        hashes = FileHashes(tmp_path / "cache", 0)
        found.append(hashes.combined([tmp_path / "vae.safetensors"]))
        hashes.save()
    assert found[0] != found[1]


def earlier_memory(tmp_path, files, rank=0):
    """What versions saved that remembered size and modification time alone; with hashes that no file has."""
    memory = tmp_path / "cache" / f"rank-{rank}" / "file_hashes.json"
    memory.parent.mkdir(parents=True)
    stats = {path: os.stat(path) for path in files}
    memory.write_text(json.dumps({path: [s.st_size, s.st_mtime_ns, f"of {path}"] for path, s in stats.items()}))


def test_entries_of_earlier_versions_are_read_and_nothing_is_hashed(tmp_path, files, opened):
    earlier_memory(tmp_path, files)
    for _ in range(2):
        hashes = FileHashes(tmp_path / "cache", 0)
        assert hashes.of(files) == [f"of {path}" for path in files]
        hashes.save()
    assert opened == []


def test_an_entry_of_an_earlier_version_does_not_outlive_a_change(tmp_path, files):
    earlier_memory(tmp_path, files, rank=1)
    hashes = FileHashes(tmp_path / "cache", 0)
    hashes.of(files)
    hashes.save()
    before = os.stat(files[0])
    with open(tmp_path / "new", "wb") as file:
        file.write(b"A.png")
    os.utime(tmp_path / "new", ns=(before.st_atime_ns, before.st_mtime_ns))
    os.replace(tmp_path / "new", files[0])
    assert FileHashes(tmp_path / "cache", 0).of(files[:1]) == [hashlib.sha256(b"A.png").hexdigest()]


def test_frames_in_another_order_are_read_again(tmp_path):
    folder = tmp_path / "walk"
    folder.mkdir()
    for number in range(3):
        (folder / f"{number}.png").write_bytes(bytes([number]))
        os.utime(folder / f"{number}.png", ns=(1, 1))
    os.utime(folder, ns=(1, 1))
    hashes = FileHashes(tmp_path / "cache", 0)
    assert hashes.of([str(folder)]) == [hashlib.sha256(b"\x00\x01\x02").hexdigest()]
    (folder / "0.png").rename(folder / "3.png")
    assert hashes.of([str(folder)]) == [hashlib.sha256(b"\x01\x02\x00").hexdigest()]


def test_a_file_that_can_not_be_read_has_none(tmp_path, files):
    gone = str(tmp_path / "gone.png")
    hashes = FileHashes(tmp_path / "cache", 0)
    first, none = hashes.of([files[0], gone])
    assert first is not None
    assert none is None


def test_a_damaged_memory_only_costs_reading_again(tmp_path, files):
    hashes = FileHashes(tmp_path / "cache", 0)
    expected = hashes.of(files)
    hashes.save()
    memory = tmp_path / "cache" / "rank-0" / "file_hashes.json"
    for damaged in (b"{", b"\xff\xfe", b"[1, 2]", b'{"' + files[0].encode() + b'": 5}', b"null", b'"text"'):
        memory.write_bytes(damaged)
        assert FileHashes(tmp_path / "cache", 0).of(files) == expected


def test_the_combined_hash_depends_on_names_bytes_and_texts(tmp_path):
    def combined(files: dict[str, bytes], *more: str) -> str:
        paths = []
        for name, data in files.items():
            path = tmp_path / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)
            os.utime(path, ns=(len(seen), 5))
            paths.append(path)
        seen.append(FileHashes(tmp_path / "cache", 0).combined(paths, *more))
        return seen[-1]

    seen: list[str] = []
    combined({"vae/a": b"1"})
    combined({"vae/a": b"2"})
    combined({"unet/a": b"2"})
    combined({"vae/b": b"2"})
    combined({"vae/a": b"2"}, "float32")
    combined({"vae/a": b"2"}, "float16")
    assert len(set(seen)) == 6
    assert combined({"vae/a": b"1"}) == seen[0]


def test_the_combined_hash_does_not_depend_on_where_the_model_lies(tmp_path):
    hashes = []
    for place in ("here", "there"):
        path = tmp_path / place / "vae" / "a"
        path.parent.mkdir(parents=True)
        path.write_bytes(b"1")
        hashes.append(FileHashes(tmp_path / "cache", 0).combined([path]))
    assert hashes[0] == hashes[1]
