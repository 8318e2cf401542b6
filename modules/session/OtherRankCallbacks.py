"""Terminal output of a rank other than 0: only what rank 0 can't know."""

import contextlib
from typing import TextIO

from modules.session.printing import print_line
from modules.session.TrainCallbacks import TrainCallbacks


class OtherRankCallbacks(TrainCallbacks):
    """Prints this rank's warnings to `stream`; everything else is printed by rank 0."""

    def __init__(self, rank: int, stream: TextIO):
        self._rank = rank
        self._stream = stream

    def on_warning(self, text: str) -> None:
        with contextlib.suppress(OSError):  # a terminal that was closed must not end the training
            print_line(f"Warning from rank {self._rank}: {text}", self._stream)
