"""Micro-batches of the plan's samples: cached tensors, and noise and timesteps drawn by hash."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeVar

from modules.data.Batch import Batch
from modules.data.BoundedMemory import BoundedMemory
from modules.data.draws import torch_seed, uniform
from modules.data.encoding import load_pixels

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from modules.data.buckets import Buckets
    from modules.data.concepts import Dataset
    from modules.data.plan import MicroBatch
    from modules.data.TensorCache import TensorCache

T = TypeVar("T")


@dataclass(frozen=True, eq=False)
class CachedRecords:
    """The cache entries of samples. remake: encodes again what turned out to be damaged."""

    cache: TensorCache
    keys: Sequence[str | None]
    remake: Callable[[], object]

    def record(self, sample: int) -> dict[str, Tensor]:
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
    """The pictures of samples, for methods that do not train on latents.

    latent_shape: (width, height) in pixels -> shape of a latent.
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


@dataclass(frozen=True, eq=False)
class SampleSource:
    """Makes batches of samples; every random number in them is a hash of what it is for.

    pictures: gives "latents" or "pixels" of a sample. text: gives the conditioning of a caption, None where the text
    encoder trains and encodes in the step.
    captions: of each sample, and a last one, "", which caption dropout puts in their place; `text` has its record too.
    dtype: of the tensors.
    """

    dataset: Dataset
    buckets: Buckets
    pictures: CachedRecords | PixelRecords
    captions: Sequence[str]
    text: CachedRecords | None
    caption_dropout: float
    seed: int
    dtype: torch.dtype

    def batch(self, micro_batch: MicroBatch, epoch: int) -> Batch:
        """The tensors of one micro-batch, on the CPU."""
        import torch

        draws = [(self.seed, epoch, int(sample), int(repeat)) for sample, repeat in micro_batch.samples]
        samples = [draw[2] for draw in draws]
        captions = [self._caption_number(draw) for draw in draws]
        # weights and timesteps keep float32 at least: bf16 timesteps collapse
        exact = torch.promote_types(self.dtype, torch.float32)
        weights = [self._loss_weight(sample) if micro_batch.real else 0.0 for sample in samples]
        u = [uniform(*draw, "timestep") for draw in draws]
        pictures = _stacked([self.pictures.record(sample) for sample in samples])
        shape = self.pictures.noise_shape(pictures)
        return Batch(
            weight=torch.tensor(weights, dtype=torch.float64).to(exact),
            count=len(samples) if micro_batch.real else 0,
            noise=torch.stack([_noise(draw, shape) for draw in draws]).to(self.dtype),
            u=torch.tensor(u, dtype=torch.float64).to(exact),
            prompts=[self.captions[number] for number in captions],
            text=_stacked([self.text.record(number) for number in captions]) if self.text else None,
            **{name: value.to(self.dtype) for name, value in pictures.items()},
        )

    def _caption_number(self, draw: tuple[int, ...]) -> int:
        if self.caption_dropout and uniform(*draw, "caption dropout") < self.caption_dropout:
            return len(self.captions) - 1
        return draw[2]

    def _loss_weight(self, sample: int) -> float:
        return self.dataset.concepts[self.dataset.concept_index[sample]].loss_weight


def _noise(draw: tuple[int, ...], shape: tuple[int, ...]) -> Tensor:
    """Gaussian noise of a sample; float32 whatever the run's dtype, so that the same seed means the same noise."""
    import torch

    generator = torch.Generator().manual_seed(torch_seed(*draw, "noise"))
    return torch.randn(shape, generator=generator)


def _stacked(records: list[dict[str, Tensor]]) -> dict[str, Tensor]:
    import torch

    return {name: torch.stack([record[name] for record in records]) for name in records[0]}


def prefetch(make: Iterable[T], depth: int) -> Iterator[T]:
    """The items of `make`, made in a thread up to `depth` ahead of use. What it raises is raised here."""
    if depth == 0:
        yield from make
        return
    items: queue.Queue = queue.Queue(depth)
    closed = threading.Event()
    end = object()

    def fill() -> None:
        try:
            for item in make:
                if not _put(items, (item, None), closed):
                    return
            _put(items, (end, None), closed)
        except BaseException as error:
            _put(items, (end, error), closed)

    thread = threading.Thread(target=fill, name="prefetch", daemon=True)
    thread.start()
    try:
        while True:
            item, error = items.get()
            if error is not None:
                raise error
            if item is end:
                return
            yield item
    finally:
        closed.set()
        thread.join()


def _put(items: queue.Queue, item: object, closed: threading.Event) -> bool:
    """Whether there is still somebody to take it."""
    while not closed.is_set():
        try:
            items.put(item, timeout=0.1)
            return True
        except queue.Full:
            continue
    return False
