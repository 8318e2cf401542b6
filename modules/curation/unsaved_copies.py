"""Edits that could not be saved where they belong are kept beside the images: "cat.unsaved.txt" of "cat.jpg".

Training takes none of them for its own, as there is no image with such a name.
"""

from __future__ import annotations

import io
import os
from typing import TYPE_CHECKING

from modules.config.atomic_file import write_bytes
from modules.curation.mask_files import mask_path

if TYPE_CHECKING:
    import numpy as np

    from modules.config.ConceptConfig import ConceptConfig

_MARK = ".unsaved"


def keep_caption(image: str, text: str) -> str:
    """Keep a caption, in UTF-8, and return the path. Raises OSError."""
    return _write(f"{os.path.splitext(image)[0]}{_MARK}.txt", text.encode())


def keep_mask(image: str, concept: ConceptConfig, values: np.ndarray) -> str:
    """Keep a mask, uint8[H, W], where masks of the image are, and return the path. Raises OSError."""
    from PIL import Image

    file = io.BytesIO()
    Image.fromarray(values).save(file, "PNG")
    stem, extension = os.path.splitext(image)
    path = mask_path(f"{stem}{_MARK}{extension}", concept)
    os.makedirs(os.path.dirname(path), exist_ok=True)
    return _write(path, file.getvalue())


def _write(path: str, content: bytes) -> str:
    """Write a new file, with a number in its name if there is one already, and return its path."""
    target, number = path, 1
    while os.path.lexists(target):
        number += 1
        target = path.replace(_MARK, f"{_MARK}-{number}")
    write_bytes(target, content)
    return target
