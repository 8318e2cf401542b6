"""The summary of a run, as `scripts/train.py --dry-run` prints it."""

from __future__ import annotations

from modules.config.TrainConfig import TrainConfig
from modules.data.run_summary import summarize


def summary_text(config: TrainConfig, num_ranks: int = 1, resume: bool = False) -> str:
    """A line for each entry, without the warnings of the checks before."""
    return summarize(config, num_ranks, resume=resume).text()
