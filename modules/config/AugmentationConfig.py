from pydantic.dataclasses import dataclass

from modules.config.setting import STRICT, Float, setting


@dataclass(config=STRICT)
class AugmentationConfig:
    """Augmentation of a concept's images, so that the model does not learn their accidental properties."""

    flip: bool = setting(
        False,
        label="Horizontal flip",
        also_called="flip_aug, random_flip, mirror",
        help="Half of an image's variants are mirrored left to right. Not for faces or things that are not "
        "symmetric, for text in images, nor for captions that say left or right.",
        group="data",
    )
    crop_jitter: bool = setting(
        False,
        label="Random crop",
        also_called="random_crop, crop jitter",
        help="Cut what is too long for the shape at a place drawn for each variant. Off: around the centre.",
        group="data",
    )
    rotation: Float = setting(
        0.0,
        label="Rotation",
        help="Variants are turned by up to this angle to either side, and enlarged until no empty corner shows. 0 to "
        "10 is usual.",
        group="data",
        unit="degrees",
        ge=0,
        le=45,
        importance="advanced",
    )
    brightness: Float = setting(
        0.0,
        label="Brightness",
        help="The brightness of variants is multiplied by 1 minus to 1 plus this. 0 to 0.2 is usual.",
        group="data",
        ge=0,
        le=1,
        importance="advanced",
    )
    contrast: Float = setting(
        0.0,
        label="Contrast",
        help="The contrast of variants is multiplied by 1 minus to 1 plus this. 0 to 0.2 is usual.",
        group="data",
        ge=0,
        le=1,
        importance="advanced",
    )
    saturation: Float = setting(
        0.0,
        label="Saturation",
        help="The saturation of variants is multiplied by 1 minus to 1 plus this. 0 to 0.2 is usual.",
        group="data",
        ge=0,
        le=1,
        importance="advanced",
    )
    hue: Float = setting(
        0.0,
        label="Hue",
        also_called="color_aug",
        help="The colours of variants are moved round the colour circle by up to this share of it, either way. 0 to "
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
        help="All images of the concept are mirrored left to right.",
        group="data",
        importance="advanced",
    )
    fixed_rotation: Float = setting(
        0.0,
        label="Rotate all",
        also_called="enable_fixed_rotate",
        help="All images of the concept are turned by this angle, counterclockwise, and enlarged until no empty corner "
        "shows.",
        group="data",
        unit="degrees",
        ge=-180,
        le=180,
        importance="advanced",
    )
    fixed_brightness: Float = setting(
        0.0,
        label="Brighten all",
        also_called="enable_fixed_brightness",
        help="The brightness of all images of the concept is multiplied by 1 plus this. Below 0 darkens.",
        group="data",
        ge=-1,
        le=1,
        importance="advanced",
    )
    fixed_contrast: Float = setting(
        0.0,
        label="Contrast of all",
        also_called="enable_fixed_contrast",
        help="The contrast of all images of the concept is multiplied by 1 plus this.",
        group="data",
        ge=-1,
        le=1,
        importance="advanced",
    )
    fixed_saturation: Float = setting(
        0.0,
        label="Saturation of all",
        also_called="enable_fixed_saturation",
        help="The saturation of all images of the concept is multiplied by 1 plus this. -1 makes them gray.",
        group="data",
        ge=-1,
        le=1,
        importance="advanced",
    )
    fixed_hue: Float = setting(
        0.0,
        label="Hue of all",
        also_called="enable_fixed_hue",
        help="The colours of all images of the concept are moved round the colour circle by this share of it.",
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
