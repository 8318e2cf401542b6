from pydantic.dataclasses import dataclass

from modules.config.setting import STRICT, Float, Int, setting


@dataclass(config=STRICT)
class EmaConfig:
    """The exponential moving average (EMA) of the trained weights."""

    enabled: bool = setting(
        False,
        label="EMA",
        also_called="use_ema, exponential moving average",
        help="Keep a running average of the trained weights and save that. Steadier results for a copy's memory.",
        group="training",
    )
    decay: Float = setting(
        0.999,
        label="EMA decay",
        also_called="ema_decay",
        help="Fraction of the average kept at each step. 0.999 looks back about 1,000 steps; short runs like 0.99.",
        group="training",
        gt=0,
        lt=1,
        importance="advanced",
        visible_when={".enabled": [True]},
    )
    update_every: Int = setting(
        1,
        label="Update every",
        also_called="ema_update_step_interval",
        help="The average takes the weights in once in so many steps, and then with as much weight as in all of them. "
        "1 is exact; 10 saves time and hardly differs.",
        group="training",
        unit="steps",
        ge=1,
        importance="advanced",
        visible_when={".enabled": [True]},
    )
    start_after: Int = setting(
        0,
        label="Start after",
        help="Until so many steps are done the average is the weights as they are. 0 averages from the first step.",
        group="training",
        unit="steps",
        ge=0,
        importance="advanced",
        visible_when={".enabled": [True]},
    )
    sample: bool = setting(
        True,
        label="Sample with EMA weights",
        help="Samples are made from the averaged weights. Off: from the weights as trained.",
        group="training",
        importance="advanced",
        visible_when={".enabled": [True]},
    )
