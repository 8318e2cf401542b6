"""A script that makes a new folder of a concept's files, in a process of its own: what it tells, and how far it is. No
Tk."""

from __future__ import annotations

import base64
import binascii
import io
import json
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from PIL import Image

from modules.config.TrainConfig import TrainConfig
from modules.ui.models.ScriptRun import ScriptRun

if TYPE_CHECKING:
    from modules.config.ConceptConfig import ConceptConfig


@dataclass(frozen=True)
class Piece:
    """A piece of a video, in seconds. image: its first frame, small."""

    path: str
    start: float
    end: float
    image: Image.Image


@dataclass(frozen=True)
class FolderProgress:
    """text: what is done, for people. share: from 0 to 1; None as long as nobody knows."""

    text: str = "Starting"
    share: float | None = None


@dataclass
class NewFolder:
    """What has come of a run. path: "" of one that was canceled or a preview. text: for people. left_out: (path,
    reason). settings: of the concept, which the new folder needs."""

    path: str = ""
    text: str = ""
    left_out: Sequence[tuple[str, str]] = ()
    settings: Mapping[str, Any] = field(default_factory=dict)


class FolderRun:
    """One run of a script with the events of scripts/events.py. `run` may take long, in a thread; the other methods
    may be called meanwhile."""

    def __init__(self, script: str, concept: ConceptConfig, options: Sequence[str]):
        config = TrainConfig(concepts=[concept])
        self._script = ScriptRun(script, config, [*options, "--json"], (0,), heard=self._hear, listens=True)
        self._lock = threading.Lock()
        self._progress, self._done, self._written = FolderProgress(), "", ""
        self._pieces: list[Piece] = []
        self._made = NewFolder()
        self.is_canceled = False

    @property
    def progress(self) -> FolderProgress:
        with self._lock:
            return self._progress

    def take_pieces(self) -> list[Piece]:
        """The pieces that were found since the last call."""
        with self._lock:
            taken, self._pieces = self._pieces, []
        return taken

    def run(self) -> NewFolder:
        """Raises UserError if the folder can't be made."""
        self._script.run()
        return NewFolder() if self.is_canceled else self._made

    def cancel(self) -> None:
        self.is_canceled = True
        self._script.cancel()

    def _hear(self, line: str) -> None:
        event = json.loads(line)
        piece = _piece_of(event) if event["event"] == "piece" else None
        with self._lock:
            if piece is not None:
                self._pieces.append(piece)
            elif event["event"] == "progress":
                self._done = f"{event.get('text', 'Videos')}: {event['done']:,} of {event['total']:,}"
                share = event["done"] / max(1, event["total"])
                self._progress = FolderProgress(self._done + self._written, share)
            elif event["event"] == "written":
                self._written = f", {event['text']}"
                self._progress = FolderProgress(self._done + self._written, self._progress.share)
            elif event["event"] == "end":
                left_out = [(path, reason) for path, reason in event.get("left_out", ())]
                self._made = NewFolder(event["folder"], event["text"], left_out, event.get("settings", {}))


def _piece_of(event: Mapping[str, Any]) -> Piece:
    """Raises ValueError for a broken line."""
    try:
        image = Image.open(io.BytesIO(base64.b64decode(event["image"])))
        image.load()
    except (OSError, binascii.Error) as error:
        raise ValueError("a piece without an image") from error
    return Piece(event["path"], event["start"], event["end"], image.convert("RGB"))
