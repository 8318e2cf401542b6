"""What is raised when ranks can't work together."""

from modules.config.errors import UserError


class RanksError(UserError):
    """Ranks can't meet; `str()` is one sentence with the remedy."""


class RankLostError(RanksError):
    """A rank that was there is not heard of any more: something has happened to it that this rank can't know."""
