"""Counts the tokens of captions in a process of its own, which has the libraries that the window does not import."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from modules.config.installation import ROOT

if TYPE_CHECKING:
    from modules.config.ModelConfig import ModelConfig

BATCH = 500  # captions in a question: some 50 ms, after which others get their answers
COUNTED_AS_WORDS = "Words are counted instead of tokens."


@dataclass(frozen=True)
class TokenCount:
    """The length of a caption. in_words: whether it is in words, because the base model's tokenizer is not there.

    count: without the start and end tokens. limit: how many of them the base model reads; None if that is not known.
    cut_at: where in the caption that begins which has no effect; None if all of it is read, or it can't be told.
    is_exact: False if the limit includes some tokens of an instruction of the family.
    """

    count: int
    limit: int | None
    cut_at: int | None
    in_words: bool
    is_exact: bool = True

    @property
    def is_over(self) -> bool:
        return self.limit is not None and self.count > self.limit


class TokenCounts:
    """Counts by the tokenizer of a base model that reads most of a caption.

    `count` may take seconds the first time, so call it in a thread; all methods may be called from any thread.

    family: of `model`. note: why words are counted, a sentence for the person; "" while tokens are, and before the
    first count.
    """

    def __init__(self, family: str, model: ModelConfig):
        self._arguments = ["--family", family, "--base", model.base, "--config-folder", model.config_folder]
        self._arguments += ["--chunks", str(model.text_chunks)]
        self.note = ""
        self._child: subprocess.Popen[bytes] | None = None
        self._reading: dict[str, Any] = {}
        self._is_closed = False
        self._lock = threading.Lock()  # one question at a time
        self._ends = threading.Lock()  # of starting and closing

    def count(self, texts: Sequence[str]) -> list[TokenCount]:
        """The length of each caption: in tokens, or else in words, as `note` then says."""
        counts: list[TokenCount] = []
        for start in range(0, len(texts), BATCH):
            batch = list(texts[start : start + BATCH])
            with self._lock:
                found = self._ask(batch)
            counts += found or [TokenCount(len(text.split()), None, None, True) for text in batch]
        return counts

    def close(self) -> None:
        """End the process; what is counted afterwards is counted in words."""
        with self._ends:
            self._is_closed = True
            if self._child is not None:
                self._child.kill()
                self._child.wait()

    def _ask(self, texts: list[str]) -> list[TokenCount] | None:
        """None if the process can't count."""
        if self._child is None and not self.note:
            self._start()
        if self._child is None or self.note:
            return None
        try:
            answer = self._exchange(json.dumps({"texts": texts}).encode() + b"\n")
        except (OSError, ValueError):  # it has ended
            self.note = f"The process that counts tokens has ended. {COUNTED_AS_WORDS}"
            return None
        limit, is_exact = self._reading["limit"], self._reading["is_exact"]
        return [TokenCount(count, limit, cut_at, False, is_exact) for count, cut_at in answer["counts"]]

    def _start(self) -> None:
        with self._ends:
            if self._is_closed:
                self.note = COUNTED_AS_WORDS
                return
            self._child = subprocess.Popen(
                [sys.executable, str(ROOT / "scripts" / "count_tokens.py"), *self._arguments],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                env={**os.environ, "PYTHONIOENCODING": "utf-8"},
                creationflags=getattr(subprocess, "CREATE_NO_WINDOW", 0),
            )
        try:
            self._reading = self._exchange(b"")
        except (OSError, ValueError):
            self._reading = {"problem": "The process that counts tokens can't start."}
        if problem := self._reading.get("problem"):
            self.note = f"{problem} {COUNTED_AS_WORDS}"

    def _exchange(self, question: bytes) -> dict[str, Any]:
        """Raises OSError or ValueError if the process has ended."""
        child = self._child
        assert child is not None  # it was started
        assert child.stdin is not None  # both are pipes
        assert child.stdout is not None
        child.stdin.write(question)
        child.stdin.flush()
        return json.loads(child.stdout.readline())
