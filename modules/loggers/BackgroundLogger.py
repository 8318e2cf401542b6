"""A logger whose calls may take long, so that a thread makes them."""

from __future__ import annotations

import contextlib
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from modules.config.counted import counted
from modules.config.errors import UserError, first_line
from modules.loggers.Logger import CLOSE_SECONDS, LoggedRun, Logger, Tell

MAX_ENTRIES = 10_000  # that wait to be sent
MAX_AT_ONCE = 100
MAX_REASON = 200  # characters of a library's message
RETRY_SECONDS = 60.0
QUIET_SECONDS = 1.0  # of the waiting at the end, until it is said


@dataclass(frozen=True)
class Figures:
    """step: optimizer steps done. time: when, in Unix seconds."""

    step: int
    time: float
    values: Mapping[str, float]


@dataclass(frozen=True)
class SampleFile:
    """An image, or a video, generated from `prompt`. name: the same for each round of samples."""

    name: str
    path: Path
    prompt: str


class BackgroundLogger(Logger):
    """Sends what it gets in a thread of its own, so that the training never waits for a network.

    If that fails, there is one warning, and it is tried again every minute. Meanwhile up to MAX_ENTRIES entries wait;
    what does not fit is left out, with a warning.

    Subclasses implement `connect`, `send_figures`, `send_samples` and `disconnect`, which the thread calls, and which
    may raise anything. After an ImportError or a UserError, logging stops. samples: whether samples are sent, too.
    """

    def __init__(self, every_steps: int = 1, samples: bool = True):
        super().__init__(every_steps)
        self._takes_samples = samples
        self._thread: threading.Thread | None = None

    def connect(self, run: LoggedRun) -> None:
        """Starts or continues the run at the service."""
        raise NotImplementedError

    def send_figures(self, batch: Sequence[Figures]) -> None:
        raise NotImplementedError

    def send_samples(self, samples: Sequence[SampleFile], step: int) -> None:
        raise NotImplementedError

    def disconnect(self) -> None:
        """Ends the run at the service, as `outcome` says, after all entries were sent."""
        raise NotImplementedError

    def how_to_send_the_rest(self) -> str:
        """A sentence for a run that ended before all was sent, or ""."""
        return ""

    def start(self, run: LoggedRun) -> None:
        self._run = run
        self.outcome = "stopped"  # "finished", "failed" or "stopped"
        self._waiting: deque[Figures | Callable[[], None]] = deque()
        self._changed = threading.Condition()
        self._closing = threading.Event()
        self._sentences: deque[tuple[Tell, str]] = deque()  # for people, whom only the thread of the training tells
        self._sending: list = []  # what has been taken from those that wait
        self._is_off = self._fails = False
        self._num_left_out = 0
        self._thread = threading.Thread(target=self._work, name=f"{self.title} logging", daemon=True)
        self._thread.start()

    def log_figures(self, figures: Mapping[str, float], step: int) -> None:
        self._put(Figures(step, time.time(), figures))

    def log_samples(self, folder: Path, step: int) -> None:
        if self._takes_samples:
            self._put(partial(self._send_samples, folder, step))

    def on_failed(self, text: str) -> None:
        self.outcome = "failed"

    def on_finished(self, step: int) -> None:
        self.outcome = "finished"

    def end(self) -> None:
        if self._thread is not None:
            self._closing.set()
            with self._changed:
                self._changed.notify()

    def close(self, seconds: float = CLOSE_SECONDS) -> None:
        """Waits at most `seconds` until all is sent, and says what is not."""
        self.end()
        thread, self._thread = self._thread, None
        if thread is None:
            return
        with contextlib.suppress(KeyboardInterrupt):  # a second Ctrl-C: don't wait
            thread.join(min(seconds, QUIET_SECONDS))
            if thread.is_alive() and seconds > QUIET_SECONDS:
                self._run.tell(f"Sending the rest to {self.title}")
                thread.join(seconds - QUIET_SECONDS)
        self._tell_people()
        num_unsent = len(self._sending) + len(self._waiting)
        if thread.is_alive() or self._num_left_out or (num_unsent and not self._is_off):
            missing = counted(num_unsent + self._num_left_out, "entry", "entries")
            rest = f" {self.how_to_send_the_rest()}".rstrip()
            self._run.warn(f"{self.title}: the training has ended before all was sent ({missing} missing).{rest}")

    # --- the thread of the training -------------------------------------------------------------------------------

    def _put(self, entry: Figures | Callable[[], None]) -> None:
        self._tell_people()
        if self._thread is None or self._is_off:
            return
        with self._changed:
            if len(self._waiting) < MAX_ENTRIES:
                self._waiting.append(entry)
                self._changed.notify()
                return
        if not self._num_left_out:
            self._run.warn(f"{self.title} is too slow or can't be reached: some of the figures are left out there.")
        self._num_left_out += 1

    def _tell_people(self) -> None:
        while self._sentences:
            tell, text = self._sentences.popleft()
            tell(text)

    # --- the thread that sends ------------------------------------------------------------------------------------

    def _work(self) -> None:
        if not self._insist(partial(self.connect, self._run)):
            return
        while self._take():
            first = self._sending[0]
            send = partial(self.send_figures, self._sending) if isinstance(first, Figures) else first
            if not self._insist(send):
                return
        self._insist(self.disconnect)

    def _send_samples(self, folder: Path, step: int) -> None:
        samples = []
        for path in sorted(folder.glob("*.png")):
            try:
                samples.append(read_sample(path))
            except OSError as error:  # deleted since then, or damaged
                self._warn(f"{self.title}: {path} can't be read ({error.strerror or error}) and is left out.")
        self.send_samples(samples, step)

    def _take(self) -> bool:
        """Waits for entries to send: several figures, or one round of samples. False: the training has ended."""
        with self._changed:
            self._changed.wait_for(lambda: self._waiting or self._closing.is_set())
            self._sending = []
            while self._waiting and len(self._sending) < MAX_AT_ONCE:
                if self._sending and not all(isinstance(e, Figures) for e in (self._sending[0], self._waiting[0])):
                    break
                self._sending.append(self._waiting.popleft())
            return bool(self._sending)

    def _insist(self, send: Callable[[], None]) -> bool:
        """Calls `send` until it succeeds. False: the training ended before, or there is no use in it."""
        while True:
            try:
                send()
            except (ImportError, UserError) as error:
                self._is_off = True
                self._warn(f"{self.title} logging stops: {first_line(error)}.")
                return False
            except Exception as error:  # a library for a network may raise anything
                if not self._fails:
                    self._fails = True
                    reason = first_line(error)[:MAX_REASON]
                    again = "training continues, and it is tried again every minute"
                    self._warn(f"Logging to {self.title} fails ({reason}); {again}.")
                if self._closing.wait(RETRY_SECONDS):
                    return False
            else:
                if self._fails:
                    self._fails = False
                    self.tell(f"Logging to {self.title} works again")
                return True

    def tell(self, text: str) -> None:
        """Passes a status to people."""
        self._sentences.append((self._run.tell, text))

    def _warn(self, text: str) -> None:
        self._sentences.append((self._run.warn, text))


def read_sample(path: Path) -> SampleFile:
    """The sample whose image is at `path`, or the video of the same name. Raises OSError."""
    from PIL import Image

    with Image.open(path, formats=("PNG",)) as picture:
        prompt = str(picture.info.get("prompt", ""))
    video = path.with_suffix(".mp4")
    return SampleFile(path.stem, video if video.exists() else path, prompt)
