"""Several images that belong together, in place of one sample."""

from __future__ import annotations

from dataclasses import dataclass

from PIL import Image


@dataclass(frozen=True)
class SampleParts:
    images: list[Image.Image]

    def side_by_side(self) -> Image.Image:
        """All of them in one image."""
        raise NotImplementedError
