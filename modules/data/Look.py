"""How one variant of a picture differs from it."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from modules.data.draws import hash64, uniform

if TYPE_CHECKING:
    from modules.config.AugmentationConfig import AugmentationConfig


class Look(NamedTuple):
    """What is done to a picture, in this order; the defaults do nothing.

    mirrored: left to right. place: where the shape is cut from what covers it, 0 (left, top) to 1; None for the centre.
    degrees: turned to the left about the centre of the cut.
    brightness, contrast, saturation: factors. hue: moved by this share of the colour circle.
    """

    mirrored: bool = False
    place: tuple[float, float] | None = None
    degrees: float = 0.0
    brightness: float = 1.0
    contrast: float = 1.0
    saturation: float = 1.0
    hue: float = 0.0

    @property
    def changes(self) -> dict[str, object]:
        """What differs from the picture as it is: a part of its cache key."""
        return {name: value for name, value in self._asdict().items() if value != getattr(PLAIN, name)}


PLAIN = Look()


def draw_look(settings: AugmentationConfig, seed: int, name: str, variant: int) -> Look:
    """The look of a variant of the picture called `name`, by hash. Half of the variants are mirrored."""
    draw = hash64(seed, name, variant)

    def spread(most: float, purpose: str) -> float:
        return (2 * uniform(draw, purpose) - 1) * most if most else 0.0

    return Look(
        mirrored=settings.flip and (hash64(seed, name, "flip") + variant) % 2 == 1,
        place=(uniform(draw, "crop x"), uniform(draw, "crop y")) if settings.crop_jitter else None,
        degrees=spread(settings.rotation, "rotation"),
        brightness=1 + spread(settings.brightness, "brightness"),
        contrast=1 + spread(settings.contrast, "contrast"),
        saturation=1 + spread(settings.saturation, "saturation"),
        hue=spread(settings.hue, "hue"),
    )
