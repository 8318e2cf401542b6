"""Decodes images in processes of its own, for a window that scrolls through thousands of them. No Tk.

A thread that decodes holds the GIL now and then; while other processes keep the cores busy, it may not be running just
then, and each call of Tk waits for it. A process has no such hold on the window, and a file that crashes a decoder
takes only that process with it.
"""

from __future__ import annotations

import json
import os
import queue
import subprocess
import sys
import threading
from collections.abc import Sequence
from typing import IO

from PIL import Image

from modules.config.installation import IMPORT_FOLDER, PACKAGE
from modules.ui.models.decoding import PictureKey, decode_pictures

NICENESS = 5  # of the processes: training goes first, and so does the window
MAX_FAILURES = 3  # of processes that end by themselves, after which threads of the window decode

Decoded = list[tuple[PictureKey, Image.Image | str]]


class PictureDecoder:
    """`decode` may be called from several threads; each of `count` processes answers one at a time.

    Until the processes have started, which takes half a second, the calling threads decode.
    """

    def __init__(self, count: int):
        self._count = count
        self._free: queue.SimpleQueue[_Worker] = queue.SimpleQueue()
        self._workers: set[_Worker] = set()
        self._num_failures = 0
        self._lock = threading.Lock()

    def start(self) -> None:
        """Start the processes, unless they are there. May take a few milliseconds."""
        while len(self._workers) < self._count and self._num_failures < MAX_FAILURES:
            try:
                worker = _Worker()
            except OSError:  # the system refuses to start another process: threads decode
                self._num_failures = MAX_FAILURES
                return
            with self._lock:
                self._workers.add(worker)
            threading.Thread(target=self._wait_until_ready, args=(worker,), daemon=True).start()

    def decode(self, keys: Sequence[PictureKey]) -> Decoded:
        """As `decode_pictures`."""
        try:
            worker = self._free.get_nowait()
        except queue.Empty:
            return decode_pictures(keys)
        try:
            decoded = worker.ask(keys)
        except (OSError, EOFError, ValueError):  # it was closed, or has crashed
            self._drop(worker)
            return decode_pictures(keys)
        self._free.put(worker)
        return decoded

    def close(self) -> None:
        """End the processes; `start` starts new ones."""
        with self._lock:
            workers, self._workers = self._workers, set()
            self._free = queue.SimpleQueue()
        for worker in workers:
            worker.close()

    def _wait_until_ready(self, worker: _Worker) -> None:
        try:
            worker.wait_until_ready()
        except (OSError, EOFError, ValueError):
            self._drop(worker)
            return
        with self._lock:
            if worker in self._workers:
                self._free.put(worker)

    def _drop(self, worker: _Worker) -> None:
        """Go on without a process that has ended, and start another one unless that was asked for."""
        with self._lock:
            is_crash = worker in self._workers
            self._workers.discard(worker)
            self._num_failures += is_crash
        worker.close()
        if is_crash:
            self.start()


class _Worker:
    """A process that decodes. Each question and answer is a line of JSON; in an answer the pixels follow."""

    def __init__(self):
        self._process = subprocess.Popen(
            [sys.executable, "-m", f"{PACKAGE}.ui.models.PictureDecoder"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            cwd=IMPORT_FOLDER,
            creationflags=getattr(subprocess, "CREATE_NO_WINDOW", 0),
        )

    def wait_until_ready(self) -> None:
        """Raises EOFError if the process ends first."""
        _read(self._output, 1)

    def ask(self, keys: Sequence[PictureKey]) -> Decoded:
        """Raises OSError, EOFError or ValueError if the process has ended."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps([_absolute(key) for key in keys]).encode() + b"\n")
        self._process.stdin.flush()
        answers = json.loads(self._output.readline() or "null")
        if answers is None:
            raise EOFError
        decoded: Decoded = []
        for key, answer in zip(keys, answers, strict=False):
            if isinstance(answer, str):
                decoded.append((key, answer))
            else:
                width, height = answer
                decoded.append((key, Image.frombytes("RGB", (width, height), _read(self._output, 3 * width * height))))
        return decoded

    def close(self) -> None:
        self._process.kill()
        self._process.wait()

    @property
    def _output(self) -> IO[bytes]:
        assert self._process.stdout is not None
        return self._process.stdout


def serve(questions: IO[bytes], answers: IO[bytes]) -> None:
    """Answer until there are no more questions: in the process."""
    answers.write(b"\n")  # it is ready
    answers.flush()
    for line in questions:
        decoded = decode_pictures([PictureKey(*one) for one in json.loads(line)])
        made = [picture if isinstance(picture, str) else picture.convert("RGB") for _, picture in decoded]
        head = [picture if isinstance(picture, str) else picture.size for picture in made]
        answers.write(json.dumps(head).encode() + b"\n")
        for picture in made:
            if not isinstance(picture, str):
                answers.write(picture.tobytes())
        answers.flush()


def _absolute(key: PictureKey) -> PictureKey:
    """Of files as the process finds them, which has another working folder."""
    return key._replace(path=os.path.abspath(key.path), mask=os.path.abspath(key.mask) if key.mask else "")


def _read(file: IO[bytes], count: int) -> bytes:
    """Exactly so many bytes. Raises EOFError if there are fewer."""
    content = file.read(count)
    if len(content) < count:
        raise EOFError
    return content


if __name__ == "__main__":
    if hasattr(os, "nice"):
        os.nice(NICENESS)
    serve(sys.stdin.buffer, sys.stdout.buffer)
