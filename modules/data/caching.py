"""Encodes images and captions into the caches of latents and text embeddings, keyed by content.

A key is a hash of everything that a tensor depends on: the file's bytes, its shape and crop, the encoder's weights and
the dtype. Entries are therefore reused after a folder is moved, an image is renamed or the number of ranks changes,
and never after the content has changed.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, TypeVar

import numpy as np

from modules.data.clips import BOTH_ENDS, clip_frames, load_clip
from modules.data.errors import DataError, ImageError
from modules.data.FileHashes import FileHashes
from modules.data.image_views import augmentation_of
from modules.data.images import adjust_colors, fit_image, load_image, to_array
from modules.data.inpainting import add_inpainting, inpainting_key, inpainting_masks
from modules.data.LatentEncoder import LatentEncoder
from modules.data.layers import add_whole_image, encode_layers, load_layers
from modules.data.masks import load_mask
from modules.data.references import RECORD, load_references, reference_views
from modules.data.TensorCache import TensorCache
from modules.session.out_of_memory import must_fit

if TYPE_CHECKING:
    from PIL.Image import Image
    from torch import Tensor

    from modules.data.buckets import Buckets
    from modules.data.concepts import Dataset
    from modules.families.Family import Family
    from modules.weights.BaseModel import BaseModel

T = TypeVar("T")

# Part of every key; to be increased whenever the same input is encoded differently.
ENCODING_VERSION = 1
IMAGES_AT_ONCE = 4
NUM_READERS = 4

Progress = Callable[[str, int, int], None]  # (activity, items done, items in total)
# (index, count): every count-th item from index on; None for a rank that does none of the work.
Shard = tuple[int, int] | None
WHOLE: Shard = (0, 1)


def latent_keys(dataset: Dataset, buckets: Buckets, base: BaseModel, hashes: FileHashes) -> list[str | None]:
    """The cache key of each sample's latents, None if the image or what belongs to it can't be read."""
    encoder = hashes.combined(base.component_files(*encoders_of(base.family)), str(base.dtype), f"v{ENCODING_VERSION}")
    contents = _of_each_view(dataset, hashes.of)
    others = _contents_of_others(dataset, hashes)
    keys: list[str | None] = []
    for sample, (content, bucket) in enumerate(zip(contents, buckets.index.tolist(), strict=True)):
        augmentation = augmentation_of(dataset, sample).cache_key_part
        # Without augmentation, mask or references nothing is added, so the keys of plain images never change.
        parts = [content, buckets.shapes[bucket], encoder, *([augmentation] if augmentation else [])]
        mask = dataset.mask_of(sample)
        if mask:
            parts.append({"mask": others[mask]})
        references, layers = dataset.references_of(sample), dataset.layers_of(sample)
        if clip := dataset.clip_of(sample):
            of_folder = [] if clip.folder_fps is None else [clip.folder_fps]
            parts.append({"clip": [clip.start, clip.num_frames, clip.fps, *of_folder]})
        if base.family.needs_first_frame:
            parts.append({"first_frame": True})
        if clip and clip.last_given:
            parts.append({"last_frame": True})
        if inpainting := inpainting_key(dataset, sample):
            parts.append(inpainting)
        if references:
            listed = [[others[one.path], one.width, one.height] for one in references]
            if base.family.reference_size:  # else sizes follow from what is in the key
                views = reference_views(dataset, buckets, sample, base.family)
                listed = [[*part, *view.size] for part, view in zip(listed, views, strict=True)]
            parts.append({"references": listed})
        if layers:
            parts.append({"layers": [others[path] for path in layers]})
        needed = [*([mask] if mask else []), *(one.path for one in references), *layers]
        is_readable = content is not None and all(others[path] is not None for path in needed)
        keys.append(_key(*parts) if is_readable else None)
    return keys


def encoders_of(family: Family) -> tuple[str, ...]:
    """The components that latents, and what is cached with them, are encoded with."""
    return family.vae, *family.image_components


def text_keys(
    captions: Sequence[str], base: BaseModel, hashes: FileHashes, references: Sequence[list] = ()
) -> list[str]:
    """The cache key of each caption's embeddings.

    references: of each caption, as from `reference_parts`, if the text encoders see them.
    """
    files = base.component_files(*base.family.text_components)
    quantization = base.config.text_encoder_quantization
    # Without quantization nothing is added, so that earlier caches stay valid.
    precision = str(base.dtype) if quantization == "none" else f"{base.dtype} {quantization}"

    def encoders(options: dict) -> str:
        if base.family.text.chunks > 1:
            options["chunks"] = base.family.text.chunks
        if base.family.text.weighted:
            options["weighted"] = True
        if base.family.text.layer_skips:
            options["layer_skips"] = dict(base.family.text.layer_skips)
        return hashes.combined(files, precision, json.dumps(options, sort_keys=True), f"v{ENCODING_VERSION}")

    plain, empty = (encoders(base.family.text.options_for(prompt)) for prompt in ("a prompt", ""))
    if references:
        pairs = zip(captions, references, strict=True)
        return [_key(caption, plain if caption else empty, {"references": parts}) for caption, parts in pairs]
    keys = {caption: _key(caption, plain if caption else empty) for caption in set(captions)}
    return [keys[caption] for caption in captions]


def reference_parts(
    dataset: Dataset, buckets: Buckets, base: BaseModel, hashes: FileHashes, samples: Sequence[int]
) -> list[list]:
    """Of each sample, what determines the references that the text encoders see, for `text_keys`."""
    contents = _contents_of_others(dataset, hashes)
    parts = {
        sample: [view.key_part(contents[view.path]) for view in reference_views(dataset, buckets, sample, base.family)]
        for sample in set(samples)
    }
    return [parts[sample] for sample in samples]


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
    references: Callable[[int], list[Image]] | None = None,
) -> None:
    """Encodes this rank's shard of the captions that are missing in the cache.

    references: position of a caption -> the images that the encoders see with it. Raises ImageError if one of them
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
            images = [references(number) for number in chunk] if references else None
            records = encode_records(base.family, pipe, [captions[number] for number in chunk], images)
            for number, record in zip(chunk, records, strict=True):
                cache.put(keys[number], record)
            done += len(chunk)
            progress("Caching captions", done, len(missing))


