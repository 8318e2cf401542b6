"""Check whether a folder, which need not exist yet, can be written to, without writing anything."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

from modules.config.errors import UserError
from modules.session.names import illegal_on_windows
from modules.session.working_folder import absolute_path

_ON_WINDOWS = os.name == "nt"


def folder_path(setting: str, folder: str | os.PathLike) -> Path:
    """The folder as an absolute path, without touching the disk. Raises UserError, naming the setting, if invalid."""
    text = os.fspath(folder)
    if not text.strip():
        raise UserError.at(setting, "is empty: name a folder to write to.")
    if not _can_be_a_path(text):  # every file operation would raise ValueError
        raise UserError.at(setting, f"{text!r} contains a character that no path can have: choose another folder.")
    if _ON_WINDOWS and (name := illegal_on_windows(text)):
        raise UserError.at(setting, f"{text!r}: Windows has no folders named {name!r}; choose another name.")
    return Path(absolute_path(text))


def check_writable(setting: str, folder: str | os.PathLike) -> None:
    """Raises UserError, naming the setting, if `look_for_obstacles` raises OSError."""
    path = folder_path(setting, folder)
    try:
        look_for_obstacles(path)
    except OSError as error:
        raise UserError(unusable(setting, path, error), setting) from error


def look_for_obstacles(path: Path) -> None:
    """Raises OSError if the folder can't be created or written to.

    Problems that only an attempt would show, such as a full disk or a read-only share, are not found.
    """
    existing = _nearest_folder(path)
    _check_names(path, existing)
    if not os.access(existing, os.W_OK | os.X_OK):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(existing))


def unusable(setting: str, path: Path, error: OSError) -> str:
    """The error message for a folder that could not be written to."""
    remedy = "choose another folder"
    if isinstance(error, FileExistsError | NotADirectoryError):
        wanted = Path(error.filename)
        blocker = next((place for place in [wanted, *wanted.parents] if place.is_file()), wanted)
        reason = f"{blocker} is a file where a folder is needed"
    elif isinstance(error, PermissionError):
        reason = "there is no permission to write in it"
    elif error.errno in (errno.ENOSPC, errno.EDQUOT):
        reason, remedy = "its disk is full", "free some space there, or choose another folder"
    else:
        reason = error.strerror or str(error)
    return f"{setting} {str(path)!r} can't be used: {reason}; {remedy}."


def _nearest_folder(path: Path) -> Path:
    """`path`, or its deepest existing parent. Raises OSError."""
    for place in (path, *path.parents):
        try:
            mode = os.stat(place).st_mode
        except (FileNotFoundError, NotADirectoryError):
            continue
        if not stat.S_ISDIR(mode):
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(place))
        return place
    raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path))  # the drive does not exist


def _check_names(path: Path, existing: Path) -> None:
    """Check the names of folders to be created below `existing`; outside POSIX accessing `path` has checked them."""
    if hasattr(os, "pathconf"):
        limit = os.pathconf(existing, "PC_NAME_MAX")
        if any(len(os.fsencode(name)) > limit for name in path.relative_to(existing).parts):
            raise OSError(errno.ENAMETOOLONG, os.strerror(errno.ENAMETOOLONG), str(path))


def _can_be_a_path(text: str) -> bool:
    """Whether `text` has no NUL and no lone surrogates, which only Windows accepts."""
    try:
        return b"\0" not in os.fsencode(text)
    except UnicodeEncodeError:
        return False
