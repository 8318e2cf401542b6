"""Small copies of samples for the page: a phone should not load megabytes for each of them."""

from __future__ import annotations

import io
import threading
from collections import OrderedDict
from pathlib import Path

SIDE = 480  # pixels
MAX_KEPT = 256  # about 30 KB each
MAX_PIXELS = 64_000_000  # more are not decoded
_AT_ONCE = 2  # a run trains on the same cores


class SmallSamples:
    """Makes them when asked for, and keeps the last ones in memory. May be called by several threads."""

    def __init__(self) -> None:
        self._kept: OrderedDict[tuple[Path, int, int], bytes] = OrderedDict()
        self._lock = threading.Lock()
        self._free = threading.Semaphore(_AT_ONCE)

    def of(self, path: Path) -> bytes | None:
        """The image at `path` as a small JPEG; None if it is none that can be read."""
        try:
            status = path.stat()
            key = (path, status.st_size, status.st_mtime_ns)
            with self._lock:
                if key in self._kept:
                    self._kept.move_to_end(key)
                    return self._kept[key]
            with self._free:
                data = _small(path)
        except (OSError, ValueError, SyntaxError):  # gone, no image or a damaged one
            return None
        with self._lock:
            self._kept[key] = data
            while len(self._kept) > MAX_KEPT:
                self._kept.popitem(last=False)
        return data


def _small(path: Path) -> bytes:
    from PIL import Image

    with Image.open(path, formats=("PNG", "JPEG", "WEBP")) as picture:
        if picture.width * picture.height > MAX_PIXELS:
            raise ValueError("too large")
        picture.draft("RGB", (SIDE, SIDE))
        small = picture.convert("RGB")
    small.thumbnail((SIDE, SIDE))
    data = io.BytesIO()
    small.save(data, "JPEG", quality=82)
    return data.getvalue()
