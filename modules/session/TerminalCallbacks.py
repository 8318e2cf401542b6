"""Terminal output of a training: a progress bar, or plain lines where the output is not a terminal."""

import contextlib
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TextIO

from tqdm import tqdm

from modules.config.counted import counted
from modules.config.visible_text import visible_line
from modules.session.event_types import loss_text
from modules.session.printing import print_line
from modules.session.StepInfo import StepInfo
from modules.session.TrainCallbacks import TrainCallbacks

_LINE_SECONDS = 5.0  # between two step lines in a log file
_USUAL_SIZE = {"ncols": 80, "nrows": 24}  # assumed for a terminal that does not report its size


class TerminalCallbacks(TrainCallbacks):
    """Prints progress to `stream` (None: stderr), as a bar on a terminal, else as a line every few seconds."""

    def __init__(self, stream: TextIO | None = None, tells_failure: bool = True):
        """tells_failure: False if another process prints why a run of several ranks failed."""
        self._stream = sys.stderr if stream is None else stream
        self._tells_failure = tells_failure
        self._has_bar = self._stream.isatty()
        self._bar: tqdm | None = None
        self._next_line = 0.0
        self._own_samples: set[Path] = set()  # of the current round

    def on_status(self, text: str) -> None:
        self._write(text)

    def on_waiting(self, text: str) -> None:
        self._write(text)

    def on_progress(self, text: str, done: int, total: int) -> None:
        self._write(f"{text}: {done} of {total}")

    def on_step(self, info: StepInfo) -> None:
        loss = info.loss if info.smooth_loss is None else info.smooth_loss
        told = f"loss {loss_text(loss)}"
        speed = f", {info.samples / info.seconds:.2f} samples/s" if info.seconds > 0 else ""
        if self._has_bar:
            # most important first: a narrow terminal cuts off the end
            self._move_bar(info, f"{told}{speed}, lr {info.lr:.2e}, epoch {info.epoch}")
        elif time.monotonic() >= self._next_line or info.step == info.steps_total:
            self._next_line = time.monotonic() + _LINE_SECONDS
            step = f"step {info.step}/{info.steps_total}, epoch {info.epoch}"
            self._write(f"{step}, {told}, lr {info.lr:.2e}{speed}")

    def on_validation(self, step: int, samples: int, loss: float | None, ema_loss: float | None) -> None:
        averaged = "" if ema_loss is None else f", of the averaged weights {ema_loss:.4f}"
        self._write(f"Validation at step {step}: loss {loss_text(loss)}{averaged} ({samples} held-out samples)")

    def on_sample(self, path: str | Path, prompt: str, step: int) -> None:
        self._own_samples.add(Path(path))
        self._write(f"Sample at step {step}: {path}")

    def on_samples(self, folder: str | Path, step: int) -> None:
        """List the samples of other ranks, which are reported only to their own callbacks."""
        for path in sorted({*Path(folder).glob("*.png")} - self._own_samples):
            self._write(f"Sample at step {step}: {path}")
        self._own_samples.clear()

    def on_backup(self, path: str | Path, step: int) -> None:
        self._write(f"Backup at step {step}: {path}")

    def on_saved(self, path: str | Path, step: int) -> None:
        self._write(f"Model saved at step {step}: {path}")

    def on_warning(self, text: str) -> None:
        self._write(f"Warning: {text}")

    def on_failed(self, text: str) -> None:
        if self._tells_failure:
            self._write(*f"Failed: {text}".split("\n"))

    def on_finished(self, step: int) -> None:
        self._write(f"Finished after {counted(step, 'step')}.")

    def close(self) -> None:
        """Leave the bar on screen and move the cursor to a new line."""
        if self._bar is not None:
            with self._ignoring_output_errors():
                self._bar.close()
            self._bar = None

    def _move_bar(self, info: StepInfo, figures: str) -> None:
        with self._ignoring_output_errors():
            if self._bar is None:  # created at the first step: the speed of a resumed run counts from there
                options = {"total": info.steps_total, "initial": info.step - 1, "unit": "step"}
                size = {"dynamic_ncols": True} if _has_size(self._stream) else _USUAL_SIZE
                self._bar = tqdm(**options, file=self._stream, **size)
            self._bar.set_postfix_str(figures, refresh=False)
            self._bar.update(info.step - self._bar.n)

    def _write(self, *lines: str) -> None:
        with self._ignoring_output_errors():
            for line in lines:
                if self._has_bar:
                    tqdm.write(visible_line(line), file=self._stream)
                else:
                    print_line(line, self._stream)

    @contextlib.contextmanager
    def _ignoring_output_errors(self) -> Iterator[None]:
        """Ignore output errors: a closed terminal, or a full disk under a log file, must not end the training."""
        try:
            yield
        except OSError:
            pass
        except ValueError:
            if not self._stream.closed:
                raise


def _has_size(stream: TextIO) -> bool:
    """Whether a terminal reports its size. Some report 0, as in containers, and tqdm then shows nothing."""
    try:
        return os.get_terminal_size(stream.fileno()).columns > 0
    except OSError:  # not a system terminal: tqdm reads the environment
        return True
