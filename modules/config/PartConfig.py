"""Whether a part of the model is trained, and how fast."""

from pydantic.dataclasses import dataclass

from modules.config.setting import STRICT, Float, setting


@dataclass(config=STRICT)
class PartConfig:
    train: bool = setting(
        label="Train",
        help="Train this part of the model. The denoiser usually is trained; the text encoder helps with new words "
        "and costs memory.",
        group="method",
    )
    learning_rate: Float | None = setting(
        None,
        label="Learning rate",
        help="Learning rate of this part alone. Empty: the optimizer's. Text encoders like a half to a tenth of it.",
        group="method",
        gt=0,
        importance="advanced",
        visible_when={".train": [True]},
    )
