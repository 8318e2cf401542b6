"""What a sample's tensors are read from: the caches, or the image files themselves."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Generic, TypeVar

from modules.data.BoundedMemory import BoundedMemory
from modules.data.decoding import load_pixels

if TYPE_CHECKING:
    from torch import Tensor

    from modules.data.buckets import Buckets
    from modules.data.Dataset import Dataset
    from modules.data.TensorCache import TensorCache


Name = TypeVar("Name", int, str, tuple[str, int])


@dataclass(frozen=True, eq=False)
class CachedRecords(Generic[Name]):
    """The cache entries of samples, by id, or of captions, by text or, where it is seen with images, by both.

    keys: sample id, caption or (caption, sample id) -> cache key.
    remake: encodes damaged entries again.
    """

    cache: TensorCache
    keys: Mapping[Name, str]
    remake: Callable[[], object]

    def record(self, name: Name) -> dict[str, Tensor]:
        key = self.keys[name]
        record = self.cache.get(key)
        if record is None:
            self.remake()
            record = self.cache.get(key)
        if record is None:
            raise RuntimeError(f"the entry of {name!r} was encoded again and can't be read")
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
