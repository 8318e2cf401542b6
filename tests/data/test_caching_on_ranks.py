from __future__ import annotations

import errno
import os
import shutil
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pytest
import torch

from modules.config.ConceptConfig import ConceptConfig
from modules.config.ModelConfig import ModelConfig
from modules.config.regular_file import open_regular
from modules.data.buckets import assign_buckets
from modules.data.concepts import captions, scan
from modules.data.DatasetEncoder import DatasetEncoder
from modules.data.errors import DataError, ImageError
from modules.data.records import CachedRecords
from modules.data.TensorCache import TensorCache
from modules.distributed.Heartbeat import Heartbeat
from modules.families.registry import FAMILIES
from modules.weights.BaseModel import BaseModel
from modules.weights.FolderComponents import FolderComponents
from tests.support.ThreadRanks import ThreadRanks, ThreadRuntime

NUM_PICTURES = 9
SIZES = ((32, 32), (48, 32), (32, 32)) * 3


@dataclass
class Cached:
    """What one rank has after its caching."""

    encoder: DatasetEncoder
    latents: CachedRecords
    text: CachedRecords

    def check_complete(self) -> None:
        """All that can be used is there, without encoding anything."""
        for sample, key in self.latents.keys.items():
            assert (self.latents.cache.get(key) is not None) == (sample not in self.encoder.unusable)
        assert all(self.text.cache.get(key) is not None for key in self.text.keys.values())


class Encodings:
    """What the ranks encoded, by the names of their threads: pictures and captions as counts of rows."""

    def __init__(self):
        self.pictures: Counter[str] = Counter()
        self.captions: Counter[str] = Counter()
        self.loaded: list[tuple[str, str]] = []

    def clear(self) -> None:
        self.__init__()


@pytest.fixture(autouse=True)
def encodings(monkeypatch) -> Encodings:
    import modules.families.conditioning
    import modules.families.latents

    seen, one_at_a_time = Encodings(), threading.RLock()
    encode_pixels = modules.families.latents.encode_pixels
    encode_records = modules.families.conditioning.encode_records
    load = FolderComponents._load

    def counted_pixels(family, vae, pixels):
        seen.pictures[threading.current_thread().name] += len(pixels)
        return encode_pixels(family, vae, pixels)

    def counted_text(family, pipe, prompts, references=None):
        seen.captions[threading.current_thread().name] += len(prompts)
        return encode_records(family, pipe, prompts, references)

    def counted_load(self, name):
        seen.loaded.append((threading.current_thread().name, name))
        with one_at_a_time:  # the libraries patch torch while they load, which ranks of other processes never see
            return load(self, name)

    monkeypatch.setattr("modules.families.latents.encode_pixels", counted_pixels)
    monkeypatch.setattr("modules.families.conditioning.encode_records", counted_text)
    monkeypatch.setattr(FolderComponents, "_load", counted_load)
    return seen


def prepare(folder: Path):
    dataset = scan([ConceptConfig(path=str(folder))])
    return dataset, assign_buckets(dataset.widths, dataset.heights, 32, 8, 2.0, True)


@pytest.fixture
def cache(tiny_sd15, tmp_path, encodings) -> Callable[..., list[Cached]]:
    """Caches a folder's pictures and captions on all ranks. cache_dirs: of each node, a shared one by default."""

    def run(ranks: ThreadRanks, folder, everyone=True, cache_dirs=None, progress=lambda runtime, *told: None):
        data = folder if isinstance(folder, tuple) else prepare(folder)
        model = ModelConfig(base=str(tiny_sd15))
        bases = [BaseModel(FAMILIES["sd15"], model, torch.device("cpu")) for _ in ranks.runtimes]
        encodings.clear()

        def body(runtime: ThreadRuntime) -> Cached:
            cache_dir = cache_dirs[runtime.node_rank] if cache_dirs else tmp_path / "cache"
            tell = partial(progress, runtime)
            encoder = DatasetEncoder(bases[runtime.rank], *data, cache_dir, runtime, everyone, tell, tell)
            return Cached(encoder, encoder.latents(), encoder.text([options[0] for options in captions(data[0])]))

        return ranks.run(body)

    return run


def spoil(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-60])


def parts(counts: Counter) -> list[int]:
    return sorted(counts.values())


def entries(cache_dir: Path, kind: str) -> list[Path]:
    return sorted(cache_dir.glob(f"rank-*/{kind}/*/*.safetensors"))


