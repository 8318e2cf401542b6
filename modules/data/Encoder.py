"""A run's pictures and captions, encoded into the caches where they are missing, and read back from there."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING

from modules.data.batches import CachedRecords, PixelRecords
from modules.data.encoding import Progress, cache_latents, cache_text, find_undecodable, latent_keys, text_keys
from modules.data.errors import PictureError
from modules.data.FileHashes import FileHashes
from modules.data.TensorCache import TensorCache
from modules.families.latents import latent_shape

if TYPE_CHECKING:
    from modules.data.buckets import Buckets
    from modules.data.concepts import Dataset
    from modules.weights.BaseModel import BaseModel


class Encoder:
    """Makes the sources of a run's tensors; each loads the encoder that it needs only where something is missing.

    progress: told how far the first encoding is; what it raises ends the encoding, and what is cached stays.
    tell: told of entries that are made again while training goes on.
    `unusable`: sample id -> why its picture can't be used, once `latents` or `pixels` was called.
    """

    def __init__(
        self,
        base: BaseModel,
        dataset: Dataset,
        buckets: Buckets,
        cache_dir: str | os.PathLike,
        rank: int,
        progress: Progress,
        tell: Progress,
    ):
        self.unusable: dict[int, str] = {}
        self._base = base
        self._dataset = dataset
        self._buckets = buckets
        self._cache_dir = cache_dir
        self._rank = rank
        self._progress = progress
        self._tell = tell
        self._hashes = FileHashes(cache_dir, rank)

    def latents(self) -> CachedRecords:
        """The latents of every picture that can be used."""
        cache = TensorCache(self._cache_dir, "latents", self._rank)
        keys = latent_keys(self._dataset, self._buckets, self._base, self._hashes)
        self._hashes.save()

        def encode(progress: Progress) -> dict[int, str]:
            return cache_latents(self._dataset, self._buckets, keys, cache, self._base, progress=progress)

        def remake() -> None:
            for sample, reason in encode(self._tell).items():
                if sample not in self.unusable:  # planned for, and now its entry and the picture are both lost
                    raise PictureError(self._dataset.paths[sample], reason)

        self.unusable = encode(self._progress)
        return CachedRecords(cache, keys, remake)

    def text(self, captions: Sequence[str]) -> CachedRecords:
        """The conditioning of `captions`, by their number."""
        cache = TensorCache(self._cache_dir, "text", self._rank)
        keys = text_keys(captions, self._base, self._hashes)
        self._hashes.save()

        def encode(progress: Progress) -> None:
            cache_text(captions, keys, cache, self._base, progress=progress)

        encode(self._progress)
        return CachedRecords(cache, keys, lambda: encode(self._tell))

    def pixels(self) -> PixelRecords:
        """The pictures themselves, all decoded once to find those that can't be used."""
        vae = self._base.module(self._base.family.vae)
        self.unusable = find_undecodable(self._dataset, self._buckets, self._progress)
        return PixelRecords(self._dataset, self._buckets, lambda width, height: latent_shape(vae, width, height))
