"""Encodes images and captions into the caches of latents and text embeddings."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import groupby, islice
from typing import TYPE_CHECKING, TypeVar

import numpy as np

from modules.data.cache_keys import encoders_of
from modules.data.conditions import conditions_of
from modules.data.decoding import decoded_or_reason
from modules.data.errors import ImageError
from modules.data.LatentEncoder import LatentEncoder
from modules.data.read_ahead import read_ahead
from modules.data.shards import WHOLE, Progress, Shard, shard_of
from modules.data.TensorCache import TensorCache
from modules.machine.devices import is_gpu
from modules.session.out_of_memory import must_fit

if TYPE_CHECKING:
    from PIL.Image import Image
    from torch import Tensor

    from modules.data.buckets import Buckets
    from modules.data.conditions.ConditionData import ConditionData, Decoded
    from modules.data.Dataset import Dataset
    from modules.weights.BaseModel import BaseModel

    Conditions = Sequence[ConditionData]
    Read = tuple[int, Decoded | str]  # a sample as it is read, or the reason why it can't be
    Encoded = tuple[int, dict[str, Tensor] | str]
    Encode = Callable[[Iterable[Read], Conditions, LatentEncoder], Iterator[Encoded]]

T = TypeVar("T")

IMAGES_AT_ONCE = 4


def cache_latents(
    dataset: Dataset,
    buckets: Buckets,
    keys: Sequence[str | None],
    cache: TensorCache,
    base: BaseModel,
    shard: Shard = WHOLE,
    progress: Progress = lambda text, done, total: None,
    known_unusable: dict[int, str] | None = None,
) -> dict[int, str]:
    """Encodes this rank's shard of the missing latents; returns the unusable images (sample id -> reason).

    All ranks that divide the work must have seen the same cache; otherwise they disagree on what is missing, and some
    images are encoded by none of them.
    known_unusable: images that are not tried again; they are included in the result.
    """
    unusable = {sample: _why_without_key(dataset, sample) for sample, key in enumerate(keys) if key is None}
    unusable |= known_unusable or {}
    tried = [None if sample in unusable else key for sample, key in enumerate(keys)]
    missing = shard_of(_first_of_each_key(tried, cache), shard)
    if not missing:
        return unusable
    with must_fit("the VAE"), base.using(*encoders_of(base.family)):
        found = _encode_images(missing, dataset, buckets, keys, cache, base, progress)
    by_key = {keys[sample]: reason for sample, reason in found.items()}
    return unusable | {sample: by_key[key] for sample, key in enumerate(tried) if key in by_key}


def cache_text(
    captions: Sequence[str],
    keys: Sequence[str],
    cache: TensorCache,
    base: BaseModel,
    shard: Shard = WHOLE,
    progress: Progress = lambda text, done, total: None,
    images_of: Callable[[int], list[Image]] | None = None,
) -> None:
    """Encodes this rank's shard of the captions that are missing in the cache.

    images_of: position of a caption -> the images that the encoders see with it. Raises ImageError if one of them
        can't be read.
    """
    import torch

    from modules.families.conditioning import encode_records

    missing = shard_of(_first_of_each_key(keys, cache), shard)
    if not missing:
        return
    done = 0
    with (
        must_fit("the text encoders", "model.text_encoder_quantization"),
        base.using(*base.family.text_components) as pipe,
        torch.no_grad(),
    ):
        for chunk in _chunks(missing, base.family.text.at_once):
            images = [images_of(number) for number in chunk] if images_of else None
            records = encode_records(base.family, pipe, [captions[number] for number in chunk], images)
            for number, record in zip(chunk, records, strict=True):
                cache.put(keys[number], record)
            done += len(chunk)
            progress("Caching captions", done, len(missing))


def _encode_images(
    missing: Sequence[int],
    dataset: Dataset,
    buckets: Buckets,
    keys: Sequence[str | None],
    cache: TensorCache,
    base: BaseModel,
    progress: Progress,
) -> dict[int, str]:
    """Caches the latents of `missing`, bucket by bucket; returns the images that can't be decoded (id -> reason)."""
    encoder, conditions = LatentEncoder(base.family, base.vae, base.pipe), conditions_of(base.family)
    unusable: dict[int, str] = {}

    def bucket_of(sample: int) -> int:
        return int(buckets.index[sample])

    samples = sorted(missing, key=bucket_of)
    # Ahead over the ends of buckets, too: a dataset has many, of a few images each. But not beside a CPU that encodes:
    # a thread of PyTorch spins while it waits for one that a reader has displaced, which costs what overlapping saves,
    # unless the readers mostly wait themselves.
    overlaps = is_gpu(base.device)
    decoded = read_ahead(lambda sample: decoded_or_reason(dataset, buckets, sample, conditions), samples, overlaps)
    all_read = zip(samples, decoded, strict=True)
    records = (
        record
        for bucket, read in groupby(all_read, lambda pair: bucket_of(pair[0]))
        for record in _encoder_of(buckets.frames[bucket], conditions)(read, conditions, encoder)
    )
    for done, (sample, record) in enumerate(records, start=1):
        if isinstance(record, str):
            unusable[sample] = record
        else:
            key = keys[sample]
            assert key is not None  # `missing` has only samples with a key
            cache.put(key, record)
        progress("Caching images", done, len(missing))
    return unusable


