"""Encodes a run's images and captions into the caches, if they are not there already."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING

from modules.data.cache_keys import encoders_of, image_parts, latent_keys, text_keys
from modules.data.caching import cache_latents, cache_text
from modules.data.conditions import conditions_of
from modules.data.decoding import find_undecodable
from modules.data.drawn_images import DrawnRecords
from modules.data.errors import ImageError
from modules.data.FileHashes import FileHashes
from modules.data.masks import mask_files
from modules.data.records import CachedRecords, PixelRecords
from modules.data.shards import WHOLE, Progress, Shard, shard_of
from modules.data.TensorCache import TensorCache
from modules.families.latents import latent_shape

if TYPE_CHECKING:
    from PIL.Image import Image

    from modules.data.buckets import Buckets
    from modules.data.Dataset import Dataset
    from modules.distributed.Runtime import Runtime
    from modules.weights.BaseModel import BaseModel

# Encodes a shard of what is missing, except these unusable images; returns all images known to be unusable.
Encode = Callable[[Shard, dict[int, str], Progress], dict[int, str]]


class DatasetEncoder:
    """Returns the records that batches are built from, after encoding what the caches lack.

    An encoder is loaded only if something is missing. The ranks divide the work and synchronize after it, so every
    rank must call `latents`, `text` and `pixels`.
    everyone_encodes: every rank encodes a shard; otherwise only the first rank of each node does, and the others wait.
    progress: receives the progress of this rank; an exception that it raises ends the encoding and keeps the cache.
    tell: receives the progress of encoding damaged entries again during training.
    unusable: sample id -> why its image can't be used. Set by `latents` and `pixels`; the same on all ranks.
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

    def latents(self) -> CachedRecords[int]:
        """The latents of every usable image."""
        cache = self._scanned_cache("latents")
        files = dict.fromkeys([*self._dataset.paths, *self._dataset.files()])
        self._hash_together([*self._base.component_files(*encoders_of(self._base.family)), *files])
        keys = latent_keys(self._dataset, self._buckets, self._base, self._hashes)
        self._hashes.save()

        def encode(shard: Shard, unusable: dict[int, str], progress: Progress) -> dict[int, str]:
            return cache_latents(
                self._dataset, self._buckets, keys, cache, self._base, shard, progress, known_unusable=unusable
            )

        def remake() -> None:
            for sample, reason in encode(WHOLE, self.unusable, self._tell).items():
                if sample not in self.unusable:  # part of the plan, but now both the entry and the image are lost
                    raise ImageError(self._dataset.paths[sample], reason)

        self.unusable = self._encode_together(keys, cache, encode)
        by_sample = {sample: key for sample, key in enumerate(keys) if key is not None}
        return CachedRecords(cache, by_sample, remake)

    def text(self, captions: Sequence[str]) -> CachedRecords[str]:
        """The conditioning of `captions`, which must not repeat."""
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

    def text_with_images(self, texts: Sequence[tuple[str, int]]) -> CachedRecords[tuple[str, int]]:
        """The conditioning of (caption, sample) pairs, for text encoders that see images of the sample.

        Call `latents` first, which finds the samples that can't be used: theirs are left out.
        """
        texts = [(caption, sample) for caption, sample in texts if sample not in self.unusable]
        captions, samples = [caption for caption, _ in texts], [sample for _, sample in texts]
        cache = self._scanned_cache("text")
        encoders = self._base.component_files(*self._base.family.text_components)
        self._hash_together([*map(str, encoders), *self._dataset.files()])
        parts = image_parts(self._dataset, self._buckets, self._base, self._hashes, samples)
        keys = text_keys(captions, self._base, self._hashes, parts)
        self._hashes.save()
        conditions = conditions_of(self._base.family)

        def images(number: int) -> list[Image]:
            sample = samples[number]
            return [image for one in conditions for image in one.images_of_text(self._dataset, self._buckets, sample)]

        def encode(shard: Shard, unusable: dict[int, str], progress: Progress) -> dict[int, str]:
            cache_text(captions, keys, cache, self._base, shard, progress, images)
            return unusable

        self._encode_together(keys, cache, encode)
        return CachedRecords(cache, dict(zip(texts, keys, strict=True)), lambda: encode(WHOLE, {}, self._tell))

    def pixels(self) -> PixelRecords:
        """The images themselves, all decoded once to find the unusable ones."""
        shape = partial(latent_shape, self._base.family, self._base.vae)
        with self._runtime.heartbeat.phase("caching"):
            found = find_undecodable(self._dataset, self._buckets, self._rounds[0], self._report)
            self.unusable = self._gathered(found, "checking the images")
        return PixelRecords(self._dataset, self._buckets, shape)

    def drawn(self) -> DrawnRecords:
        """The shapes of latents that the method draws itself, which takes no weights."""
        vae = self._base.meta_module(self._base.family.vae)
        return DrawnRecords(self._buckets, partial(latent_shape, self._base.family, vae))

    # --- together with the other ranks ----------------------------------------------------------------------------

    def _scanned_cache(self, kind: str) -> TensorCache:
        """Must be called before the barriers of `_hash_together`: no rank may write before all ranks have listed the
        cache, or they would disagree on what is missing and divide the work differently."""
        return TensorCache(self._cache_dir, kind, self._runtime.rank)

    def _hash_together(self, paths: Sequence[str | os.PathLike]) -> None:
        """Hashes `paths`, each rank its shard, so that no rank has to read all of the files."""
        # "loading" allows more time than "caching": model files have many GB
        masks = mask_files(self._dataset)
        with self._runtime.heartbeat.phase("loading"):
            for shard in self._rounds:
                self._hashes.of(shard_of(paths, shard), masks)
                self._hashes.save()
                self._runtime.barrier("reading the files")
                self._hashes.refresh()

    def _encode_together(self, keys: Sequence[str | None], cache: TensorCache, encode: Encode) -> dict[int, str]:
        """Encodes what is missing, round by round, until every rank finds all entries; returns the unusable images.

        Control flow depends only on values that all ranks share, so all ranks run the same collectives.
        """
        unusable: dict[int, str] = {}
        with self._runtime.heartbeat.phase("caching"):
            for shard in self._rounds:
                unusable = self._gathered(encode(shard, unusable, self._report), f"encoding {cache.kind}")
                cache.refresh()
                usable = (key for sample, key in enumerate(keys) if sample not in unusable)
                missing = any(key is not None and key not in cache for key in usable)
                if not any(self._runtime.gather(missing, f"looking for {cache.kind}")):
                    break
        return unusable

    def _gathered(self, unusable: dict[int, str], why: str) -> dict[int, str]:
        """The images that any rank found unusable, with the reason of the lowest rank; the same on all ranks."""
        merged: dict[int, str] = {}
        for pairs in self._runtime.gather(list(unusable.items()), why):  # pairs: JSON would turn int keys into strings
            merged = dict(pairs) | merged
        return dict(sorted(merged.items()))

    def _report(self, text: str, done: int, total: int) -> None:
        self._runtime.heartbeat.beat()
        self._progress(text, done, total)


def _rounds(runtime: Runtime, everyone_encodes: bool) -> list[Shard]:
    """This rank's shard in each round of encoding.

    The first round divides the work among all nodes. The second, for several nodes without a shared disk, divides what
    a node still misses among its own ranks.
    """
    rounds: list[Shard] = [None, None]
    if everyone_encodes:
        rounds = [(runtime.rank, runtime.world_size), (runtime.local_rank, runtime.local_world_size)]
    elif runtime.local_rank == 0:
        rounds = [(runtime.node_rank, runtime.num_nodes), WHOLE]
    return rounds if runtime.num_nodes > 1 else rounds[:1]
