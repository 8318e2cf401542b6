"""What is raised when training can't go on."""

from modules.config.errors import UserError


class TrainingError(UserError):
    """Training can't go on; `str()` is one sentence with the remedy."""


class DamagedBackup(TrainingError):
    """A backup that can't be resumed from; `str()` says what is wrong with it."""


class StopRequested(Exception):
    """A stop was asked for before the first step: there is nothing to save."""
