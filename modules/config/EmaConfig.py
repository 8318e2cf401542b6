from pydantic.dataclasses import dataclass

from modules.config.setting import STRICT, Float, Int, setting


@dataclass(config=STRICT)
class EmaConfig:
    """The exponential moving average (EMA) of the trained weights."""

    enabled: bool = setting(
        False,
        label="EMA",
        also_called="use_ema, exponential moving average",
        help="Keep a running average (EMA) of the trained weights and save it. Steadier results, at the cost of one "
        "copy of these weights in memory.",
        group="training",
    )
    decay: Float = setting(
        0.999,
        label="EMA decay",
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
        help="Update the EMA every N steps; the decay is adjusted accordingly. 1 is exact; 10 saves time and makes "
        "hardly any difference.",
        group="training",
        unit="steps",
        ge=1,
        importance="advanced",
        visible_when={".enabled": [True]},
    )
    start_after: Int = setting(
        0,
        label="Start after",
        help="Start averaging after this many steps. 0: from the first step.",
        group="training",
        unit="steps",
        ge=0,
        importance="advanced",
        visible_when={".enabled": [True]},
    )
    sample: bool = setting(
        True,
        label="Sample with EMA weights",
        help="Generate samples with the averaged weights. Off: with the trained weights.",
        group="training",
        importance="advanced",
        visible_when={".enabled": [True]},
    )