def find_undecodable(
    dataset: Dataset, buckets: Buckets, shard: Shard = WHOLE, progress: Progress = lambda text, done, total: None
) -> dict[int, str]:
    """Decodes this rank's shard of all images, for methods that train on pixels.

    Returns the unusable images (sample id -> reason).
    """
    undecodable: dict[int, str] = {}
    samples = shard_of(np.flatnonzero(dataset.num_views).tolist(), shard)  # one view per image is enough
    images = _read_ahead(lambda sample: _pixels_or_reason(dataset, buckets, sample), samples)
    for done, (sample, pixels) in enumerate(zip(samples, images, strict=True), start=1):
        if isinstance(pixels, str):
            undecodable[sample] = pixels
        progress("Checking images", done, len(samples))
    return undecodable


def check_unusable(dataset: Dataset, unusable: dict[int, str], max_share: float) -> None:
    """Raises DataError if more images are unusable than data.max_unreadable_share allows."""
    images = dataset.images_of(unusable)
    count = len(images) + len(dataset.unreadable)
    total = dataset.num_images + len(dataset.unreadable)
    if count > max_share * total or count == total:
        listed = [path for path, _ in dataset.unreadable] + [dataset.paths[sample] for sample in images]
        raise DataError(
            f"{count} of {total} images can't be used, more than data.max_unreadable_share {max_share:g} allows, "
            f"such as {listed[0]}: repair or remove them, or increase the setting."
        )


def shard_of(values: Sequence[T], shard: Shard) -> Sequence[T]:
    """The items of `values` in a shard. Shards of the same values differ in size by at most one."""
    return values[shard[0] :: shard[1]] if shard else values[:0]


