"""How images and captions are prepared."""

from typing import Annotated

from pydantic import Field
from pydantic.dataclasses import dataclass

from modules.config.methods import methods_that
from modules.config.setting import STRICT, Float, Int, setting


@dataclass(config=STRICT)
class DataConfig:
    resolution: Int = setting(
        512,
        label="Resolution",
        help="Pictures are resized to about this many pixels squared. 512 for Stable Diffusion 1.x, 768 for 2.x, "
        "1024 for XL and 3.",
        group="data",
        in_crash_report=True,
        unit="pixels",
        ge=8,
    )
    resolutions: list[Annotated[Int, Field(ge=8)]] = setting(
        label="Several resolutions",
        help="Each time a picture is shown, it is in one of these resolutions, drawn anew; an epoch stays as long. "
        "Empty: always the one above.",
        group="data",
        unit="pixels",
        importance="advanced",
        default_factory=list,
    )
    bucketing: bool = setting(
        True,
        label="Keep the aspect ratio",
        help="Train on several shapes, each picture in the one nearest to its own. Off: every picture is cropped to "
        "a square.",
        group="data",
    )
    bucket_step: Int = setting(
        64,
        label="Bucket step",
        help="Widths and heights of the shapes are multiples of this. 64 suits every model; smaller steps crop less "
        "and make more shapes.",
        group="data",
        unit="pixels",
        ge=8,
        importance="advanced",
        visible_when={".bucketing": [True]},
    )
    max_aspect: Float = setting(
        2.0,
        label="Largest aspect ratio",
        help="Long side over short side of the most elongated shape; pictures beyond it are cropped. 2 is usual.",
        group="data",
        ge=1,
        importance="advanced",
        visible_when={".bucketing": [True]},
    )
    caption_dropout: Float = setting(
        0.0,
        label="Caption dropout",
        help="Share of the samples that are trained without their caption, which keeps guidance working in long "
        "trainings. 0 to 0.1.",
        group="data",
        ge=0,
        le=1,
        visible_when={"method": methods_that(lambda method: method.uses_captions)},
    )
    caption_variants: Int = setting(
        8,
        label="Orders of tags",
        help="How many orders of each caption are made where tags are shuffled and captions are cached; every one is a "
        "cache entry. While a text encoder trains each showing has an order of its own.",
        group="data",
        ge=1,
        importance="advanced",
    )
    augmentation_variants: Int = setting(
        4,
        label="Variants of a picture",
        help="How many looks each picture of a concept with augmentation has; every one is a cache entry. Each "
        "showing draws one of them.",
        group="data",
        ge=1,
        importance="advanced",
    )
    validation_share: Float = setting(
        0.0,
        label="Share held out",
        help="Share of the pictures that is never trained on, to see how well the model does on pictures it does not "
        "know. Equal pictures stay together, and adding pictures moves none. 0 to 0.1.",
        group="data",
        ge=0,
        lt=1,
        importance="advanced",
    )
    max_unreadable_share: Float = setting(
        0.1,
        label="Allowed share of unreadable pictures",
        help="Pictures that can't be read are listed and left out; a larger share than this stops the run.",
        group="data",
        ge=0,
        le=1,
        importance="advanced",
    )
    prefetch_steps: Int = setting(
        2,
        label="Steps prepared ahead",
        help="Batches of how many steps are loaded while the GPU works. 0 loads each when it is needed; 2 hides "
        "most disks.",
        group="data",
        unit="steps",
        ge=0,
        importance="advanced",
    )
