"""How gradients become changes of the weights."""

from typing import Literal, get_args

from pydantic.dataclasses import dataclass

from modules.config.methods import methods_that
from modules.config.setting import STRICT, Float, setting

OptimizerName = Literal[
    "adamw", "adamw_8bit", "schedule_free", "lion", "lion_8bit", "adafactor", "came", "prodigy", "sgd"
]
ADAM_LIKE = ("adamw", "adamw_8bit", "schedule_free", "prodigy")
WITH_BETAS = (*ADAM_LIKE, "lion", "lion_8bit", "came")
"""Those with running means of the gradients and of their squares, which beta1 and beta2 belong to."""
NOT_ROUNDED = ("adamw_8bit", "lion_8bit", "prodigy")
"""Those that can't step a part of the weights at a time, which stochastic rounding asks for."""


@dataclass(config=STRICT)
class OptimizerConfig:
    name: OptimizerName = setting(
        "adamw",
        label="Optimizer",
        help="AdamW suits most runs. Adafactor, CAME (with a warm-up) and the 8-bit ones need less memory, Prodigy "
        "finds the size of its steps by itself, and the schedule-free AdamW needs no schedule.",
        group="optimizer",
        choice_labels={
            "adamw": "AdamW",
            "adamw_8bit": "AdamW, 8-bit",
            "schedule_free": "AdamW, schedule-free",
            "lion": "Lion",
            "lion_8bit": "Lion, 8-bit",
            "adafactor": "Adafactor",
            "came": "CAME",
            "prodigy": "Prodigy",
            "sgd": "SGD",
        },
    )
    learning_rate: Float = setting(
        1e-4,
        label="Learning rate",
        help="Size of the steps. 1e-4 for LoRA, 1e-5 or less for full training; a third of that for Lion, 1.0 for "
        "Prodigy, a hundred times more for SGD.",
        group="optimizer",
        gt=0,
    )
    beta1: Float = setting(
        0.9,
        label="Beta 1",
        help="Memory of the running mean of the gradients. 0.9 is good almost always.",
        group="optimizer",
        ge=0,
        lt=1,
        importance="advanced",
        visible_when={".name": WITH_BETAS},
    )
    beta2: Float = setting(
        0.999,
        label="Beta 2",
        help="Memory of the running mean of the squared gradients. 0.999 is usual; 0.99 forgets faster and is what "
        "Lion was published with.",
        group="optimizer",
        ge=0,
        lt=1,
        importance="advanced",
        visible_when={".name": WITH_BETAS},
    )
    eps: Float = setting(
        1e-8,
        label="Epsilon",
        help="Keeps the division by the squared gradients' root finite. 1e-8; larger values damp rare weights.",
        group="optimizer",
        gt=0,
        importance="advanced",
        visible_when={".name": ADAM_LIKE},
    )
    weight_decay: Float = setting(
        0.01,
        label="Weight decay",
        help="Pulls weights toward zero at every step, against overfitting. 0 switches it off.",
        group="optimizer",
        ge=0,
        importance="advanced",
    )
    max_grad_norm: Float = setting(
        1.0,
        label="Gradient clipping",
        help="Gradients with a larger norm than this are shortened to it. 1 is usual, 0 switches it off.",
        group="optimizer",
        ge=0,
        importance="advanced",
    )
    adafactor_beta2_decay: Float = setting(
        -0.8,
        label="Adafactor: decay exponent",
        help="How the memory of squared gradients grows with the steps: 1 - step ^ value. -0.8 is the published value.",
        group="optimizer",
        lt=0,
        importance="advanced",
        visible_when={".name": ["adafactor"]},
    )
    adafactor_clip_threshold: Float = setting(
        1.0,
        label="Adafactor: clip threshold",
        help="Updates with a larger root mean square than this are scaled down to it. 1 is the published value.",
        group="optimizer",
        gt=0,
        importance="advanced",
        visible_when={".name": ["adafactor"]},
    )
    prodigy_d_coef: Float = setting(
        1.0,
        label="Prodigy: step coefficient",
        help="Multiplies the step size that Prodigy finds. 1 is normal; 0.5 to 2 makes it more careful or bolder.",
        group="optimizer",
        gt=0,
        importance="advanced",
        visible_when={".name": ["prodigy"]},
    )
    came_beta3: Float = setting(
        0.9999,
        label="CAME: beta 3",
        help="Memory of how far updates stray from their running mean, by which CAME trusts them. 0.9999 is the "
        "published value.",
        group="optimizer",
        ge=0,
        lt=1,
        importance="advanced",
        visible_when={".name": ["came"]},
    )
    came_clip_threshold: Float = setting(
        1.0,
        label="CAME: clip threshold",
        help="Updates with a larger root mean square than this are scaled down to it. 1 is the published value.",
        group="optimizer",
        gt=0,
        importance="advanced",
        visible_when={".name": ["came"]},
    )
    schedule_free_power: Float = setting(
        0.0,
        label="Schedule-free: power",
        help="Late steps weigh more in the average, by step ^ value. 0 weighs all alike.",
        group="optimizer",
        ge=0,
        importance="advanced",
        visible_when={".name": ["schedule_free"]},
    )
    sgd_momentum: Float = setting(
        0.9,
        label="SGD: momentum",
        help="Share of the last step that is taken again. 0.9 is usual, 0 switches it off.",
        group="optimizer",
        ge=0,
        lt=1,
        importance="advanced",
        visible_when={".name": ["sgd"]},
    )
    sgd_nesterov: bool = setting(
        False,
        label="SGD: Nesterov",
        help="Looks ahead along the momentum before each step. Needs a momentum above 0.",
        group="optimizer",
        importance="advanced",
        visible_when={".name": ["sgd"]},
    )
    stochastic_rounding: bool = setting(
        False,
        label="Stochastic rounding",
        help="Rounds bfloat16 weights up or down by chance after each step, so that small updates add up instead of "
        "being lost. Trains a bfloat16 model in half of the memory for its weights.",
        group="optimizer",
        importance="advanced",
        visible_when={
            "model.weight_dtype": ["bfloat16"],
            "method": methods_that(lambda method: method.trains_weights),
            ".name": [name for name in get_args(OptimizerName) if name not in NOT_ROUNDED],
        },
    )
