from pydantic.dataclasses import dataclass

from modules.config.setting import INTERVAL_LABELS, STRICT, Float, Int, IntervalUnit, setting


@dataclass(config=STRICT)
class BackupConfig:
    """When the state of the run is backed up, so that it can be resumed after an interruption."""

    every: Float = setting(
        15.0,
        label="Back up every",
        also_called="checkpointing_steps",
        help="Interval between backups: at most this much training is lost.",
        group="backup",
        ge=0,
        visible_when={".unit": ["steps", "minutes", "epochs"]},
    )
    unit: IntervalUnit = setting(
        "minutes",
        label="Unit",
        help="Unit of the interval. Never: no backups at intervals.",
        group="backup",
        choice_labels=INTERVAL_LABELS,
    )
    keep: Int = setting(
        2,
        label="Keep last N backups",
        also_called="checkpoints_total_limit",
        help="Number of recent backups to keep; older ones are deleted. Keep at least 2 in case one is damaged.",
        group="backup",
        ge=1,
    )
    at_end: bool = setting(
        True,
        label="Back up at the end",
        help="Also back up when the run ends or is stopped, so that it can be continued.",
        group="backup",
    )
