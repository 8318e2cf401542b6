"""How pictures and captions are prepared."""

from pydantic.dataclasses import dataclass

from modules.config.setting import STRICT, Float, Int, setting


@dataclass(config=STRICT)
class DataConfig:
    resolution: Int = setting(
        512,
        label="Resolution",
        help="Pictures are resized to about this many pixels squared. 512 for Stable Diffusion 1.x, 768 for 2.x, "
        "1024 for 3.",
        group="data",
        unit="pixels",
        ge=8,
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
        visible_when={"method": ["lora", "full"]},
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