# --- the split --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("num_ranks", "expected"), [(2, [4, 5]), (4, [2, 2, 2, 3])])
def test_ranks_encode_equal_parts_and_all_can_read_all(num_ranks, expected, cache, encodings, picture_folder):
    cached = cache(ThreadRanks(num_ranks), picture_folder(SIZES))
    assert parts(encodings.pictures) == parts(encodings.captions) == expected
    for rank in cached:
        rank.check_complete()


def test_a_later_start_on_any_number_of_ranks_encodes_and_loads_nothing(cache, encodings, picture_folder):
    folder = picture_folder(SIZES)
    cache(ThreadRanks(2), folder)
    for ranks in (ThreadRanks(4), ThreadRanks(1), ThreadRanks(2), ThreadRanks(4, num_nodes=2)):
        for rank in cache(ranks, folder):
            rank.check_complete()
        assert not encodings.pictures + encodings.captions
        assert encodings.loaded == []


def test_a_rank_without_anything_to_encode_loads_no_model(cache, encodings, picture_folder):
    folder = picture_folder(SIZES)
    (folder / "004.png").rename(folder.parent / "later.png")
    cache(ThreadRanks(2), folder)
    shutil.move(folder.parent / "later.png", folder / "004.png")
    cache(ThreadRanks(2), folder)
    assert encodings.pictures == {"rank-0": 1}
    assert {rank for rank, name in encodings.loaded if name == "vae"} == {"rank-0"}


def test_two_copies_of_a_picture_are_encoded_once(cache, encodings, picture_folder):
    folder = picture_folder(((32, 32),) * 4)
    for name in ("001.png", "002.png"):
        shutil.copy(folder / "000.png", folder / name)
    for rank in cache(ThreadRanks(2), folder):
        rank.check_complete()
    assert encodings.pictures == {"rank-0": 1, "rank-1": 1}


def test_what_a_late_rank_sees_does_not_depend_on_what_an_early_one_writes(
    cache, encodings, picture_folder, monkeypatch
):
    look = TensorCache.refresh

    def late(self):
        if threading.current_thread().name == "rank-1":
            time.sleep(0.2)
        look(self)

    monkeypatch.setattr(TensorCache, "refresh", late)
    for rank in cache(ThreadRanks(2), picture_folder(SIZES)):
        rank.check_complete()
    assert parts(encodings.pictures) == [4, 5]


def test_where_not_everyone_encodes_the_first_rank_of_the_node_does(cache, encodings, picture_folder):
    for rank in cache(ThreadRanks(3), picture_folder(SIZES), everyone=False):
        rank.check_complete()
    assert encodings.pictures == encodings.captions == {"rank-0": NUM_PICTURES}
    assert {rank for rank, _ in encodings.loaded if rank.startswith("rank")} == {"rank-0"}


@pytest.mark.parametrize("num_nodes", [1, 2])
def test_each_file_is_read_by_one_rank_of_those_that_share_a_disk(
    num_nodes, cache, picture_folder, tmp_path, monkeypatch
):
    read = Counter()

    def watched(path):
        if str(path).endswith((".png", "diffusion_pytorch_model.safetensors")):
            read[str(path)] += 1
        return open_regular(path)

    folder = picture_folder(SIZES)
    # the libraries and the decoder read files too: what is counted is what hashing reads
    monkeypatch.setattr("modules.data.FileHashes.open_regular", watched)
    cache(ThreadRanks(4, num_nodes), folder, cache_dirs=[tmp_path / f"node-{node}" for node in range(num_nodes)])
    assert len(read) == NUM_PICTURES + 1
    assert set(read.values()) == {num_nodes}


# --- nodes ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("everyone", [True, False])
def test_nodes_on_a_shared_disk_encode_everything_once(everyone, cache, encodings, picture_folder):
    for rank in cache(ThreadRanks(4, num_nodes=2), picture_folder(SIZES), everyone):
        rank.check_complete()
    if everyone:
        assert parts(encodings.pictures) == parts(encodings.captions) == [2, 2, 2, 3]
    else:
        assert encodings.pictures == encodings.captions == {"rank-0": 5, "rank-2": 4}


