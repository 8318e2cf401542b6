from pydantic.dataclasses import dataclass

from modules.config.setting import INTERVAL_LABELS, STRICT, Float, Int, IntervalUnit, setting


@dataclass(config=STRICT)
class ValidationConfig:
    """When and how the validation loss is measured, on images that are never trained on."""

    every: Float = setting(
        0.0,
        label="Validate every",
        help="Interval between measurements of the validation loss.",
        group="training",
        ge=0,
        visible_when={".unit": ["steps", "minutes", "epochs"]},
    )
    unit: IntervalUnit = setting(
        "never",
        label="Validate while training",
        help="Unit of the interval. Never: no validation.",
        group="training",
        choice_labels=INTERVAL_LABELS,
    )
    timesteps: Int = setting(
        4,
        label="Timesteps",
        help="Number of evenly spaced timesteps at which each held-out image is measured. More give a smoother curve "
        "and take longer.",
        group="training",
        ge=1,
        le=1000,
        importance="advanced",
        visible_when={".unit": ["steps", "minutes", "epochs"]},
    )
