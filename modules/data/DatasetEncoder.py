"""A run's pictures and captions, encoded into the caches where they are missing, and read back from there."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING

from modules.data.caching import (
    WHOLE,
    Progress,
    Shard,
    cache_latents,
    cache_text,
    find_undecodable,
    latent_keys,
    shard_of,
    text_keys,
)
from modules.data.errors import ImageError
from modules.data.FileHashes import FileHashes
from modules.data.records import CachedRecords, PixelRecords
from modules.data.TensorCache import TensorCache
from modules.families.latents import latent_shape

if TYPE_CHECKING:
    from modules.data.buckets import Buckets
    from modules.data.concepts import Dataset
    from modules.distributed.Runtime import Runtime
    from modules.weights.BaseModel import BaseModel

# Encodes a shard of what is missing, but not these unusable pictures; returns all that are unusable now.
Encode = Callable[[Shard, dict[int, str], Progress], dict[int, str]]


class DatasetEncoder:
    """Makes the sources of a run's tensors; each loads the encoder that it needs only where something is missing.

    The ranks divide the work and synchronize after it, so `latents`, `text` and `pixels` are called on all of them.
    everyone_encodes: every rank encodes a shard; otherwise the first of each node does, and the others wait.
    progress: told how far this rank's shard is; what it raises ends the encoding, and what is cached stays.
    tell: told of entries that are made again while training goes on.
    `unusable`: sample id -> why its picture can't be used, once `latents` or `pixels` was called; the same on all
    ranks.
    """

    def __init__(
        self,
        base: BaseModel,
        dataset: Dataset,
        buckets: Buckets,
        cache_dir: str | os.PathLike,
        runtime: Runtime,
        everyone_encodes: bool,
        progress: Progress,
        tell: Progress,
    ):
        self.unusable: dict[int, str] = {}
        self._base = base
        self._dataset = dataset
        self._buckets = buckets
        self._cache_dir = cache_dir
        self._runtime = runtime
        self._rounds = _rounds(runtime, everyone_encodes)
        self._progress = progress
        self._tell = tell
        self._hashes = FileHashes(cache_dir, runtime.rank, on_file=runtime.heartbeat.beat)

    def latents(self) -> CachedRecords:
        """The latents of every picture that can be used."""
        cache = self._scanned_cache("latents")
        files = dict.fromkeys([*self._dataset.paths, *(mask for mask in self._dataset.masks or () if mask)])
        self._hash_together([*self._base.component_files(self._base.family.vae), *files])
        keys = latent_keys(self._dataset, self._buckets, self._base, self._hashes)
        self._hashes.save()

        def encode(shard: Shard, unusable: dict[int, str], progress: Progress) -> dict[int, str]:
            return cache_latents(
                self._dataset, self._buckets, keys, cache, self._base, shard, progress, known_unusable=unusable
            )

        def remake() -> None:
            for sample, reason in encode(WHOLE, self.unusable, self._tell).items():
                if sample not in self.unusable:  # planned for, and now its entry and the picture are both lost
                    raise ImageError(self._dataset.paths[sample], reason)

        self.unusable = self._encode_together(keys, cache, encode)
        return CachedRecords(cache, keys, remake)

    def text(self, captions: Sequence[str]) -> CachedRecords:
        """The conditioning of `captions`, each once, by caption."""
        cache = self._scanned_cache("text")
        self._hash_together(self._base.component_files(*self._base.family.text_components))
        keys = text_keys(captions, self._base, self._hashes)
        self._hashes.save()

        def encode(shard: Shard, unusable: dict[int, str], progress: Progress) -> dict[int, str]:
            cache_text(captions, keys, cache, self._base, shard, progress)
            return unusable

        self._encode_together(keys, cache, encode)
        by_caption = dict(zip(captions, keys, strict=True))
        return CachedRecords(cache, by_caption, lambda: encode(WHOLE, {}, self._tell))

    def pixels(self) -> PixelRecords:
        """The pictures themselves, all decoded once to find those that can't be used."""
        shape = partial(latent_shape, self._base.family, self._base.module(self._base.family.vae))
        with self._runtime.heartbeat.phase("caching"):
            found = find_undecodable(self._dataset, self._buckets, self._rounds[0], self._go_on)
            self.unusable = self._gathered(found, "checking the pictures")
        return PixelRecords(self._dataset, self._buckets, shape)

    # --- together with the other ranks ----------------------------------------------------------------------------

    def _scanned_cache(self, kind: str) -> TensorCache:
        """To be made before the ranks meet in `_hash_together`: nobody may write before all have looked, else what is
        missing, and so what a shard of it means, would differ between ranks."""
        return TensorCache(self._cache_dir, kind, self._runtime.rank)

    def _hash_together(self, paths: Sequence[str | os.PathLike]) -> None:
        """Each rank reads its shard of the files, so that the keys can be made without each reading all of them."""
        # model files of many GB, so with the time that loading may take
        with self._runtime.heartbeat.phase("loading"):
            for shard in self._rounds:
                self._hashes.of(shard_of(paths, shard))
                self._hashes.save()
                self._runtime.barrier("reading the files")
                self._hashes.refresh()

    def _encode_together(self, keys: Sequence[str | None], cache: TensorCache, encode: Encode) -> dict[int, str]:
        """Encodes what is missing, round by round, until every rank finds everything; returns what is unusable.

        What a rank does depends only on what all ranks know, so that all meet equally often.
        """
        unusable: dict[int, str] = {}
        with self._runtime.heartbeat.phase("caching"):
            for shard in self._rounds:
                unusable = self._gathered(encode(shard, unusable, self._go_on), f"encoding {cache.kind}")
                cache.refresh()
                missing = any(key not in cache for sample, key in enumerate(keys) if sample not in unusable)
                if not any(self._runtime.gather(missing, f"looking for {cache.kind}")):
                    break
        return unusable

    def _gathered(self, unusable: dict[int, str], why: str) -> dict[int, str]:
        """What any rank found unusable, the same on all; of several reasons that of the lowest rank."""
        merged: dict[int, str] = {}
        for pairs in self._runtime.gather(list(unusable.items()), why):  # pairs: a key of JSON would become a string
            merged = dict(pairs) | merged
        return dict(sorted(merged.items()))

    def _go_on(self, text: str) -> None:
        self._runtime.heartbeat.beat()
        self._progress(text)


def _rounds(runtime: Runtime, everyone_encodes: bool) -> list[Shard]:
    """This rank's shard of the work of all nodes, then of what its node does not see of the other nodes' work.

    The second is for nodes without a shared disk; on one node there is no other's work.
    """
    if everyone_encodes:
        rounds = [(runtime.rank, runtime.world_size), (runtime.local_rank, runtime.local_world_size)]
    elif runtime.local_rank == 0:
        rounds = [(runtime.node_rank, runtime.num_nodes), WHOLE]
    else:
        rounds = [None, None]
    return rounds if runtime.num_nodes > 1 else rounds[:1]
