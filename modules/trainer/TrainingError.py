"""Exceptions that end a training."""

from modules.config.errors import UserError


class TrainingError(UserError):
    """Training can't continue; `str()` is one sentence with the remedy."""


class DamagedBackup(TrainingError):
    """A backup that can't be resumed from; `str()` says what is wrong with it."""


class StopRequested(Exception):
    """A stop was requested before the first step; there is nothing to save."""
