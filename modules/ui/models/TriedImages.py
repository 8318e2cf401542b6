"""The images that were generated to try a model, and those that are still to come. No Tk."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from modules.ui.models.trained_images import ImageWish

MAX_IMAGES = 100


@dataclass(frozen=True)
class _Expected:
    wish: ImageWish  # of one image
    name: str
    is_base: bool
    place: float


class TriedImages:
    """Images in the order in which they are shown: those of the last wish first, each beside that of the base model."""

    def __init__(self) -> None:
        self._made: dict[ImageWish, dict[str, tuple[float, Path]]] = {}  # by what is asked for, then by name
        self._bases: dict[ImageWish, Path] = {}
        self._expected: list[_Expected] = []

    def clear(self) -> None:
        self._made, self._bases, self._expected = {}, {}, []

    def expect(self, wish: ImageWish, name: str, is_base: bool, place: float = 0.0) -> None:
        """The next images are `wish.count` ones with consecutive seeds. name: of the model that makes them. place:
        among those of the wish, the base model's being at 0; equal ones stay in the order in which they came."""
        self._expected += [_Expected(one, name, is_base, place) for one in _singles(wish)]

    def forget_expected(self) -> None:
        """No more images come."""
        self._expected = []

    def has_base(self, wish: ImageWish) -> bool:
        """Whether the base model has made all images of a wish."""
        return all(one in self._bases for one in _singles(wish))

    @property
    def waits_for_base(self) -> bool:
        return any(one.is_base for one in self._expected)

    @property
    def num_expected(self) -> int:
        return len(self._expected)

    def take(self, paths: Iterable[Path]) -> None:
        """The next of the expected images are there."""
        for path in paths:
            if not self._expected:
                return
            one = self._expected.pop(0)
            images = self._made.pop(one.wish, {})
            self._made[one.wish] = images  # the last one now
            if one.is_base:
                self._bases[one.wish] = path
            else:
                images[one.name] = one.place, path
        while len(self.shown()) > MAX_IMAGES and len(self._made) > 1:
            oldest = next(iter(self._made))
            del self._made[oldest]
            self._bases.pop(oldest, None)

    def shown(self) -> list[tuple[str, str]]:
        """(title, path) of each image; a seed is named where there are several."""
        several = len({wish.seed for wish in self._made}) > 1
        found = []
        for wish, images in reversed(self._made.items()):
            seed = f", seed {wish.seed}" if several else ""
            base = {"base": (0.0, self._bases[wish])} if wish in self._bases else {}
            named = sorted({**base, **images}.items(), key=lambda item: item[1][0])
            found += [(f"{name}{seed}", str(path)) for name, (_, path) in named]
        return found


def _singles(wish: ImageWish) -> list[ImageWish]:
    return [replace(wish, seed=wish.seed + number, count=1) for number in range(wish.count)]
