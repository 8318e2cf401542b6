from pydantic.dataclasses import dataclass

from modules.config.setting import STRICT, Float, setting


@dataclass(config=STRICT)
class AugmentationConfig:
    """Augmentation of a concept's images, so that the model does not learn their accidental properties."""

    flip: bool = setting(
        False,
        label="Horizontal flip",
        also_called="random_flip, mirror",
        help="Mirror half of each image's variants left to right. Not for faces, asymmetric things, text in images, "
        "or captions that say left or right.",
        group="data",
    )
    crop_jitter: bool = setting(
        False,
        label="Random crop",
        also_called="crop jitter",
        help="Crop at a random position for each variant. Off: crop at the center.",
        group="data",
    )
    rotation: Float = setting(
        0.0,
        label="Rotation",
        help="Rotate variants by up to this angle in either direction, and enlarge them until no empty corner shows. "
        "0 to 10 is usual.",
        group="data",
        unit="degrees",
        ge=0,
        le=45,
        importance="advanced",
    )
    brightness: Float = setting(
        0.0,
        label="Brightness",
        help="Multiply the brightness of variants by a random factor between 1 minus and 1 plus this. 0 to 0.2 is "
        "usual.",
        group="data",
        ge=0,
        le=1,
        importance="advanced",
    )
    contrast: Float = setting(
        0.0,
        label="Contrast",
        help="Multiply the contrast of variants by a random factor between 1 minus and 1 plus this. 0 to 0.2 is usual.",
        group="data",
        ge=0,
        le=1,
        importance="advanced",
    )
    saturation: Float = setting(
        0.0,
        label="Saturation",
        help="Multiply the saturation of variants by a random factor between 1 minus and 1 plus this. 0 to 0.2 is "
        "usual.",
        group="data",
        ge=0,
        le=1,
        importance="advanced",
    )
    hue: Float = setting(
        0.0,
        label="Hue",
        help="Shift the hue of variants at random by up to this fraction of the color wheel in either direction. 0 to "
        "0.05 is usual.",
        group="data",
        ge=0,
        le=0.5,
        importance="advanced",
    )
    fixed_flip: bool = setting(
        False,
        label="Flip all",
        also_called="enable_fixed_flip",
        help="Mirror all images of the concept left to right.",
        group="data",
        importance="advanced",
    )
    fixed_rotation: Float = setting(
        0.0,
        label="Rotate all",
        also_called="enable_fixed_rotate",
        help="Rotate all images of the concept counterclockwise by this angle, and enlarge them until no empty corner "
        "shows.",
        group="data",
        unit="degrees",
        ge=-180,
        le=180,
        importance="advanced",
    )
    fixed_brightness: Float = setting(
        0.0,
        label="Fixed brightness",
        also_called="enable_fixed_brightness",
        help="Multiply the brightness of all images of the concept by 1 plus this. Below 0 darkens them.",
        group="data",
        ge=-1,
        le=1,
        importance="advanced",
    )
    fixed_contrast: Float = setting(
        0.0,
        label="Fixed contrast",
        also_called="enable_fixed_contrast",
        help="Multiply the contrast of all images of the concept by 1 plus this.",
        group="data",
        ge=-1,
        le=1,
        importance="advanced",
    )
    fixed_saturation: Float = setting(
        0.0,
        label="Fixed saturation",
        also_called="enable_fixed_saturation",
        help="Multiply the saturation of all images of the concept by 1 plus this. -1 makes them gray.",
        group="data",
        ge=-1,
        le=1,
        importance="advanced",
    )
    fixed_hue: Float = setting(
        0.0,
        label="Fixed hue",
        also_called="enable_fixed_hue",
        help="Shift the hue of all images of the concept by this fraction of the color wheel.",
        group="data",
        ge=-0.5,
        le=0.5,
        importance="advanced",
    )

    @property
    def is_on(self) -> bool:
        """Whether variants of an image differ."""
        return any((self.flip, self.crop_jitter, self.rotation, *self.colours))

    @property
    def colours(self) -> tuple[float, float, float, float]:
        """The amounts of brightness, contrast, saturation and hue."""
        return self.brightness, self.contrast, self.saturation, self.hue
