"""Remembers what was measured of a dataset's images, so that looking at it a second time takes no decoding."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

from modules.config.atomic_file import write_bytes
from modules.curation.measures import VERSION, ImageMeasures, measure
from modules.data.errors import ImageError
from modules.data.FileHashes import FileHashes
from modules.session.atomic import remove_folder
from modules.session.user_cache import user_cache

if TYPE_CHECKING:
    from modules.config.ConceptConfig import ConceptConfig

NUM_READERS = min(8, os.cpu_count() or 1)
KEPT_DAYS = 90  # the index of a folder that was not looked at for so long is removed when another one is written
MAX_ENTRIES = 100_000  # about 40 MB; beyond, those that were not used for longest go
SAVE_SECONDS = 10.0  # between two saves, each of which writes all entries
_CHUNK = 256  # images between two looks at whether the result is still wanted
_FILE = "measures.json"


class MeasureIndex:
    """The measures of the images in one folder, by the content of their files: a renamed image is not measured again.

    It lies in the user's cache folder, and what can't be read or written of it costs only time.
    """

    def __init__(self, folder: str):
        root = os.path.realpath(os.path.expanduser(folder))
        self._folder = user_cache() / "curation" / hashlib.sha256(os.fsencode(root)).hexdigest()[:16]
        self._hashes = FileHashes(self._folder, 0)
        self._entries: dict[str, list[Any]] = dict(_read(self._folder / _FILE))
        self._is_changed = False

    def of(
        self,
        paths: Sequence[str],
        on_done: Callable[[int], None] = lambda number: None,
        is_wanted: Callable[[], bool] = lambda: True,
    ) -> dict[str, ImageMeasures | str]:
        """The measures of each image, or why it can't be decoded.

        on_done: called with the number of images that are done. is_wanted: asked now and then; once it says no, the
        result lacks the other images.
        """
        found: dict[str, ImageMeasures | str] = {}
        saved = time.monotonic()
        with ThreadPoolExecutor(NUM_READERS) as readers:
            for start in range(0, len(paths), _CHUNK):
                if not is_wanted():
                    break
                chunk = paths[start : start + _CHUNK]
                hashes = self._hashes.of(chunk)
                for path, one in zip(chunk, readers.map(self._one, chunk, hashes), strict=True):
                    found[path] = one
                    on_done(len(found))
                if time.monotonic() - saved > SAVE_SECONDS:
                    self._save()
                    saved = time.monotonic()
        self._save()
        return found

    def _one(self, path: str, content: str | None) -> ImageMeasures | str:
        if content is None:
            return _reason(path)
        # taken out and put back, so that what was not used for longest is in front
        if values := self._entries.pop(content, None):
            with contextlib.suppress(ValueError, TypeError):  # damaged: measured again
                known = ImageMeasures.of_values(values)
                self._entries[content] = values
                return known
        try:
            measured = measure(path)
        except ImageError as error:
            return error.reason
        self._entries[content] = measured.to_values()
        self._is_changed = True
        return measured

    def _save(self) -> None:
        self._hashes.save()
        with contextlib.suppress(OSError):  # on a full disk, the next look just measures again
            if self._is_changed:
                kept = dict(list(self._entries.items())[-MAX_ENTRIES:])
                write_bytes(self._folder / _FILE, json.dumps({"version": VERSION, "measures": kept}).encode())
                _forget_unused(self._folder.parent)
            else:
                os.utime(self._folder / _FILE)
        self._is_changed = False


def measure_images(
    concepts: Sequence[ConceptConfig],
    paths: Sequence[str],
    on_done: Callable[[int], None] = lambda number: None,
    is_wanted: Callable[[], bool] = lambda: True,
) -> dict[str, ImageMeasures | str]:
    """As `MeasureIndex.of`, of images in the folders of several concepts."""
    found: dict[str, ImageMeasures | str] = {}
    left = dict.fromkeys(paths)
    for concept in concepts:
        root = os.path.join(os.path.expanduser(concept.path), "")
        own = [path for path in left if path.startswith(root)] if concept.enabled else []
        num_before = len(found)

        def count(done: int, before: int = num_before) -> None:
            on_done(before + done)

        if own:
            found |= MeasureIndex(concept.path).of(own, count, is_wanted)
        for path in own:
            del left[path]
    return found


def _read(file: Path) -> Iterator[tuple[str, list[Any]]]:
    try:
        content = json.loads(file.read_bytes())
    except (OSError, ValueError):
        return
    if not isinstance(content, dict) or content.get("version") != VERSION:
        return
    measures = content.get("measures")
    for key, values in measures.items() if isinstance(measures, dict) else ():
        if isinstance(values, list):
            yield key, values


def _reason(path: str) -> str:
    try:
        measure(path)
    except ImageError as error:
        return error.reason
    return "it can't be read"  # it could not when its content was looked at


def _forget_unused(parent: Path) -> None:
    oldest = time.time() - KEPT_DAYS * 24 * 3600
    for file in parent.glob(f"*/{_FILE}"):
        with contextlib.suppress(OSError):  # another process removes it, too
            if file.stat().st_mtime < oldest:
                remove_folder(file.parent)
