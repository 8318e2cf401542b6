"""The folder in which Chorus was started, which relative paths refer to."""

import os
from pathlib import Path

from modules.config.errors import UserError

GONE = "The folder in which Chorus was started no longer exists: start it again from another one."


def working_folder() -> str:
    """The working folder. Raises UserError if it no longer exists."""
    try:
        return os.getcwd()
    except OSError as error:
        raise UserError(GONE) from error


def absolute_path(path: str | os.PathLike) -> str:
    """`path` made absolute, with ~ expanded. Raises UserError if it is relative and the working folder is gone."""
    path = os.path.expanduser(path)
    if not os.path.isabs(path):
        path = os.path.join(working_folder(), path)
    return os.path.abspath(path)


def shown_path(path: Path) -> str:
    """A path as in the settings: relative to the working folder if it is inside it."""
    try:
        here = working_folder()
    except UserError:
        return str(path)
    return str(path.relative_to(here) if path.is_relative_to(here) else path)
