"""How one augmented variant of an image differs from the original."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from modules.data.draws import hash64, uniform

if TYPE_CHECKING:
    from modules.config.AugmentationConfig import AugmentationConfig


class Augmentation(NamedTuple):
    """The changes to an image, applied in this order; the defaults change nothing.

    mirrored: flipped horizontally.
    crop_position: where the crop is taken, from 0 (left, top) to 1 (right, bottom); None for the center.
    degrees: counterclockwise rotation about the center of the crop.
    brightness, contrast, saturation: factors. hue: shift as a fraction of the color wheel.
    """

    mirrored: bool = False
    crop_position: tuple[float, float] | None = None
    degrees: float = 0.0
    brightness: float = 1.0
    contrast: float = 1.0
    saturation: float = 1.0
    hue: float = 0.0

    @property
    def without_colors(self) -> Augmentation:
        """Where pixels go, and nothing else."""
        return Augmentation(self.mirrored, self.crop_position, self.degrees)

    @property
    def cache_key_part(self) -> dict[str, object]:
        """The fields that differ from the defaults, under the names that cache keys have always used."""
        changed = {name: value for name, value in self._asdict().items() if value != getattr(NO_AUGMENTATION, name)}
        return {_CACHE_KEY_NAMES.get(name, name): value for name, value in changed.items()}


NO_AUGMENTATION = Augmentation()
# Renaming a field must not invalidate the caches on users' disks.
_CACHE_KEY_NAMES = {"crop_position": "place"}


def fixed_augmentation(settings: AugmentationConfig) -> Augmentation:
    """The changes that all images of a concept get."""
    return Augmentation(
        mirrored=settings.fixed_flip,
        degrees=settings.fixed_rotation,
        brightness=1 + settings.fixed_brightness,
        contrast=1 + settings.fixed_contrast,
        saturation=1 + settings.fixed_saturation,
        hue=settings.fixed_hue,
    )


def draw_augmentation(settings: AugmentationConfig, seed: int, name: str, variant: int) -> Augmentation:
    """The augmentation of one variant of the image called `name`, by hash, on top of the fixed one.

    Half of the variants are mirrored.
    """
    draw, fixed = hash64(seed, name, variant), fixed_augmentation(settings)

    def symmetric(limit: float, purpose: str) -> float:
        return (2 * uniform(draw, purpose) - 1) * limit if limit else 0.0

    return Augmentation(
        mirrored=fixed.mirrored ^ (settings.flip and (hash64(seed, name, "flip") + variant) % 2 == 1),
        crop_position=(uniform(draw, "crop x"), uniform(draw, "crop y")) if settings.crop_jitter else None,
        degrees=fixed.degrees + symmetric(settings.rotation, "rotation"),
        brightness=fixed.brightness * (1 + symmetric(settings.brightness, "brightness")),
        contrast=fixed.contrast * (1 + symmetric(settings.contrast, "contrast")),
        saturation=fixed.saturation * (1 + symmetric(settings.saturation, "saturation")),
        hue=fixed.hue + symmetric(settings.hue, "hue"),
    )
