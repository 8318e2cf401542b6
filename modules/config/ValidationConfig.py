from pydantic.dataclasses import dataclass

from modules.config.setting import INTERVAL_LABELS, STRICT, Float, Int, IntervalUnit, setting


@dataclass(config=STRICT)
class ValidationConfig:
    """When and how the validation loss is measured, on images that are never trained on."""

    every: Float = setting(
        0.0,
        label="Validate every",
        also_called="validate_every_n_steps, validate_after",
        help="How much training lies between two measurements of the validation loss, in the unit beside it.",
        group="training",
        ge=0,
        visible_when={".unit": ["steps", "minutes", "epochs"]},
    )
    unit: IntervalUnit = setting(
        "never",
        label="Unit",
        help="What the interval between two measurements is counted in; never measures none.",
        group="training",
        choice_labels=INTERVAL_LABELS,
    )
    timesteps: Int = setting(
        4,
        label="Timesteps",
        help="At how many evenly spread timesteps each held-out image is measured. More give a smoother curve and "
        "take longer.",
        group="training",
        ge=1,
        le=1000,
        importance="advanced",
        visible_when={".unit": ["steps", "minutes", "epochs"]},
    )
