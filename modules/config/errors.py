"""What is raised when the user, not the program, made the mistake."""


class UserError(Exception):
    """A mistake the user can mend; `str()` is one sentence that names what, its value, the rule and the remedy."""


class ConfigError(UserError):
    """Settings that can't be used; `problems` holds one sentence for each mistake, `str()` one line for each.

    All mistakes of a file are reported together, so that nobody mends them one start at a time.
    """

    def __init__(self, problems: str | list[str]):
        self.problems = [problems] if isinstance(problems, str) else list(problems)
        super().__init__("\n".join(self.problems))
