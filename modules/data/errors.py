"""What is raised when the data, not the program, is at fault."""

from modules.config.errors import UserError


class DataError(UserError):
    """A folder, caption or data setting the user can mend; `str()` is one sentence."""


class ImageError(DataError):
    """A picture that can't be used: `path` and `reason`. Callers list it and go on without the picture."""

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(f"picture {path} can't be used ({reason}): repair it or remove it.")
        self.path = path
        self.reason = reason

    def __reduce__(self) -> tuple[type, tuple[str, str]]:  # between processes
        return type(self), (self.path, self.reason)


class CaptionError(DataError):
    """A file of captions that can't be used: `path`, `reason` and `kind`, which is a key of REMEDIES."""

    REMEDIES = {
        "encoding": "save it as UTF-8 (scripts/check_data.py --convert-captions does that)",
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
