"""What a sample's tensors are read from: the caches, or the image files themselves."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from modules.data.BoundedMemory import BoundedMemory
from modules.data.caching import load_pixels

if TYPE_CHECKING:
    from torch import Tensor

    from modules.data.buckets import Buckets
    from modules.data.concepts import Dataset
    from modules.data.TensorCache import TensorCache


@dataclass(frozen=True, eq=False)
class CachedRecords:
    """The cache entries of samples, by id, or of captions, by text.

    keys: sample id or caption -> cache key.
    remake: encodes damaged entries again.
    """

    cache: TensorCache
    keys: Sequence[str | None] | Mapping[str, str]
    remake: Callable[[], object]

    def record(self, sample: int | str) -> dict[str, Tensor]:
        key = self.keys[sample]
        record = self.cache.get(key)
        if record is None:
            self.remake()
            record = self.cache.get(key)
        return record

    def noise_shape(self, batch: dict[str, Tensor]) -> tuple[int, ...]:
        return tuple(batch["latents"].shape[1:])


@dataclass(frozen=True, eq=False)
class PixelRecords:
    """The decoded images of samples, for methods that train on pixels instead of latents.

    latent_shape: (width, height) in pixels -> shape of the latents.
    """

    dataset: Dataset
    buckets: Buckets
    latent_shape: Callable[[int, int], tuple[int, ...]]
    memory: BoundedMemory = field(default_factory=BoundedMemory)

    def record(self, sample: int) -> dict[str, Tensor]:
        import torch

        record = self.memory.get(str(sample))
        if record is None:
            record = {"pixels": torch.from_numpy(load_pixels(self.dataset, self.buckets, sample))}
            self.memory.keep(str(sample), record)
        return record

    def noise_shape(self, batch: dict[str, Tensor]) -> tuple[int, ...]:
        height, width = batch["pixels"].shape[-2:]
        return self.latent_shape(width, height)
