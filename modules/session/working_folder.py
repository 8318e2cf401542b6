"""The folder in which Chorus was started, from which relative paths go out."""

import os

from modules.config.errors import UserError

GONE = "The folder in which Chorus was started is gone: start it again from another one."


def working_folder() -> str:
    """Raises UserError where it was deleted meanwhile, or its disk has gone."""
    try:
        return os.getcwd()
    except OSError as error:
        raise UserError(GONE) from error


def absolute_path(path: str | os.PathLike) -> str:
    """`path` from the root on, with ~ put in. Raises UserError where it goes out from a folder that is gone."""
    path = os.path.expanduser(path)
    if not os.path.isabs(path):
        path = os.path.join(working_folder(), path)
    return os.path.abspath(path)
