from typing import Literal

from pydantic.dataclasses import dataclass

from modules.config.methods import methods_that
from modules.config.setting import STRICT, Float, Str, setting

TRAINED = {".train": [True]}
CHOOSES_LAYERS = methods_that(lambda method: method.chooses_parts and method.trains_weights)


@dataclass(config=STRICT)
class PartConfig:
    """The training of one part of the model: which layers, at which rate and for how long."""

    train: bool = setting(
        label="Train",
        also_called="unet, transformer, te",
        help="Train this component. The U-Net or transformer usually is trained; training a text encoder helps with "
        "new words and costs memory.",
        group="method",
    )
    learning_rate: Float | None = setting(
        None,
        label="Learning rate",
        help="Learning rate of this component. Empty: that of the optimizer. For text encoders, a tenth to a half of "
        "it is usual.",
        group="method",
        empty_means="same as optimizer",
        gt=0,
        le=1000,
        importance="advanced",
        visible_when=TRAINED,
    )
    weight_decay: Float | None = setting(
        None,
        label="Weight decay",
        help="Weight decay of this component. Empty: that of the optimizer.",
        group="method",
        empty_means="same as optimizer",
        ge=0,
        le=1000,
        importance="advanced",
        visible_when=TRAINED,
    )
    stop_after: Float = setting(
        0.0,
        label="Stop after",
        help="Freeze this component after this point; the others keep training. Text encoders learn fast: a third of "
        "the run is often enough.",
        group="method",
        ge=0,
        importance="advanced",
        visible_when={**TRAINED, ".stop_unit": ["steps", "epochs"]},
    )
    stop_unit: Literal["never", "steps", "epochs"] = setting(
        "never",
        label="Stop unit",
        help='Unit of "Stop after". Never: train until the run ends.',
        group="method",
        choice_labels={"never": "Never", "steps": "Steps", "epochs": "Epochs"},
        importance="advanced",
        visible_when=TRAINED,
    )
    layers: Literal["all", "blocks", "attention", "attention_mlp"] = setting(
        "all",
        label="Layers",
        help="Layers to train: all of them, those of the blocks, or only the blocks' attention projections with or "
        "without the feed-forward layers. Fewer layers take less memory and change the model less.",
        group="method",
        choice_labels={
            "all": "All",
            "blocks": "Blocks",
            "attention": "Attention",
            "attention_mlp": "Attention and MLP",
        },
        importance="advanced",
        visible_when={**TRAINED, "method": CHOOSES_LAYERS},
    )
    include_layers: Str = setting(
        "",
        label="Include modules",
        help="Train only those of the chosen layers whose names match a pattern, such as *.attn2.* or mid_block, "
        "up_blocks.1. * matches any text, ? one character, and a pattern includes everything below it. Text encoders "
        "differ in naming; *encoder.layers.0 matches all of them. Empty: no restriction.",
        group="method",
        importance="advanced",
        visible_when=TRAINED,
    )
    exclude_layers: Str = setting(
        "",
        label="Exclude modules",
        help="Don't train layers whose names match one of these patterns; same syntax as above.",
        group="method",
        importance="advanced",
        visible_when=TRAINED,
    )
