"""Exceptions of distributed training."""

from modules.config.errors import UserError


class RanksError(UserError):
    """The ranks can't work together; `str()` is one sentence with the remedy."""


class RankLostError(RanksError):
    """Another rank has disappeared for a reason that this rank can't know."""