@pytest.mark.parametrize("everyone", [True, False])
def test_nodes_without_a_shared_disk_each_encode_everything_once(everyone, cache, encodings, picture_folder, tmp_path):
    nodes = [tmp_path / "node-0", tmp_path / "node-1"]
    for rank in cache(ThreadRanks(4, num_nodes=2), picture_folder(SIZES), everyone, nodes):
        rank.check_complete()
    for kind in ("latents", "text"):
        assert [len(entries(node, kind)) for node in nodes] == [NUM_PICTURES, NUM_PICTURES]
    if not everyone:
        assert encodings.pictures == encodings.captions == {"rank-0": NUM_PICTURES, "rank-2": NUM_PICTURES}
        return
    for counts in (encodings.pictures, encodings.captions):
        assert counts["rank-0"] + counts["rank-1"] == counts["rank-2"] + counts["rank-3"] == NUM_PICTURES
        assert min(counts.values()) >= NUM_PICTURES // 2 - 1


def test_a_node_that_has_everything_waits_for_one_that_has_nothing(cache, encodings, picture_folder, tmp_path):
    nodes = [tmp_path / "node-0", tmp_path / "node-1"]
    folder = picture_folder(SIZES)
    cache(ThreadRanks(2), folder, cache_dirs=nodes)
    ranks = ThreadRanks(4, num_nodes=2)
    for rank in cache(ranks, folder, cache_dirs=nodes):
        rank.check_complete()
    assert set(encodings.pictures) == {"rank-2", "rank-3"}
    assert sum(encodings.pictures.values()) == NUM_PICTURES
    assert len({tuple(runtime.meetings) for runtime in ranks.runtimes}) == 1


# --- what can't be used -----------------------------------------------------------------------------------------------


def test_what_one_rank_finds_unusable_all_know(cache, picture_folder):
    folder = picture_folder(SIZES)
    spoil(folder / "003.png")
    shutil.copy(folder / "003.png", folder / "100.png")
    dataset, buckets = prepare(folder)
    (folder / "006.png").unlink()
    cached = cache(ThreadRanks(2), (dataset, buckets))
    assert list(cached[0].encoder.unusable) == [3, 6, 9]
    assert cached[0].encoder.unusable == cached[1].encoder.unusable
    for rank in cached:
        rank.check_complete()


def test_an_unusable_picture_is_not_tried_again_by_the_other_node(cache, picture_folder, tmp_path, monkeypatch):
    import modules.data.decoding

    load, loaded = modules.data.decoding.load_pixels, []

    def counted(dataset, buckets, sample, conditions):
        loaded.append(sample)
        return load(dataset, buckets, sample, conditions)

    monkeypatch.setattr("modules.data.decoding.load_pixels", counted)
    folder = picture_folder(SIZES)
    spoil(folder / "003.png")
    cached = cache(ThreadRanks(2, num_nodes=2), folder, cache_dirs=[tmp_path / "node-0", tmp_path / "node-1"])
    assert [list(rank.encoder.unusable) for rank in cached] == [[3], [3]]
    assert Counter(loaded) == {sample: 1 if sample == 3 else 2 for sample in range(NUM_PICTURES)}


def test_a_copy_that_is_damaged_on_one_node_only_is_unusable_on_both(tiny_sd15, picture_folder, tmp_path):
    folders = [picture_folder(SIZES, name=f"pictures-{node}") for node in range(2)]
    spoil(folders[1] / "005.png")
    model = ModelConfig(base=str(tiny_sd15))
    bases = [BaseModel(FAMILIES["sd15"], model, torch.device("cpu")) for _ in folders]

    def body(runtime):
        node = tmp_path / f"node-{runtime.rank}"
        data = prepare(folders[runtime.rank])
        encoder = DatasetEncoder(bases[runtime.rank], *data, node, runtime, True, lambda *_: None, lambda *_: None)
        records = encoder.latents()
        assert all(records.cache.get(key) for sample, key in records.keys.items() if sample != 5)
        return encoder.unusable

    first, second = ThreadRanks(2, num_nodes=2).run(body)
    assert list(first) == [5]
    assert first == second


