"""What is raised for a model file that can't be used."""

from modules.config.errors import UserError


class WeightsError(UserError):
    """A model file or folder that can't be read or is of the wrong kind; `str()` is one sentence with its path."""
