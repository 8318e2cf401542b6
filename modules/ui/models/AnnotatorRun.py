"""A run of scripts/caption.py or of a script like it for the dataset window, in a separate process. No Tk.

The script reports each image as a line of JSON (annotators/reports.py) and writes what it makes itself, through the
journal of the dataset's folder: ending it at any moment leaves whole files, and one step to undo.
"""

from __future__ import annotations

import json
import re
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

from modules.annotators.Cancellation import CANCEL
from modules.config.ConceptConfig import ConceptConfig
from modules.config.counted import counted
from modules.config.errors import UserError
from modules.config.files import save_config
from modules.config.installation import ROOT
from modules.config.TrainConfig import TrainConfig
from modules.config.visible_text import visible_line
from modules.curation.Journal import Journal
from modules.machine.ChildProcess import ChildProcess
from modules.session.byte_sizes import spoken_bytes

SCRIPTS = ROOT / "scripts"
END_SECONDS = 10.0  # after which a process that was asked to end, and loads a model or waits for a server, is ended
LAST_LETTERS = 500  # shown of an error message
DONE, SOME_FAILED, CANCELED = 0, 1, 130  # exit codes
_RESULTS = ("caption", "mask")  # events that have one
_NAMES = {  # of options in messages of the scripts -> what the windows say
    "set it by --key-from or --ask-key": "type it under Key",
    "set a key by --key-from or --ask-key": "type a key under Key",
    "--batch-size and --max-side": "Images at a time",
    "smaller model or --dtype bfloat16": "smaller model",
    "--general-threshold": "Tags from",
    "--character-threshold": "Characters from",
    "--model": "Model",
    "--server": "Address",
    "--prompt": "Prompt",
    "--style": "Style",
    "--name": "Name",
    "--only": "Images",
    "--click": "Clicks",
}


class Part(NamedTuple):
    """The images of one concept. paths: those that are chosen; None: all."""

    concept: ConceptConfig
    paths: tuple[str, ...] | None = None


@dataclass(frozen=True)
class Result:
    """What was made of an image. text: its caption, or how much of it is masked. mask: the file of that. failed: why
    there is neither."""

    path: str
    text: str = ""
    is_written: bool = False
    failed: str = ""
    mask: str = ""


@dataclass(frozen=True)
class Progress:
    """How far a run is. state: what it does, as words for people.

    makes: "caption" or "mask". chosen, number: images to be done, and done so far, of the concept that it is at.
    kept: images that are left as they are, because they have what is to be made. resumed: those that an interrupted run
    has done. skipped: (path, reason) of images that can't be read. most_tokens: of a caption, where the model limits
    them; 0 where it doesn't. seconds_left: for the present concept; None as long
    as nobody knows.
    """

    state: str = "Starting"
    makes: str = "caption"
    chosen: int = 0
    number: int = 0
    written: int = 0
    failed: int = 0
    kept: int = 0
    resumed: int = 0
    skipped: tuple[tuple[str, str], ...] = ()
    most_tokens: int = 0
    share: float = 0.0
    seconds_left: float | None = None

    def describe(self) -> str:
        """One line, for people."""
        if not self.number:
            return f"{self.state}…"
        failed = f", {self.failed} failed" if self.failed else ""
        left = f"; {spoken_time(self.seconds_left)} left" if self.seconds_left is not None else ""
        return f"{self.number:,} of {self.chosen:,}{failed}{left}"

    def summary(self, is_canceled: bool, is_preview: bool) -> str:
        """What has come of the run, in sentences."""
        sentences = []
        if is_preview:
            sentences.append("A preview: nothing was written." if self.number else "")
        else:
            failed = f", {self.failed} failed" if self.failed else ""
            sentences.append(f"{counted(self.written, 'image')} done{failed}." if self.number else "")
        if not self.chosen and not self.resumed and not is_canceled and self.kept:
            sentences.append(f"Nothing to do: {self._kept('has a', 'have')} already.")
        elif self.kept and not is_preview:
            sentences.append(f"{self._kept('keeps its', 'keep their')}.")
        if self.resumed:
            sentences.append(f"{self.resumed:,} were done before the last run was interrupted.")
        if self.skipped:
            path, reason = self.skipped[0]
            sentences.append(f"{counted(len(self.skipped), 'image')} left out, {visible_line(path)}: {reason}.")
        if self.most_tokens and self.number:
            sentences.append(f"The model has positions for {self.most_tokens} tokens: no caption is longer.")
        if is_canceled:
            sentences.append("Canceled." if is_preview else "Canceled; start again to go on.")
        return " ".join(filter(None, sentences))

    def _kept(self, one: str, many: str) -> str:
        return counted(self.kept, f"image {one} {self.makes}", f"images {many} {self.makes}s")