@pytest.mark.parametrize("everyone", [True, False])
def test_pictures_for_methods_on_pixels_are_checked_in_parts(everyone, tiny_sd15, picture_folder, tmp_path):
    folder = picture_folder(SIZES)
    spoil(folder / "004.png")
    spoil(folder / "005.png")
    data = prepare(folder)
    base = BaseModel(FAMILIES["sd15"], ModelConfig(base=str(tiny_sd15)), torch.device("cpu"))
    reports: dict[int, list[tuple]] = {0: [], 1: []}

    def body(runtime):
        def tell(*report):
            reports[runtime.rank].append(report)

        encoder = DatasetEncoder(base, *data, tmp_path / "cache", runtime, everyone, tell, tell)
        encoder.pixels()
        return list(encoder.unusable)

    assert ThreadRanks(2).run(body) == [[4, 5], [4, 5]]
    last = [told[-1] if told else None for told in reports.values()]
    if everyone:
        assert last == [("Checking images", 5, 5), ("Checking images", 4, 4)]
    else:
        assert last == [("Checking images", 9, 9), None]


# --- what goes wrong on one rank --------------------------------------------------------------------------------------


def test_a_caching_that_was_killed_on_one_rank_goes_on(cache, encodings, picture_folder, monkeypatch):
    monkeypatch.setattr("modules.data.caching.IMAGES_AT_ONCE", 1)
    folder = picture_folder(SIZES)

    def die(runtime, text, done, total):
        if runtime.rank == 1 and (text, done) == ("Caching images", 2):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        cache(ThreadRanks(2), folder, progress=die)
    assert encodings.pictures == {"rank-0": 5, "rank-1": 2}
    for rank in cache(ThreadRanks(2), folder):
        rank.check_complete()
    assert encodings.pictures == {"rank-0": 1, "rank-1": 1}


def test_a_full_disk_of_one_rank_is_its_own_error(cache, picture_folder, monkeypatch):
    replace = os.replace

    def refuse(source, target):
        if threading.current_thread().name == "rank-1" and "latents" in str(target):
            raise OSError(errno.ENOSPC, "No space left on device")
        replace(source, target)

    monkeypatch.setattr(os, "replace", refuse)
    with pytest.raises(DataError, match="the disk is full"):
        cache(ThreadRanks(2), picture_folder(SIZES))


@pytest.mark.parametrize("at_once", [False, True])
def test_a_damaged_entry_is_made_again_without_the_other_ranks(at_once, cache, encodings, picture_folder, tmp_path):
    folder = picture_folder(SIZES)
    spoil(folder / "003.png")
    cache(ThreadRanks(2), folder)
    ranks = ThreadRanks(2)
    cached = cache(ranks, folder)
    path = cached[0].latents.cache._paths[cached[0].latents.keys[1]]
    path.write_bytes(path.read_bytes()[:-9])
    met = [len(runtime.meetings) for runtime in ranks.runtimes]
    encodings.clear()
    if at_once:
        records = ranks.run(lambda runtime: cached[runtime.rank].latents.record(1))
        assert 1 <= encodings.pictures["rank-0"] + encodings.pictures["rank-1"] <= 2
        torch.testing.assert_close(records[0], records[1], rtol=1e-5, atol=1e-6)
    else:
        assert cached[0].latents.record(1) is not None
        assert cached[1].latents.record(1) is not None  # finds what the first has made
        assert sum(encodings.pictures.values()) == 1
    assert met == [len(runtime.meetings) for runtime in ranks.runtimes]


def test_an_entry_that_is_lost_together_with_its_picture_is_an_error_of_that_rank(cache, picture_folder):
    folder = picture_folder(SIZES)
    cache(ThreadRanks(2), folder)
    cached = cache(ThreadRanks(2), folder)
    cached[0].latents.cache._paths[cached[0].latents.keys[1]].unlink()
    (folder / "001.png").unlink()
    with pytest.raises(ImageError, match=r"001\.png"):
        cached[1].latents.record(1)


# --- what is told -----------------------------------------------------------------------------------------------------


def test_each_rank_tells_of_its_share_and_shows_that_it_goes_on(cache, picture_folder):
    class Watched(Heartbeat):
        def __init__(self):
            super().__init__()
            self.phases: list[str] = []

        def beat(self, limit_seconds=None):
            self.phases.append(self._phase)

    ranks = ThreadRanks(2)
    for runtime in ranks.runtimes:
        runtime.heartbeat = Watched()
    reports: dict[int, list[tuple]] = {0: [], 1: []}
    cache(ranks, picture_folder(SIZES), progress=lambda runtime, *report: reports[runtime.rank].append(report))
    for rank, share in ((0, 5), (1, 4)):
        told = reports[rank]
        assert ("Caching images", share, share) in told
        assert told[-1] == ("Caching captions", share, share)
        assert ranks.runtimes[rank].heartbeat.phases.count("caching") > len(told)
