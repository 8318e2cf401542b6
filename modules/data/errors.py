"""Errors caused by the dataset, not by the program."""

from modules.config.errors import UserError
from modules.config.installation import CONVERTS_CAPTIONS


class DataError(UserError):
    """A problem with a folder, a caption or a data setting that the user can fix; `str()` is one sentence."""


class ImageError(DataError):
    """An image that can't be used: `path` and `reason`. Callers report it and skip the image."""

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(f"image {path} can't be used ({reason}): repair it or remove it.")
        self.path = path
        self.reason = reason

    def __reduce__(self) -> tuple[type, tuple[str, str]]:  # for pickling between processes
        return type(self), (self.path, self.reason)


class CaptionError(DataError):
    """A caption file that can't be used: `path`, `reason` and `kind`, a key of REMEDIES."""

    REMEDIES = {
        "encoding": f"save it as UTF-8 ({CONVERTS_CAPTIONS})",
        "size": "shorten it",
        "access": "make it a readable text file",
    }

    def __init__(self, path: str, kind: str, reason: str) -> None:
        super().__init__(f"caption file {path} {reason}: {self.REMEDIES[kind]}.")
        self.path = path
        self.kind = kind
        self.reason = reason

    def __reduce__(self) -> tuple[type, tuple[str, str, str]]:
        return type(self), (self.path, self.kind, self.reason)
