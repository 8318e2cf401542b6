"""What single options of a training cost: each against the same run without it."""

from __future__ import annotations

# Name of an option -> its settings. A new optimizer or option that may change the time of a step belongs here.
OPTIONS = {
    "ema": ("ema.enabled=true",),
    "ema_every_10": ("ema.enabled=true", "ema.update_every=10"),
    "schedule_free": ("optimizer.name=schedule_free",),
    "lion": ("optimizer.name=lion", "optimizer.learning_rate=1e-5"),
    "adafactor": ("optimizer.name=adafactor",),
    "came": ("optimizer.name=came",),
    "prodigy": ("optimizer.name=prodigy", "optimizer.learning_rate=1"),
    "sgd": ("optimizer.name=sgd",),
    "rounding": ("model.weight_dtype=bfloat16", "optimizer.stochastic_rounding=true"),
    "compile": ("model.compile=blocks",),
}
