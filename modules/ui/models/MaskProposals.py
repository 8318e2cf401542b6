"""Masks that a model proposes for the image that is painted: scripts/mask.py --serve in a separate process. No Tk."""

from __future__ import annotations

import hashlib
import json
import os
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from PIL import Image

from modules.config.errors import UserError
from modules.data.videos import is_video
from modules.machine.ChildProcess import ChildProcess
from modules.session.byte_sizes import spoken_bytes
from modules.ui.models import AnnotatorRun
from modules.ui.models.AnnotatorRun import in_words_of_the_window, last_line

if TYPE_CHECKING:
    from modules.ui.models.MaskerChoices import MaskerChoices
    from modules.ui.models.open_mask import OpenMask

IDLE_SECONDS = 300.0  # without a question, after which the process ends: its model may hold a GPU's memory
Clicks = Sequence[tuple[float, float, bool]]
"""Places in pixels of the mask, and whether they are inside of what is wanted."""


class MaskProposals:
    """`ask` may take minutes, in a thread; the other methods may be called meanwhile.

    The process stays, with its model, until another model is asked, it is idle, or `end`.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic):
        self._clock = clock
        self._asking = threading.Lock()
        self._session: _Session | None = None
        self._used_at = 0.0

    def ask(self, opened: OpenMask, choices: MaskerChoices, clicks: Clicks) -> np.ndarray | None:
        """The proposed mask, uint8[H, W] in the size of the painting; None if the process was ended by `end`.

        clicks: for a model that is told by them. Raises UserError with the reason why there is none.
        """
        with self._asking:
            session = self._session
            if session is None or session.has_ended or session.model != choices.model:
                self.end()
                session = self._session = _Session(choices.model)
            self._used_at = self._clock()
            found = session.ask(_request(opened, choices, clicks, session.folder))
            self._used_at = self._clock()
        if found is None:
            return None
        size = opened.painting.size
        return np.array(found if found.size == size else found.resize(size, Image.Resampling.BILINEAR))

    @property
    def state(self) -> str:
        """What the process does, in words."""
        session = self._session
        return "" if session is None else session.state

    @property
    def is_running(self) -> bool:
        return self._session is not None and not self._session.has_ended

    def end(self) -> None:
        """End the process at once: it writes nothing that stays."""
        session, self._session = self._session, None
        if session is not None:
            session.end()

    def end_if_idle(self) -> None:
        if self.is_running and not self._asking.locked() and self._clock() - self._used_at > IDLE_SECONDS:
            self.end()


class _Session:
    """One process with one model."""

    def __init__(self, model: str):
        self.model, self.state = model, "Starting"
        self.has_ended = False
        self._is_unwanted = False
        self._failure = ""
        self._answers: dict[int, Mapping[str, Any]] = {}
        self._number = 0
        self._changed = threading.Condition()
        # its masks go into a folder of this process, so that one that is ended by force leaves none
        self._temporary = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        self.folder = self._temporary.name
        self._child = ChildProcess(variables=dict.fromkeys(("TMPDIR", "TEMP", "TMP"), self.folder), takes_lines=True)
        script = str(AnnotatorRun.SCRIPTS / "mask.py")
        self._child.start([sys.executable, script, f"--model={model}", "--serve"])
        threading.Thread(target=self._listen, daemon=True).start()

    def ask(self, request: Mapping[str, Any]) -> Image.Image | None:
        """None if the process was ended. Raises UserError."""
        self._number += 1
        number = self._number
        self._child.say(json.dumps({**request, "id": number}))
        with self._changed:
            self._changed.wait_for(lambda: number in self._answers or self.has_ended)
            answer = self._answers.pop(number, None)
        if answer is None:
            if self._is_unwanted:
                return None
            raise UserError(self._failure)
        if answer["event"] == "failed":
            raise UserError(in_words_of_the_window(answer["reason"].replace("--prompt", "Words")))
        try:
            with Image.open(answer["mask"]) as mask:
                return mask.convert("L")
        except OSError:
            if self._is_unwanted:
                return None
            raise

    def end(self) -> None:
        with self._changed:
            self._is_unwanted = True
        if self._child.process is not None:
            self._child.process.kill()

    def _listen(self) -> None:
        done = self._child.wait(heard=self._hear)
        with self._changed:
            self.has_ended = True
            self._failure = last_line(done.stderr) or f"mask.py ended with exit code {done.returncode}."
            self._changed.notify_all()
        self._temporary.cleanup()

    def _hear(self, line: bytes) -> None:
        try:
            event = json.loads(line)
        except ValueError:  # something that a library has printed
            return
        kind = event["event"]
        with self._changed:
            if kind == "downloading":
                done, total = (spoken_bytes(event[name]) for name in ("done", "total"))
                self.state = f"Downloading the model: {done} of {total}"
            elif kind == "loading":
                self.state = "Loading the model"
            elif kind == "ready":
                self.state = "Looking at the image"
            elif event.get("id") is not None:
                self.state = "Looking at the image"
                self._answers[event["id"]] = event
                self._changed.notify_all()


def _request(opened: OpenMask, choices: MaskerChoices, clicks: Clicks, folder: str) -> dict[str, Any]:
    """What the script is asked. folder: for the frame of a video that is seen."""
    path, scale = os.path.abspath(opened.item.path), 1.0
    if is_video(path):
        picture = opened.view.picture
        path = str(Path(folder, hashlib.blake2b(os.fsencode(path), digest_size=8).hexdigest() + ".png"))
        if not os.path.exists(path):
            picture.save(path)
        scale = picture.width / opened.painting.size[0]
    request: dict[str, Any] = {"image": path}
    if choices.way == "words":
        request["prompt"] = choices.words.strip()
    elif choices.way == "clicks":
        request["clicks"] = [(int(x * scale), int(y * scale), is_inside) for x, y, is_inside in clicks]
    return request
