from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest
import torch

from modules.data.BoundedMemory import BoundedMemory
from modules.data.errors import DataError
from modules.data.TensorCache import TensorCache

KEY, OTHER = "ab" + "0" * 38, "cd" + "1" * 38


def record(value: float = 1.0) -> dict[str, torch.Tensor]:
    return {"latents": torch.full((2, 3), value), "pooled": torch.arange(4).to(torch.bfloat16)}


def assert_same(own, expected) -> None:
    assert own.keys() == expected.keys()
    for name, tensor in expected.items():
        assert own[name].dtype == tensor.dtype
        assert torch.equal(own[name], tensor)


def entry(folder: Path) -> Path:
    (path,) = folder.rglob("*.safetensors")
    return path


def test_a_record_comes_back_as_it_was_in_this_run_and_the_next(tmp_path):
    cache = TensorCache(tmp_path, "latents", 0)
    cache.put(KEY, record())
    for reader in (cache, TensorCache(tmp_path, "latents", 0)):
        assert KEY in reader
        assert_same(reader.get(KEY), record())


def test_views_and_channels_last_tensors_come_back_as_values(tmp_path):
    whole = torch.randn(4, 2, 3, 3).to(memory_format=torch.channels_last)
    TensorCache(tmp_path, "latents", 0).put(KEY, {"row": whole[1]})
    assert torch.equal(TensorCache(tmp_path, "latents", 0).get(KEY)["row"], whole[1])


def test_what_is_not_there_is_none(tmp_path):
    cache = TensorCache(tmp_path, "latents", 0)
    assert KEY not in cache
    assert cache.get(KEY) is None


def test_a_rank_writes_in_its_own_folder_and_reads_all(tmp_path):
    first, second = TensorCache(tmp_path, "latents", 0), TensorCache(tmp_path, "latents", 1)
    second.put(KEY, record())
    assert entry(tmp_path).relative_to(tmp_path).parts[:2] == ("rank-1", "latents")
    assert KEY not in first
    first.refresh()
    assert_same(first.get(KEY), record())


def test_another_number_of_ranks_reads_everything(tmp_path):
    for rank in range(3):
        TensorCache(tmp_path, "latents", rank).put(f"{rank:040d}", record(rank))
    alone = TensorCache(tmp_path, "latents", 0)
    assert all(f"{rank:040d}" in alone for rank in range(3))


def test_kinds_are_apart(tmp_path):
    TensorCache(tmp_path, "latents", 0).put(KEY, record())
    assert KEY not in TensorCache(tmp_path, "text", 0)


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-3])


def flip(at: int):
    def damage(path: Path) -> None:
        data = bytearray(path.read_bytes())
        data[at] ^= 1
        path.write_bytes(data)

    return damage


DAMAGES = {
    "cut": cut,
    "empty": lambda path: path.write_bytes(b""),
    "zeroed": lambda path: path.write_bytes(bytes(path.stat().st_size)),
    "value flipped": flip(-2),
    "header flipped": flip(20),
    "length flipped": flip(0),
    "length huge": flip(6),
    "deleted": lambda path: path.unlink(),
    "a list for a header": lambda path: path.write_bytes((2).to_bytes(8, "little") + b"[]"),
    "another format": lambda path: path.write_bytes(b"\x80\x04 a pickle it may be"),
}


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
def test_a_damaged_entry_counts_as_missing_and_is_made_again(damage, tmp_path):
    TensorCache(tmp_path, "latents", 0).put(KEY, record())
    reader = TensorCache(tmp_path, "latents", 0)
    damage(entry(tmp_path))
    assert reader.get(KEY) is None
    assert KEY not in reader
    reader.put(KEY, record(2.0))
    assert_same(reader.get(KEY), record(2.0))
    assert_same(TensorCache(tmp_path, "latents", 0).get(KEY), record(2.0))


