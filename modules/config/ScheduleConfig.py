"""How the learning rate changes during the run."""

from typing import Literal

from pydantic.dataclasses import dataclass

from modules.config.setting import STRICT, Float, setting


@dataclass(config=STRICT)
class ScheduleConfig:
    name: Literal["constant", "linear", "cosine"] = setting(
        "constant",
        label="Learning rate schedule",
        help="Course of the learning rate after the warm-up: it stays, or falls in a line or a cosine to its final "
        "share.",
        group="optimizer",
        choice_labels={"constant": "Constant", "linear": "Linear", "cosine": "Cosine"},
    )
    warmup: Float = setting(
        0.0,
        label="Warm-up",
        help="The learning rate rises from zero this long. Below 1: share of all steps; from 1: optimizer steps.",
        group="optimizer",
        unit="share or steps",
        ge=0,
    )
    final_share: Float = setting(
        0.0,
        label="Final share",
        help="Share of the learning rate that is left at the end. 0 ends at zero, 0.1 keeps a tenth.",
        group="optimizer",
        ge=0,
        le=1,
        importance="advanced",
        visible_when={".name": ["linear", "cosine"]},
    )
