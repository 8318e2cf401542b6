"""The window in a process of its own, closed while its threads validate settings by Rust code, which calls Python.

    python tests/support/busy_window.py CHORUS [options of scripts/train_ui.py]

CHORUS is the folder whose code is run.
"""

from __future__ import annotations

import sys

NUM_THREADS = 3
BUSY_MS = 150


def main() -> int:
    from modules.config.files import config_from_values
    from modules.ui.toolkit import load_toolkit

    load_toolkit()
    from modules.ui.TrainUI import TrainUI
    from scripts import train_ui

    mainloop = TrainUI.mainloop
    train_ui.FINISH_SECONDS = 0.05

    def compute() -> None:
        while True:
            config_from_values({"optimizer": {"learning_rate": 1e-4}})

    def closed_mainloop(window: TrainUI) -> None:
        for _ in range(NUM_THREADS):
            window.in_background(compute, lambda nothing: None)
        window._start_threads()
        window.after(BUSY_MS, window.close)
        mainloop(window)

    TrainUI.mainloop = closed_mainloop
    return train_ui.main(sys.argv[2:])


if __name__ == "__main__":
    sys.path[0] = sys.argv[1]
    from modules.session.program_end import end_program

    end_program(main, waits=False)
