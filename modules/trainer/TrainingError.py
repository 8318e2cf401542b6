"""What is raised when training can't go on."""

from modules.config.errors import UserError


class TrainingError(UserError):
    """Training can't go on; `str()` is one sentence with the remedy."""


class StopRequested(Exception):
    """A stop was asked for before the first step: there is nothing to save."""
