from typing import Annotated

from pydantic import Field
from pydantic.dataclasses import dataclass

from modules.config.families import load_families
from modules.config.PartConfig import TRAINED, PartConfig
from modules.config.setting import STRICT, Float, Int, setting

SEVERAL = [name for name, info in load_families().items() if len(info.text_encoders) > 1]


@dataclass(config=STRICT)
class TextEncoderConfig(PartConfig):
    """The training of the text encoders: the settings of every part, and which of the encoders train."""

    only: list[Annotated[Int, Field(ge=1)]] = setting(
        label="Only encoders",
        help="Numbers of the text encoders that train, counted from 1, in models that have several: Stable Diffusion 3 "
        "has two CLIPs and, as number 3, T5. Empty: all.",
        group="method",
        default_factory=list,
        importance="advanced",
        visible_when={**TRAINED, "family": SEVERAL},
    )
    learning_rates: list[Annotated[Float, Field(gt=0, le=1000)]] = setting(
        label="Rates of single encoders",
        also_called="text_encoder_lr, text_encoder_2.learning_rate, learning_rate_te1, learning_rate_te2",
        help="Learning rates of the text encoders one by one, in models that have several: the first is that of number "
        "1. Those that are left out have the rate above. Empty: all have it.",
        group="method",
        default_factory=list,
        importance="advanced",
        visible_when={**TRAINED, "family": SEVERAL},
    )
    stops_after: list[Annotated[Float, Field(gt=0)]] = setting(
        label="Ends of single encoders",
        also_called="text_encoder_2.stop_training_after",
        help="After how many steps or epochs each text encoder stops training, in models that have several: the first "
        "is number 1. Those that are left out have the value above. Empty: all have it.",
        group="method",
        default_factory=list,
        importance="advanced",
        visible_when={**TRAINED, "family": SEVERAL, ".stop_unit": ["steps", "epochs"]},
    )