def test_every_single_flipped_bit_shows(tmp_path):
    TensorCache(tmp_path, "latents", 0).put(KEY, record())
    path = entry(tmp_path)
    whole = path.read_bytes()
    for at in range(len(whole)):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 4]) + whole[at + 1 :])
        found = TensorCache(tmp_path, "latents", 0).get(KEY)
        if found is not None:  # a flip that JSON does not see, such as in a blank
            assert_same(found, record())


def test_a_damaged_entry_of_another_rank_is_covered_by_the_own_one(tmp_path):
    TensorCache(tmp_path, "latents", 1).put(KEY, record())
    cut(entry(tmp_path))
    cache = TensorCache(tmp_path, "latents", 0)
    assert cache.get(KEY) is None
    cache.put(KEY, record())
    assert_same(TensorCache(tmp_path, "latents", 0).get(KEY), record())


def test_an_entry_that_another_rank_has_made_again_is_found(tmp_path):
    TensorCache(tmp_path, "latents", 0).put(KEY, record())
    reader, other = TensorCache(tmp_path, "latents", 2), TensorCache(tmp_path, "latents", 1)
    cut(entry(tmp_path))
    other.put(KEY, record(2.0))
    for cache in (reader, TensorCache(tmp_path, "latents", 0)):  # a later start lists the damaged one first
        assert_same(cache.get(KEY), record(2.0))


def test_a_full_disk_is_one_sentence_and_leaves_what_is_there(tmp_path, monkeypatch):
    cache = TensorCache(tmp_path, "latents", 0)
    cache.put(KEY, record())

    def refuse(path, data):
        with open(path, "wb") as file:
            file.write(data[:10])
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as full:
        full.setattr(Path, "write_bytes", refuse)
        with pytest.raises(DataError, match="the disk is full"):
            cache.put(OTHER, record())
    assert OTHER not in cache
    assert [path.name for path in tmp_path.rglob("*") if path.is_file()] == [f"{KEY}.safetensors"]
    cache.put(OTHER, record())
    assert OTHER in TensorCache(tmp_path, "latents", 0)


def test_a_cache_folder_that_is_a_file_is_one_sentence(tmp_path):
    (tmp_path / "cache").write_text("a file", encoding="utf-8")
    with pytest.raises(DataError, match="cache_dir"):
        TensorCache(tmp_path / "cache", "latents", 0).put(KEY, record())


def test_temporaries_of_a_dead_writer_are_no_entries_and_are_swept(tmp_path):
    TensorCache(tmp_path, "latents", 0).put(KEY, record())
    dead = entry(tmp_path).with_name(f"{KEY}.safetensors.tmp-{2**22 + 5}-0123abcd")
    dead.write_bytes(b"half")
    alive = entry(tmp_path).with_name(f"{OTHER}.safetensors.tmp-{os.getpid()}-0123abcd")
    alive.write_bytes(b"half")
    cache = TensorCache(tmp_path, "latents", 0)
    assert OTHER not in cache
    assert not dead.exists()
    assert alive.exists()


def test_a_temporary_that_another_run_has_swept_is_written_again(tmp_path, monkeypatch):
    cache = TensorCache(tmp_path, "latents", 0)
    replace, swept = os.replace, []

    def sweep_before(source, target):
        if not swept:
            swept.append(source)
            os.unlink(source)
        replace(source, target)

    monkeypatch.setattr(os, "replace", sweep_before)
    cache.put(KEY, record())
    assert len(swept) == 1
    assert_same(TensorCache(tmp_path, "latents", 0).get(KEY), record())


def test_memory_keeps_what_fits_and_no_more():
    memory = BoundedMemory(max_bytes=64)
    memory.keep("first", {"a": torch.zeros(8)})
    memory.keep("too much", {"a": torch.zeros(9)})
    memory.keep("second", {"a": torch.zeros(8)})
    memory.keep("third", {"a": torch.zeros(1)})
    kept = [name for name in ("first", "too much", "second", "third") if memory.get(name) is not None]
    assert kept == ["first", "second"]
