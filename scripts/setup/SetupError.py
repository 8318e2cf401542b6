"""Why there is no environment."""

from collections.abc import Iterable


class SetupError(Exception):
    """The environment can't be made; str() is one sentence with the remedy, `log_lines` what was printed before."""

    def __init__(self, sentence: str, log_lines: "Iterable[str]" = ()) -> None:
        super().__init__(sentence)
        self.log_lines = list(log_lines)
