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
        also_called="lr_scheduler, learning_rate_scheduler, cosine_with_restarts, warmup_stable_decay",
        help="Course of the learning rate after the warm-up: it stays, or falls to its final share. REX stays high "
        "for longer than a line and falls at the end, the inverse square root never stops falling. WSD stays constant "
        "and falls in the last part of the run. Piecewise constant has a factor for each part of the run.",
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
        also_called="lr_warmup_steps, warmup",
        help="The learning rate rises from zero this long. Below 1: share of all steps; from 1: optimizer steps.",
        group="optimizer",
        unit="fraction or steps",
        ge=0,
    )
    final_share: Float = setting(
        0.0,
        label="Min LR ratio",
        also_called="lr_scheduler_min_lr_ratio, lr_min_factor",
        help="The least share of the learning rate, which is left at the end. 0 ends at zero, 0.1 keeps a tenth.",
        group="optimizer",
        ge=0,
        le=1,
        importance="advanced",
        visible_when={".name": KEEPS_FINAL_SHARE},
    )
    restarts: Int = setting(
        3,
        label="Number of cycles",
        also_called="lr_scheduler_num_cycles, cosine_restarts",
        help="How many cosines the run is cut into; each falls from the whole learning rate to the final share. Those "
        "that go down and up rise again, and the run ends at the whole rate.",
        group="optimizer",
        ge=1,
        le=1_000_000,
        importance="advanced",
        visible_when={".name": ["cosine_restarts", "cosine_waves"]},
    )
    power: Float = setting(
        2.0,
        label="Power",
        also_called="lr_scheduler_power",
        help="Of the polynomial: 1 is a line, 2 falls fast at first and slowly at the end.",
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
        help="The larger, the longer the learning rate stays high: 0 is a line, 0.5 is the paper's REX, 0.9 is "
        "OneTrainer's.",
        group="optimizer",
        ge=0,
        lt=1,
        importance="advanced",
        visible_when={".name": ["rex"]},
    )
    decay: Float = setting(
        0.2,
        label="Decay",
        also_called="lr_decay_steps, num_decay_steps, cooldown",
        help="Of WSD: the learning rate falls this long at the end of the run, as half a cosine. Below 1: share of all "
        "steps; from 1: optimizer steps. 0.1 to 0.2 is usual.",
        group="optimizer",
        unit="fraction or steps",
        gt=0,
        importance="advanced",
        visible_when={".name": ["wsd"]},
    )
    pieces: Str = setting(
        "1: 0.5, 0.1: 0.8, 0.01",
        label="Pieces",
        also_called="piecewise_constant, step_rules, lr milestones, MultiStepLR",
        help="Factors of the learning rate with the point where each ends, the last one without: here the whole rate "
        "for half of the run, a tenth until 0.8 of it, then a hundredth. From 1, ends are optimizer steps.",
        group="optimizer",
        importance="advanced",
        visible_when={".name": ["piecewise"]},
    )
