from pydantic.dataclasses import dataclass

from modules.config.setting import INTERVAL_LABELS, STRICT, Float, Int, IntervalUnit, setting


@dataclass(config=STRICT)
class BackupConfig:
    """When the state of the run is backed up, so that it can be resumed after an interruption."""

    every: Float = setting(
        0.0,
        label="Back up every",
        also_called="save_state, checkpointing_steps, backup_after",
        help="How much training lies between two backups, in the unit beside it: at most this much is lost.",
        group="backup",
        ge=0,
        visible_when={".unit": ["steps", "minutes", "epochs"]},
    )
    unit: IntervalUnit = setting(
        "never",
        label="Unit",
        help="What the interval between two backups is counted in; never makes none by itself.",
        group="backup",
        choice_labels=INTERVAL_LABELS,
    )
    keep: Int = setting(
        2,
        label="Keep last N backups",
        also_called="save_last_n_steps_state, checkpoints_total_limit, rolling_backup_count",
        help="How many of the newest backups stay on the disk; older ones are deleted. With 2, a damaged one does no "
        "harm.",
        group="backup",
        ge=1,
    )
    at_end: bool = setting(
        True,
        label="Back up at the end",
        also_called="save_state_on_train_end",
        help="Also back up when the run ends or is stopped, so that it can be continued.",
        group="backup",
    )
