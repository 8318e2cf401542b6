"""Size and place of the low-rank adapter."""

from typing import Literal

from pydantic.dataclasses import dataclass

from modules.config.setting import STRICT, Float, Int, setting


@dataclass(config=STRICT)
class LoraConfig:
    rank: Int = setting(
        16,
        label="Rank",
        help="Width of the adapter: how much it can learn, and how large its file is. 4 to 32 for a subject, up to "
        "128 for a style of many pictures.",
        group="method",
        ge=1,
    )
    alpha: Float = setting(
        16.0,
        label="Alpha",
        help="The adapter's output is multiplied by alpha / rank. Equal to the rank means a factor of 1; half of the "
        "rank is a gentler choice.",
        group="method",
        gt=0,
    )
    dropout: Float = setting(
        0.0,
        label="Dropout",
        help="Share of the adapter's inputs left out at random in training, against overfitting. 0 switches it off; "
        "0.05 to 0.1 is usual.",
        group="method",
        ge=0,
        lt=1,
        importance="advanced",
    )
    targets: Literal["attention", "attention_mlp", "linear", "linear_conv"] = setting(
        "attention",
        label="Layers",
        help="Which layers get an adapter. Attention is enough for most subjects; more layers learn more and weigh "
        "more.",
        group="method",
        choice_labels={
            "attention": "Attention",
            "attention_mlp": "Attention and MLP",
            "linear": "All linear layers",
            "linear_conv": "All linear layers and convolutions",
        },
        importance="advanced",
    )
