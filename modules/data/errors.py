"""What is raised when the data, not the program, is at fault."""

from modules.config.errors import UserError


class DataError(UserError):
    """A folder, caption or data setting the user can mend; `str()` is one sentence."""


class PictureError(DataError):
    """A picture that can't be used: `path` and `reason`. Callers list it and go on without the picture."""

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(f"picture {path} can't be used ({reason}): repair it or remove it.")
        self.path = path
        self.reason = reason

    def __reduce__(self) -> tuple[type, tuple[str, str]]:  # between processes
        return type(self), (self.path, self.reason)
