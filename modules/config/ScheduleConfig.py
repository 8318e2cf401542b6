from typing import Literal, get_args

from pydantic.dataclasses import dataclass

from modules.config.setting import STRICT, Float, Int, Str, setting

ScheduleName = Literal[
    "constant",
    "linear",
    "cosine",
    "cosine_restarts",
    "cosine_waves",
    "polynomial",
    "rex",
    "inverse_sqrt",
    "wsd",
    "piecewise",
]
KEEPS_FINAL_SHARE = [name for name in get_args(ScheduleName) if name not in ("constant", "piecewise")]


@dataclass(config=STRICT)
class ScheduleConfig:
    """How the learning rate changes during the run."""

    name: ScheduleName = setting(
        "constant",
        label="Learning rate schedule",
        also_called="cosine_with_restarts, warmup_stable_decay",
        help="Learning rate schedule after the warm-up. REX stays high for longer than a linear schedule and falls at "
        "the end; the inverse square root never stops falling. WSD stays constant and falls in the last part of the "
        "run. Piecewise constant uses a factor for each part of the run.",
        group="optimizer",
        choice_labels={
            "constant": "Constant",
            "linear": "Linear",
            "cosine": "Cosine",
            "cosine_restarts": "Cosine with restarts",
            "cosine_waves": "Cosine, down and up",
            "polynomial": "Polynomial",
            "rex": "REX",
            "inverse_sqrt": "Inverse square root",
            "wsd": "Warm-up, stable, decay (WSD)",
            "piecewise": "Piecewise constant",
        },
    )
    warmup: Float = setting(
        0.0,
        label="Warm-up",
        also_called="warmup",
        help="The learning rate rises from zero over this time. Below 1: fraction of all steps; from 1: optimizer "
        "steps.",
        group="optimizer",
        unit="fraction or steps",
        ge=0,
    )
    final_share: Float = setting(
        0.0,
        label="Min LR ratio",
        also_called="lr_min_factor",
        help="Final learning rate as a fraction of the initial one. 0 ends at zero, 0.1 at a tenth.",
        group="optimizer",
        ge=0,
        le=1,
        importance="advanced",
        visible_when={".name": KEEPS_FINAL_SHARE},
    )
    restarts: Int = setting(
        3,
        label="Number of cycles",
        also_called="cosine_restarts",
        help="Number of cosine cycles in the run; each falls from the full learning rate to the final one. Cycles "
        "that go down and up rise again, and the run ends at the full rate.",
        group="optimizer",
        ge=1,
        le=1_000_000,
        importance="advanced",
        visible_when={".name": ["cosine_restarts", "cosine_waves"]},
    )
    power: Float = setting(
        2.0,
        label="Power",
        help="Power of the polynomial: 1 is linear, 2 falls fast at first and slowly at the end.",
        group="optimizer",
        gt=0,
        le=1000,
        importance="advanced",
        visible_when={".name": ["polynomial"]},
    )
    rex_d: Float = setting(
        0.5,
        label="REX d",
        also_called="rex d",
        help="The larger this is, the longer the learning rate stays high: 0 is linear, 0.5 is the paper's REX, 0.9 "
        "is OneTrainer's.",
        group="optimizer",
        ge=0,
        lt=1,
        importance="advanced",
        visible_when={".name": ["rex"]},
    )
    decay: Float = setting(
        0.2,
        label="Decay",
        also_called="num_decay_steps, cooldown",
        help="For WSD: the learning rate falls along half a cosine over this time at the end of the run. Below 1: "
        "fraction of all steps; from 1: optimizer steps. 0.1 to 0.2 is usual.",
        group="optimizer",
        unit="fraction or steps",
        gt=0,
        importance="advanced",
        visible_when={".name": ["wsd"]},
    )
    pieces: Str = setting(
        "1: 0.5, 0.1: 0.8, 0.01",
        label="Piecewise schedule",
        also_called="piecewise_constant, step_rules, lr milestones, MultiStepLR",
        help='A list of factor: end, with only a factor at the end. "1: 0.5, 0.1: 0.8, 0.01" is the full rate for '
        "half of the run, a tenth until 80% of it, then a hundredth. Ends from 1 are optimizer steps.",
        group="optimizer",
        importance="advanced",
        visible_when={".name": ["piecewise"]},
    )
