"""What is raised when the data, not the program, is at fault."""

from modules.config.errors import UserError


class DataError(UserError):
    """A folder, caption or data setting the user can mend; `str()` is one sentence."""


class PictureError(DataError):
    """A picture that can't be used: `path` and `reason`. Callers list it and go on without the picture."""

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(path, reason)  # both in args, so that the error survives pickling between processes
        self.path = path
        self.reason = reason

    def __str__(self) -> str:
        return f"picture {self.path} can't be used ({self.reason}): repair it or remove it."