def _encoder_of(num_frames: int, conditions: Conditions) -> Encode:
    """What encodes the samples of a bucket."""
    if any(condition.replaces_image for condition in conditions):
        return _encode_replaced
    return _encode_clips if num_frames > 1 else _encode_stills


def _encode_stills(read: Iterable[Read], conditions: Conditions, encoder: LatentEncoder) -> Iterator[Encoded]:
    """The cache entry of each image of one bucket, or the reason why it can't be read."""
    import torch

    for chunk in _chunks(read, IMAGES_AT_ONCE):
        pixels = [image.pixels for _, image in chunk if not isinstance(image, str) and image.pixels is not None]
        latents = iter(encoder.encode(torch.from_numpy(np.stack(pixels))) if pixels else ())
        for sample, image in chunk:
            yield sample, image if isinstance(image, str) else _record(next(latents), image, conditions, encoder)


def _encode_clips(read: Iterable[Read], conditions: Conditions, encoder: LatentEncoder) -> Iterator[Encoded]:
    """Likewise of clips, whose frames are decoded while those before them are encoded, and are never all in memory."""
    for sample, clip in read:
        if isinstance(clip, str):
            yield sample, clip
            continue
        assert clip.frames is not None  # only clips have several frames
        try:
            yield sample, _record(encoder.encode_clip(clip.frames), clip, conditions, encoder)
        except ImageError as error:
            yield sample, error.reason


def _encode_replaced(read: Iterable[Read], conditions: Conditions, encoder: LatentEncoder) -> Iterator[Encoded]:
    """Likewise of what a condition decodes in place of images."""
    encode = next(condition.encode_pixels for condition in conditions if condition.replaces_image)
    for sample, image in read:
        if isinstance(image, str):
            yield sample, image
            continue
        assert image.pixels is not None  # it takes no clips
        yield sample, _record(encode(image.pixels, encoder), image, conditions, encoder)


def _record(latents: Tensor, decoded: Decoded, conditions: Conditions, encoder: LatentEncoder) -> dict[str, Tensor]:
    """The cache entry of a sample with these latents."""
    record = {"latents": latents}
    if decoded.mask is not None:
        record["mask"] = _mask_of_latents(decoded.mask, latents)
    for condition in conditions:
        record |= condition.encode(decoded, latents, encoder)
    return record


def _mask_of_latents(mask: np.ndarray, latents: Tensor) -> Tensor:
    """A pixel mask [1, H, W] averaged over the area of each latent cell, [1, h, w]."""
    import torch

    height, width = latents.shape[-2:]
    return torch.nn.functional.adaptive_avg_pool2d(torch.from_numpy(mask), (height, width))


def _why_without_key(dataset: Dataset, sample: int) -> str:
    return " or its ".join(["it", *dataset.files_of(sample)]) + " can't be read"


def _first_of_each_key(keys: Sequence[str | None], cache: TensorCache) -> list[int]:
    """The first position of each key that is missing in the cache, in order."""
    first: dict[str, int] = {}
    for position, key in enumerate(keys):
        if key is not None and key not in cache:
            first.setdefault(key, position)
    return list(first.values())


def _chunks(items: Iterable[T], size: int) -> Iterator[list[T]]:
    items = iter(items)
    while chunk := list(islice(items, size)):
        yield chunk
