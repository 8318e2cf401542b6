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
        also_called="unet, transformer, te, network_train_unet_only, train_text_encoder",
        help="Train this part of the model. The denoiser usually is trained; the text encoder helps with new words "
        "and costs memory.",
        group="method",
    )
    learning_rate: Float | None = setting(
        None,
        label="Learning rate",
        also_called="unet_lr, text_encoder_lr",
        help="Learning rate of this part alone. Empty: the optimizer's. Text encoders like a half to a tenth of it.",
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
        help="Weight decay of this part alone. Empty: the optimizer's.",
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
        also_called="stop_text_encoder_training",
        help="From then on this part stays as it is, while the others train on. Text encoders learn fast: a third of "
        "the run is often enough for them.",
        group="method",
        ge=0,
        importance="advanced",
        visible_when={**TRAINED, ".stop_unit": ["steps", "epochs"]},
    )
    stop_unit: Literal["never", "steps", "epochs"] = setting(
        "never",
        label="Stop unit",
        help="What the end of this part's training is counted in; never trains it to the end of the run.",
        group="method",
        choice_labels={"never": "Never", "steps": "Steps", "epochs": "Epochs"},
        importance="advanced",
        visible_when=TRAINED,
    )
    layers: Literal["all", "blocks", "attention", "attention_mlp"] = setting(
        "all",
        label="Layers",
        help="Which layers train: all, those of the blocks, or of these the attention's projections, without or with "
        "the feed-forward layers. Fewer take less memory and forget less.",
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
        help="Of the chosen layers only those whose names match one of these patterns train, such as *.attn2.* or "
        "mid_block, up_blocks.1; * stands for any text, ? for one character, and a pattern takes all that is below it. "
        "Text encoders may name theirs unlike each other: *encoder.layers.0 fits all. Empty: all of them.",
        group="method",
        importance="advanced",
        visible_when=TRAINED,
    )
    exclude_layers: Str = setting(
        "",
        label="Exclude modules",
        help="Layers whose names match one of these patterns don't train; written as the patterns of those that do.",
        group="method",
        importance="advanced",
        visible_when=TRAINED,
    )