class AnnotatorRun:
    """One run over the images of some concepts, one after the other. `run` may take hours, in a thread; the other
    methods may be called meanwhile.

    script: the name of its file. makes: "caption" or "mask". options: of the script. variables: of its environment,
    where secrets go: other users of the machine can read command lines. preview: show what becomes of so many images
    and write nothing; 0: all.
    """

    def __init__(
        self,
        script: str,
        makes: str,
        parts: Sequence[Part],
        options: Sequence[str],
        variables: Mapping[str, str] | None = None,
        preview: int = 0,
        clock: Callable[[], float] = time.monotonic,
    ):
        self.parts, self.preview = tuple(parts), preview
        self._script, self._options = script, [*options, *(["--preview", str(preview)] if preview else [])]
        self._variables, self._clock = dict(variables or {}), clock
        self._lock = threading.Lock()
        self._progress = Progress(makes=makes)
        self._results: list[Result] = []
        self._child: ChildProcess | None = None
        self._part_number = 0
        self._waits_for = "Loading the model"
        self._first_seconds = 0.0  # when the first result of this part came, and how many came with it
        self._first_number = 0
        self.is_canceled = False

    @property
    def progress(self) -> Progress:
        with self._lock:
            return self._progress

    def take_results(self) -> list[Result]:
        """What was made since the last call."""
        with self._lock:
            taken, self._results = self._results, []
        return taken

    def run(self) -> Progress:
        """How far it has come in the end. Raises UserError, with what was done so far written."""
        for number, part in enumerate(self.parts):
            self._part_number = number
            if self.is_canceled or (self.preview and self.progress.number):
                break
            self._run_part(part)
        return self.progress

    def cancel(self) -> None:
        """End it after the image that is being written, or, if that takes too long, at once."""
        with self._lock:
            self.is_canceled = True
            child = self._child
        if child is not None:
            child.say(CANCEL)
            timer = threading.Timer(END_SECONDS, _kill, (child,))
            timer.daemon = True
            timer.start()

    def _run_part(self, part: Part) -> None:
        with tempfile.TemporaryDirectory() as folder:
            settings = Path(folder) / "config.yaml"
            save_config(TrainConfig(concepts=[part.concept]), settings)
            command = [sys.executable, str(SCRIPTS / self._script), "--config", str(settings), "--json", "--listen"]
            if part.paths is not None:
                chosen = Path(folder) / "images.json"
                chosen.write_text(json.dumps(part.paths), encoding="utf-8")
                command += ["--only", str(chosen)]
            child = ChildProcess(variables=self._variables, takes_lines=True)
            with self._lock:
                if self.is_canceled:
                    return
                self._first_number = 0
                self._child = child
                child.start([*command, *self._options])
            try:
                done = child.wait(heard=self._hear)
            finally:
                with self._lock:
                    self._child = None
        has_ended = done.returncode in (DONE, SOME_FAILED) and b'"event": "end"' in done.stdout
        if not has_ended and done.returncode != CANCELED:
            Journal(part.concept.path)  # makes a step to undo of what an ended process has written
            if not self.is_canceled:
                raise UserError(last_line(done.stderr) or f"{self._script} ended with exit code {done.returncode}.")

    def _hear(self, line: bytes) -> None:
        try:
            event = json.loads(line)
        except ValueError:  # something that a library has printed
            return
        with self._lock:
            self._take(event, self._progress)

    def _take(self, event: Mapping[str, Any], before: Progress) -> None:
        kind = event["event"]
        if kind == "plan":
            self._waits_for = "Waiting for the server" if event["sent_to"] else "Loading the model"
            kept, resumed = before.kept + event["done_before"], before.resumed + event["resumed"]
            self._progress = replace(before, chosen=event["chosen"], number=0, kept=kept, resumed=resumed)
        elif kind == "skipped":
            self._progress = replace(before, skipped=(*before.skipped, (event["path"], event["reason"])))
        elif kind == "downloading":
            state = f"Downloading the model: {spoken_bytes(event['done'])} of {spoken_bytes(event['total'])}"
            self._progress = replace(before, state=state, share=event["done"] / max(1, event["total"]))
        elif kind == "loading":
            self._progress = replace(before, state=self._waits_for, share=self._part_number / len(self.parts))
        elif kind == "limited":
            self._progress = replace(before, most_tokens=event["tokens"])
        elif kind == "failed":
            self._results.append(Result(event["path"], failed=event["reason"]))
            self._progress = self._counted(event, replace(before, failed=before.failed + 1))
        elif kind in _RESULTS:
            mask, is_written = event.get("mask", ""), event["written"]
            text = f"{event['share']:.0%} of it is learned." if mask else event["text"]
            self._results.append(Result(event["path"], text, is_written, mask=mask))
            self._progress = self._counted(event, replace(before, written=before.written + is_written))

    def _counted(self, event: Mapping[str, Any], before: Progress) -> Progress:
        number, of, now = event["number"], event["of"], self._clock()
        left = None
        if not self._first_number:  # loading the model says nothing of the time for an image
            self._first_number, self._first_seconds = number, now
        elif number > self._first_number:
            left = (now - self._first_seconds) / (number - self._first_number) * (of - number)
        share = (self._part_number + number / max(1, of)) / len(self.parts)
        return replace(before, number=number, chosen=of, share=share, seconds_left=left)


def spoken_time(seconds: float) -> str:
    """Such as "40 s", "12 min" or "3 h 20 min"."""
    minutes = round(seconds / 60)
    if seconds < 90:
        return f"{max(1, round(seconds))} s"
    return f"{minutes} min" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"


def in_words_of_the_window(text: str) -> str:
    """A message of a script, with the names that options have in the windows."""
    names = "|".join(map(re.escape, _NAMES))
    return re.sub(rf"(?<!\S)({names})(?![\w-])", lambda match: _NAMES[match[0]], text)


def last_line(errors: bytes) -> str:
    """What a script has said on stderr last, with the names that options have in the windows."""
    lines = errors.decode("utf-8", "replace").strip().splitlines()
    return in_words_of_the_window(lines[-1].strip()[-LAST_LETTERS:]) if lines else ""


def _kill(child: ChildProcess) -> None:
    if child.is_running:
        assert child.process is not None  # it runs
        child.process.kill()
