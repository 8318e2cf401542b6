"""How gradients become changes of the weights."""

from typing import Literal

from pydantic.dataclasses import dataclass

from modules.config.setting import STRICT, Float, setting


@dataclass(config=STRICT)
class OptimizerConfig:
    name: Literal["adamw", "adafactor", "prodigy"] = setting(
        "adamw",
        label="Optimizer",
        help="AdamW suits most runs, Adafactor needs less memory, Prodigy finds the size of its steps by itself.",
        group="optimizer",
        choice_labels={"adamw": "AdamW", "adafactor": "Adafactor", "prodigy": "Prodigy"},
    )
    learning_rate: Float = setting(
        1e-4,
        label="Learning rate",
        help="Size of the steps. 1e-4 for LoRA, 1e-5 or less for full training, 1.0 for Prodigy.",
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
        visible_when={".name": ["adamw", "prodigy"]},
    )
    beta2: Float = setting(
        0.999,
        label="Beta 2",
        help="Memory of the running mean of the squared gradients. 0.999 is usual; 0.99 forgets faster.",
        group="optimizer",
        ge=0,
        lt=1,
        importance="advanced",
        visible_when={".name": ["adamw", "prodigy"]},
    )
    eps: Float = setting(
        1e-8,
        label="Epsilon",
        help="Keeps the division by the squared gradients' root finite. 1e-8; larger values damp rare weights.",
        group="optimizer",
        gt=0,
        importance="advanced",
        visible_when={".name": ["adamw", "prodigy"]},
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
