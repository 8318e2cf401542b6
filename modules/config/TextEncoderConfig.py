from typing import Annotated

from pydantic import Field
from pydantic.dataclasses import dataclass

from modules.config.families import load_families
from modules.config.methods import METHODS, trainable_encoders
from modules.config.PartConfig import TRAINED, PartConfig
from modules.config.setting import STRICT, Float, Int, setting

_FAMILIES_OF = {  # method -> the families whose text encoders it can train
    method.name: [name for name, info in load_families().items() if trainable_encoders(method, info)]
    for method in METHODS.values()
}
_OF_ANY = [name for name in load_families() if any(name in names for names in _FAMILIES_OF.values())]
_OF_ALL = [name for name in _OF_ANY if all(name in names for names in _FAMILIES_OF.values() if names)]
TEXT_TRAINS = {
    "method": [method for method, names in _FAMILIES_OF.items() if names],
    "family": _OF_ANY,
    "method or family": [*(method for method, names in _FAMILIES_OF.items() if names == _OF_ANY), *_OF_ALL],
}
"""Where a text encoder can be trained: by some methods that of any of these families, by the others that of a few."""
SEVERAL = [name for name in _OF_ANY if len(load_families()[name].text_encoders) > 1]


@dataclass(config=STRICT)
class TextEncoderConfig(PartConfig):
    """The training of the text encoders: the settings of every part, and which of the encoders train."""

    only: list[Annotated[Int, Field(ge=1)]] = setting(
        label="Text encoders to train",
        help="Numbers of the text encoders to train, starting at 1, for models that have several: Stable Diffusion 3 "
        "has two CLIP encoders and, as number 3, T5. Empty: all.",
        group="method",
        default_factory=list,
        importance="advanced",
        visible_when={**TRAINED, "family": SEVERAL},
    )
    learning_rates: list[Annotated[Float, Field(gt=0, le=1000)]] = setting(
        label="Learning rate per text encoder",
        also_called="text_encoder_lr, text_encoder_2.learning_rate",
        help="Learning rate for each text encoder, starting with number 1, for models that have several. Encoders "
        "without a value use the learning rate above. Empty: all use it.",
        group="method",
        default_factory=list,
        importance="advanced",
        visible_when={**TRAINED, "family": SEVERAL},
    )
    stops_after: list[Annotated[Float, Field(gt=0)]] = setting(
        label="Stop after, per text encoder",
        also_called="text_encoder_2.stop_training_after",
        help="Steps or epochs after which each text encoder stops training, starting with number 1, for models that "
        'have several. Encoders without a value use "Stop after" above. Empty: all use it.',
        group="method",
        default_factory=list,
        importance="advanced",
        visible_when={**TRAINED, "family": SEVERAL, ".stop_unit": ["steps", "epochs"]},
    )
