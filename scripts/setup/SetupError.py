"""Why there is no environment."""


class SetupError(Exception):
    """The environment can't be made; str() is one sentence with the remedy, `log_lines` what was printed before."""

    def __init__(self, sentence, log_lines=()):
        super().__init__(sentence)
        self.log_lines = list(log_lines)
