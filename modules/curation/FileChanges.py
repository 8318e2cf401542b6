"""What is to become of files of a dataset, and what each was when it was last read."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from modules.config.counted import counted
from modules.config.errors import UserError
from modules.config.regular_file import read_regular

MISSING = ""
"""The fingerprint of a file that is not there."""
NUM_LISTED = 3  # files named in a message


@dataclass(frozen=True)
class FileChanges:
    """new: path -> what the file will contain; None removes it.

    seen: path -> the `fingerprint` of what the change was made from. A path that it lacks must not exist yet: so a file
    that nobody has read is never overwritten.
    """

    new: Mapping[str, bytes | None]
    seen: Mapping[str, str] = field(default_factory=dict)

    def __or__(self, other: FileChanges) -> FileChanges:
        """Both as one change; of a file that is in both, what `other` says holds."""
        return FileChanges({**self.new, **other.new}, {**self.seen, **other.seen})


class ChangedOutside(UserError):
    """Files that another program has changed, added or removed since they were read. paths: theirs.

    Ask the person. What reads them again (`CaptionFiles.reload`) makes the change anew from what they are now.
    """

    def __init__(self, paths: Sequence[str]):
        self.paths = tuple(paths)
        listed = ", ".join(map(os.path.basename, self.paths[:NUM_LISTED]))
        more = f" and {len(self.paths) - NUM_LISTED} more" if len(self.paths) > NUM_LISTED else ""
        files = counted(len(self.paths), "file was", "files were")
        super().__init__(
            f"{files} changed by another program since Chorus read them ({listed}{more}), and nothing was written: "
            "reload them, or choose to overwrite them."
        )

    def __reduce__(self) -> tuple[type, tuple[tuple[str, ...]]]:  # for pickling between processes
        return type(self), (self.paths,)


def fingerprint(content: bytes | None) -> str:
    """What tells the content of a file from any other; MISSING for None."""
    return MISSING if content is None else hashlib.blake2b(content, digest_size=16).hexdigest()


def read_present(path: str | os.PathLike[str]) -> bytes | None:
    """The content of a file; None if it is not there. Raises OSError if it can't be read or is no regular file."""
    try:
        return read_regular(path)
    except (FileNotFoundError, NotADirectoryError):
        return None