def load_pixels(dataset: Dataset, buckets: Buckets, sample: int) -> np.ndarray:
    """The image of a sample as float32[3, H, W] in [-1, 1], fitted to its bucket, or its clip as float32[3, F, H, W].

    With layers, as from `load_layers`. Raises ImageError.
    """
    if dataset.layers is not None:
        return load_layers(dataset, buckets, sample)
    augmentation = augmentation_of(dataset, sample)
    if clip := dataset.clip_of(sample):
        return load_clip(dataset.paths[sample], clip, buckets.shape_of(sample), augmentation)
    image = fit_image(load_image(dataset.paths[sample]), *buckets.shape_of(sample), augmentation)
    return to_array(adjust_colors(image, augmentation))


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
    encoder = LatentEncoder(base.family, base.vae, base.pipe)
    unusable: dict[int, str] = {}
    done = 0
    for bucket in sorted({int(buckets.index[sample]) for sample in missing}):
        of_bucket = [sample for sample in missing if buckets.index[sample] == bucket]
        encode = _encode_layers if dataset.layers else _encode_clips if buckets.frames[bucket] > 1 else _encode_stills
        for sample, record in encode(of_bucket, dataset, buckets, encoder):
            if isinstance(record, str):
                unusable[sample] = record
            else:
                key = keys[sample]
                assert key is not None  # `missing` has only samples with a key
                cache.put(key, record)
            done += 1
            progress("Caching images", done, len(missing))
    return unusable


def _encode_stills(
    samples: Sequence[int], dataset: Dataset, buckets: Buckets, encoder: LatentEncoder
) -> Iterator[tuple[int, dict[str, Tensor] | str]]:
    """The cache entry of each image of one bucket, or the reason why it can't be read."""
    import torch

    images = _read_ahead(lambda sample: _image_or_reason(dataset, buckets, sample, encoder.family), samples)
    for chunk in _chunks(zip(samples, images, strict=True), IMAGES_AT_ONCE):
        pixels = [image.pixels for _, image in chunk if not isinstance(image, str)]
        latents = iter(encoder.encode(torch.from_numpy(np.stack(pixels))) if pixels else ())
        for sample, image in chunk:
            yield sample, image if isinstance(image, str) else _record(next(latents), image, encoder)


def _encode_clips(
    samples: Sequence[int], dataset: Dataset, buckets: Buckets, encoder: LatentEncoder
) -> Iterator[tuple[int, dict[str, Tensor] | str]]:
    """Likewise of clips, whose frames are decoded while those before them are encoded, and are never all in memory."""
    for sample in samples:
        clip, shape = dataset.clip_of(sample), buckets.shape_of(sample)
        assert clip is not None  # only clips have several frames
        frames = partial(clip_frames, dataset.paths[sample], clip, shape, augmentation_of(dataset, sample))
        others = _others_or_reason(dataset, buckets, sample, encoder.family)
        if isinstance(others, str):
            yield sample, others
            continue
        try:
            record = _record(encoder.encode_clip(frames), others, encoder)
            if encoder.family.needs_first_frame and not encoder.family.needs_last_frame:
                record["first_frame"] = encoder.encode_ends(frames, clip.num_frames, last=False)
            if encoder.family.image_components:
                record["image_features"] = encoder.image_features(frames)
            if clip.last_given:
                record[BOTH_ENDS] = encoder.encode_ends(frames, clip.num_frames, last=True)
            yield sample, record
        except ImageError as error:
            yield sample, error.reason


def _encode_layers(
    samples: Sequence[int], dataset: Dataset, buckets: Buckets, encoder: LatentEncoder
) -> Iterator[tuple[int, dict[str, Tensor] | str]]:
    """Likewise of images with their layers."""
    images = _read_ahead(lambda sample: _image_or_reason(dataset, buckets, sample, encoder.family), samples)
    for sample, image in zip(samples, images, strict=True):
        if isinstance(image, str):
            yield sample, image
            continue
        record = _record(encode_layers(image.pixels, encoder), image, encoder)
        add_whole_image(record)
        yield sample, record


def _record(latents: Tensor, others: _Others, encoder: LatentEncoder) -> dict[str, Tensor]:
    """The cache entry of a sample with these latents."""
    import torch

    record = {"latents": latents}
    if others.mask is not None:
        record["mask"] = _mask_of_latents(others.mask, latents)
    for number, reference in enumerate(others.references):
        record[f"{RECORD}{number}"] = encoder.encode(torch.from_numpy(reference)[None])[0]
    if isinstance(others, _DecodedImage) and others.painted is not None:
        add_inpainting(record, others.pixels, others.painted, encoder)
    return record


def _contents_of_others(dataset: Dataset, hashes: FileHashes) -> dict[str, str | None]:
    """Path of a mask, a reference image or a layer -> hash of its file, None if it can't be read."""
    paths = dataset.other_files
    return dict(zip(paths, hashes.of(paths), strict=True))


