"""The keys under which latents and text embeddings are cached.

A key is a hash of everything that a tensor depends on: the file's bytes, its shape and crop, the encoder's weights and
the dtype. Entries are therefore reused after a folder is moved, an image is renamed or the number of ranks changes,
and never after the content has changed.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, TypeVar

import numpy as np

from modules.config.quantizations import EIGHT_BITS
from modules.data.clips import clip_of
from modules.data.conditions import conditions_of
from modules.data.crops import crop_of_sample
from modules.data.FileHashes import FileHashes
from modules.data.image_views import augmentation_of
from modules.data.masks import mask_files, mask_of

if TYPE_CHECKING:
    from modules.data.buckets import Buckets
    from modules.data.Dataset import Dataset
    from modules.families.Family import Family
    from modules.weights.BaseModel import BaseModel

T = TypeVar("T")

# Part of every key; to be increased whenever the same input is encoded differently.
ENCODING_VERSION = 1


def latent_keys(dataset: Dataset, buckets: Buckets, base: BaseModel, hashes: FileHashes) -> list[str | None]:
    """The cache key of each sample's latents, None if the image or what belongs to it can't be read."""
    names = encoders_of(base.family)
    encoder = hashes.combined(base.component_files(*names), _precision(base, names), f"v{ENCODING_VERSION}")
    contents = _of_each_view(dataset, hashes.of)
    others = _contents_of_others(dataset, hashes)
    conditions = conditions_of(base.family)
    keys: list[str | None] = []
    for sample, (content, bucket) in enumerate(zip(contents, buckets.index.tolist(), strict=True)):
        augmentation = augmentation_of(dataset, sample).cache_key_part
        # Without augmentation, crop, mask or conditions nothing is added, so the keys of plain images never change.
        parts = [content, buckets.shapes[bucket], encoder, *([augmentation] if augmentation else [])]
        if crop := crop_of_sample(dataset, sample):
            parts.append({"crop": crop.crop})
        mask = mask_of(dataset, sample)
        if mask:
            parts.append({"mask": others[mask]})
        if clip := clip_of(dataset, sample):
            of_folder = [] if clip.folder_fps is None else [clip.folder_fps]
            parts.append({"clip": [clip.start, clip.num_frames, clip.fps, *of_folder]})
        for condition in conditions:
            parts += condition.key_parts(dataset, buckets, sample, others)
        needed = (path for files in dataset.files_of(sample).values() for path in files)
        is_readable = content is not None and all(others[path] is not None for path in needed)
        keys.append(_key(*parts) if is_readable else None)
    return keys


def encoders_of(family: Family) -> tuple[str, ...]:
    """The components that latents, and what is cached with them, are encoded with."""
    return family.vae, *family.condition_components


def text_keys(captions: Sequence[str], base: BaseModel, hashes: FileHashes, images: Sequence[list] = ()) -> list[str]:
    """The cache key of each caption's embeddings.

    images: of each caption, as from `image_parts`, if the text encoders see images.
    """
    files = base.component_files(*base.family.text_components)
    precision = _precision(base, base.family.text.encoders)

    def encoders(options: dict) -> str:
        if base.family.text.chunks > 1:
            options["chunks"] = base.family.text.chunks
        if base.family.text.weighted:
            options["weighted"] = True
        if base.family.text.version > 1:
            options["version"] = base.family.text.version
        if base.family.text.layer_skips:
            options["layer_skips"] = dict(base.family.text.layer_skips)
        return hashes.combined(files, precision, json.dumps(options, sort_keys=True), f"v{ENCODING_VERSION}")

    plain, empty = (encoders(base.family.text.options_for(prompt)) for prompt in ("a prompt", ""))
    if images:
        pairs = zip(captions, images, strict=True)
        return [_key(caption, plain if caption else empty, *parts) for caption, parts in pairs]
    keys = {caption: _key(caption, plain if caption else empty) for caption in set(captions)}
    return [keys[caption] for caption in captions]


def _precision(base: BaseModel, components: Sequence[str]) -> str:
    """The precision in which these components encode. Text encoders may be quantized, also where they see images."""
    is_quantizable = any(name in base.family.text.encoders for name in components)
    quantization = base.config.text_encoder_quantization if is_quantizable else "none"
    # Without quantization nothing is added, so that earlier caches stay valid.
    precision = str(base.dtype) if quantization == "none" else f"{base.dtype} {quantization}"
    if quantization in EIGHT_BITS and base.config.text_encoders:
        precision += " as stored"  # earlier, such files were quantized anew
    return precision


def image_parts(
    dataset: Dataset, buckets: Buckets, base: BaseModel, hashes: FileHashes, samples: Sequence[int]
) -> list[list]:
    """Of each sample, what determines the images that the text encoders see, for `text_keys`."""
    own, conditions = sorted({dataset.paths[sample] for sample in samples}), conditions_of(base.family)
    contents = dict(zip(own, hashes.of(own), strict=True)) | _contents_of_others(dataset, hashes)
    parts = {
        sample: [part for one in conditions for part in one.text_key_parts(dataset, buckets, sample, contents)]
        for sample in set(samples)
    }
    return [parts[sample] for sample in samples]


def _contents_of_others(dataset: Dataset, hashes: FileHashes) -> dict[str, str | None]:
    """Path of each file in the columns -> hash of its file, None if it can't be read."""
    paths = dataset.files()
    return dict(zip(paths, hashes.of(paths, mask_files(dataset)), strict=True))


def _of_each_view(dataset: Dataset, function: Callable[[list[str]], list[T]]) -> list[T]:
    """Calls `function` with the path of each image once; returns its values for every sample."""
    first = dataset.first_views
    images = np.unique(first).tolist()
    values = dict(zip(images, function([dataset.paths[sample] for sample in images]), strict=True))
    return [values[sample] for sample in first.tolist()]


def _key(*parts: object) -> str:
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:40]
