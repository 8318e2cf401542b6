"""Terminal output of a rank other than 0: only what rank 0 can't know, or prints on another machine."""

import contextlib
from typing import TextIO

from modules.config.counted import counted
from modules.session.printing import print_line
from modules.session.TrainCallbacks import TrainCallbacks


class OtherRankCallbacks(TrainCallbacks):
    """Prints this rank's warnings to `stream`; everything else is printed by rank 0.

    node: if not 0, also prints start and end of this node's `num_ranks` ranks, whose terminal would stay empty.
    """

    def __init__(self, rank: int, stream: TextIO, node: int = 0, num_ranks: int = 1):
        self._rank = rank
        self._stream = stream
        self._node = node
        self._num_ranks = num_ranks

    def on_started(self, started: float) -> None:
        self._print_of_node(f"starting {counted(self._num_ranks, 'rank')}; the terminal of node 0 shows the progress")

    def on_warning(self, text: str) -> None:
        self._print(f"Warning from rank {self._rank}: {text}")

    def on_finished(self, step: int) -> None:
        self._print_of_node(f"done after {counted(step, 'step')}")

    def _print_of_node(self, text: str) -> None:
        if self._node:
            self._print(f"Node {self._node}: {text}")

    def _print(self, text: str) -> None:
        with contextlib.suppress(OSError):  # a terminal that was closed must not end the training
            print_line(text, self._stream)