def _of_each_view(dataset: Dataset, function: Callable[[list[str]], list[T]]) -> list[T]:
    """Calls `function` with the path of each image once; returns its values for every sample."""
    first = dataset.first_views
    images = np.unique(first).tolist()
    values = dict(zip(images, function([dataset.paths[sample] for sample in images]), strict=True))
    return [values[sample] for sample in first.tolist()]


def _pixels_or_reason(dataset: Dataset, buckets: Buckets, sample: int) -> np.ndarray | str:
    try:
        return load_pixels(dataset, buckets, sample)
    except ImageError as error:
        return error.reason


@dataclass(frozen=True, eq=False)
class _Others:
    """What belongs to an image or clip: its mask if it has one, and its reference images, fitted to training sizes."""

    mask: np.ndarray | None
    references: list[np.ndarray]


@dataclass(frozen=True, eq=False)
class _DecodedImage(_Others):
    """An image with what belongs to it. painted: as from `inpainting_masks`; None if the model paints no part of it."""

    pixels: np.ndarray
    painted: np.ndarray | None


def _image_or_reason(dataset: Dataset, buckets: Buckets, sample: int, family: Family) -> _DecodedImage | str:
    """The decoded image of a sample, or the reason why it can't be read."""
    pixels = _pixels_or_reason(dataset, buckets, sample)
    if isinstance(pixels, str):
        return pixels
    others = _others_or_reason(dataset, buckets, sample, family)
    if isinstance(others, str):
        return others
    painted = None
    if dataset.inpainting is not None:
        painted = inpainting_masks(dataset, sample, buckets.shape_of(sample), others.mask)
    return _DecodedImage(others.mask, others.references, pixels, painted)


def _others_or_reason(dataset: Dataset, buckets: Buckets, sample: int, family: Family) -> _Others | str:
    """What belongs to a sample's image or clip, or the reason why it can't be read."""
    mask, path = None, dataset.mask_of(sample)
    if path:
        size = int(dataset.widths[sample]), int(dataset.heights[sample])
        try:
            augmentation, is_alpha = augmentation_of(dataset, sample), path == dataset.paths[sample]
            mask = load_mask(path, size, *buckets.shape_of(sample), augmentation, is_alpha)
        except ImageError as error:
            return f"its mask can't be read: {error.reason}"
    try:
        return _Others(mask, load_references(dataset, buckets, sample, family))
    except ImageError as error:
        return f"its reference {error.path} can't be read: {error.reason}"


def _mask_of_latents(mask: np.ndarray, latents: Tensor) -> Tensor:
    """A pixel mask [1, H, W] averaged over the area of each latent cell, [1, h, w]."""
    import torch

    height, width = latents.shape[-2:]
    return torch.nn.functional.adaptive_avg_pool2d(torch.from_numpy(mask), (height, width))


def _why_without_key(dataset: Dataset, sample: int) -> str:
    references, layers = dataset.references_of(sample), dataset.layers_of(sample)
    others = {"mask": dataset.mask_of(sample), "reference": references, "layer": layers}
    return " or its ".join(["it", *(name for name, has in others.items() if has)]) + " can't be read"


def _first_of_each_key(keys: Sequence[str | None], cache: TensorCache) -> list[int]:
    """The first position of each key that is missing in the cache, in order."""
    first: dict[str, int] = {}
    for position, key in enumerate(keys):
        if key is not None and key not in cache:
            first.setdefault(key, position)
    return list(first.values())


def _read_ahead(function: Callable[[int], T], items: Iterable[int]) -> Iterator[T]:
    """Yields `function` of each item, in order, computed by threads a few items ahead."""
    with ThreadPoolExecutor(NUM_READERS) as readers:
        items = iter(items)
        waiting = [readers.submit(function, item) for item in islice(items, 2 * NUM_READERS)]
        while waiting:
            yield waiting.pop(0).result()
            waiting.extend(readers.submit(function, item) for item in islice(items, 1))


def _chunks(items: Iterable[T], size: int) -> Iterator[list[T]]:
    items = iter(items)
    while chunk := list(islice(items, size)):
        yield chunk


def _key(*parts: object) -> str:
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:40]
