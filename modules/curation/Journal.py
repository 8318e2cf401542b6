"""The journal of a dataset: every change to its files is written through it, and can be undone and redone.

It lies in the user's state folder, so undo survives closing the window, and holds whole contents, so it can also put
back what was removed. A change is recorded completely before the first file is touched. If the process is killed in
the middle, each file is either old or new, and the next opening *finishes* the change: the person asked for it, what
is missing is in the record, and undo takes back all of it at once. (Rolling back would throw away the hours of a
captioner.) A change that fails, as on a full disk, is rolled back instead, and the error says so.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from modules.config.counted import counted
from modules.config.errors import UserError
from modules.config.installation import window_state_folder
from modules.curation.ChangeFile import ChangeFile, FileRecord
from modules.curation.FileChanges import MISSING, ChangedOutside, FileChanges, fingerprint, read_present
from modules.curation.JournalFolder import Busy, JournalFolder, RecordLost
from modules.curation.JournalState import JournalState, Pending, Step
from modules.curation.LongChange import LongChange, left_over, read_notes, remove_notes
from modules.curation.replace_files import (
    ChangedMeanwhile,
    new_token,
    remove_leftovers,
    replace_files,
    why_not_written,
)
from modules.session.working_folder import absolute_path

MAX_BYTES = 1 << 29  # 512 MB, which is a million edits of captions, or masks of some ten thousand images
MAX_STEPS = 1000
LOCK_SECONDS = 10.0

Outside = Literal["ask", "keep", "overwrite"]
_Side = Literal["old", "new"]
_Signature = tuple[int, int, int] | None


@dataclass(frozen=True)
class Applied:
    """A step that was carried out. paths: of the files that are different now."""

    label: str
    paths: tuple[str, ...]


class Journal:
    """The changes to the files of one dataset folder, whichever window or program made them.

    The newest change is always kept whole; older ones go, oldest first, once all together are larger than `max_bytes`,
    so a single change may be larger than that. All methods may be called from any thread.

    state_folder: where journals lie; None: beside the window's preferences.
    finished: what of a change that was cut off was finished, or why it can't be, as a sentence for the person; "" if
        there was none.
    """

    def __init__(
        self, dataset_folder: str | os.PathLike[str], state_folder: Path | None = None, max_bytes: int = MAX_BYTES
    ):
        self.folder = os.path.realpath(absolute_path(dataset_folder))
        self.finished = ""
        self._max_bytes = max_bytes
        self._kept = JournalFolder(self.folder, state_folder or window_state_folder() / "journals")
        if self._kept.peek().pending is not None or left_over(self._kept.path):
            try:
                with self._opened(patience_seconds=0):
                    pass
            except Busy:
                self.finished = ""  # it is not cut off: another process is carrying it out
            except UserError as error:
                self.finished = str(error)

    @property
    def can_undo(self) -> bool:
        return bool(self._kept.peek().done)

    @property
    def can_redo(self) -> bool:
        return bool(self._kept.peek().undone)

    @property
    def next_undo_label(self) -> str:
        """The label of the change that `undo` takes back; "" if there is none."""
        done = self._kept.peek().done  # once: a thread may undo the change meanwhile
        return done[-1].label if done else ""

    @property
    def next_redo_label(self) -> str:
        undone = self._kept.peek().undone
        return undone[-1].label if undone else ""

    def steps(self) -> list[Step]:
        """What can be undone, newest first."""
        return list(reversed(self._kept.peek().done))

    def apply(self, label: str, changes: FileChanges) -> Applied:
        """Write all files of a change, or none, as one step that can be undone. What was undone can't be redone then.

        label: what the person did, such as "Add tag to 40 captions". Files that already have their new content are
        left out; if nothing is left, no step is made.
        Raises ChangedOutside if a file is not as `changes.seen` says; UserError if a file can't be written.
        """
        new = _by_real_path(changes.new)
        seen = {os.path.realpath(path): print_ for path, print_ in changes.seen.items()}
        with self._opened() as state:
            signatures: dict[str, _Signature] = {}
            files = self._files_to_change(new, seen, signatures)
            if not files:
                return Applied(label, ())
            contents = ((path, _read(path), new[path]) for path in files)
            step = self._kept.record(Step(_next_number(state), label, len(files), 0), contents)
            self._carry_out(state, Pending(step, "new", True, new_token()), files, signatures)
        return Applied(label, tuple(files))

    @contextlib.contextmanager
    def long_change(self, label: str) -> Iterator[LongChange]:
        """Context for a change that grows, of which each file is written at once; one step when the context is left.

        Other changes may come between. What a killed process has left of one becomes a step when the dataset is opened
        again. Raises UserError if the journal can't be written.
        """
        with self._opened():
            change = LongChange(self._kept.path, label)
        try:
            yield change
        finally:
            change.close()
            with self._opened() as state:
                self._collect(state, change.path)

    def undo(self, outside: Outside = "ask") -> Applied:
        """Take back the newest change.

        outside: what becomes of files that another program has changed since. "ask" raises ChangedOutside, and nothing
        is written; "keep" leaves them as they are; "overwrite" takes them back, too, and redo brings back what they
        were. Raises UserError like `apply`, and if there is nothing to undo.
        """
        return self._step_back("old", outside)

    def redo(self, outside: Outside = "ask") -> Applied:
        """Carry out again what `undo` took back; arguments and errors as there."""
        return self._step_back("new", outside)

    def _files_to_change(
        self, new: Mapping[str, bytes | None], seen: Mapping[str, str], signatures: dict[str, _Signature]
    ) -> list[str]:
        """The files that will be different. signatures: receives those of all. Raises ChangedOutside."""
        changed, outside = [], []
        for path, content in new.items():
            signatures[path] = _signature(path)
            present = fingerprint(_read(path))
            if present != seen.get(path, MISSING):
                outside.append(path)
            elif present != fingerprint(content):
                changed.append(path)
        if outside:
            raise ChangedOutside(outside)
        return changed

    def _step_back(self, toward: _Side, outside: Outside) -> Applied:
        with self._opened() as state:
            steps = state.done if toward == "old" else state.undone
            if not steps:
                raise UserError(f"There is nothing to {'undo' if toward == 'old' else 'redo'} in {self.folder}.")
            step = steps[-1]
            signatures: dict[str, _Signature] = {}
            files, changed = self._files_to_step_back(step, toward, signatures)
            if changed and outside == "ask":
                raise ChangedOutside(changed)
            if changed and outside == "overwrite":
                step, files = self._with_present_contents(state, step, toward, changed), files + changed
            rest = replace(state, done=state.done[:-1]) if toward == "old" else replace(state, undone=state.undone[:-1])
            self._carry_out(rest, Pending(step, toward, False, new_token()), files, signatures)
        return Applied(step.label, tuple(files))

    def _files_to_step_back(
        self, step: Step, toward: _Side, signatures: dict[str, _Signature]
    ) -> tuple[list[str], list[str]]:
        """The files of a step that are as it left them, and those that are not. signatures: receives those of all."""
        files: list[str] = []
        changed: list[str] = []
        with self._kept.record_of(step) as record:
            for file in record.files:
                signatures[file.path] = _signature(file.path)
                wanted, left = _sides(file, toward)
                present = fingerprint(_read(file.path))
                if present != wanted:
                    (files if present == left else changed).append(file.path)
        return files, changed

    def _with_present_contents(self, state: JournalState, step: Step, toward: _Side, changed: list[str]) -> Step:
        """The step, recorded again with what is in `changed` now in place of what it had left there."""
        outside = set(changed)

        def contents(record: ChangeFile) -> Iterator[tuple[str, bytes | None, bytes | None]]:
            for file in record.files:
                old, new = record.old(file), record.new(file)
                if file.path in outside:
                    old, new = (old, _read(file.path)) if toward == "old" else (_read(file.path), new)
                yield file.path, old, new

        with self._kept.record_of(step) as record:
            return self._kept.record(replace(step, number=_next_number(state)), contents(record))

    def _carry_out(
        self, rest: JournalState, pending: Pending, paths: Collection[str], signatures: Mapping[str, _Signature]
    ) -> None:
        """Give the files of a pending step their contents. rest: the state without it. Rolls back if that fails."""
        self._kept.write_state(replace(rest, pending=pending))
        try:
            self._replace(pending, paths, lambda path: _signature(path) == signatures[path])
        except (OSError, ChangedMeanwhile) as error:
            back = replace(pending, toward="old" if pending.toward == "new" else "new")
            self._bring(rest, back)
            if isinstance(error, ChangedMeanwhile):
                raise ChangedOutside([error.path]) from error
            raise UserError(why_not_written(error)) from error
        self._settle(rest, pending)

    def _finish_cut_off(self, state: JournalState, pending: Pending) -> JournalState:
        """The state, once what a killed process has left is complete. Raises UserError like `_bring`."""
        label = pending.step.label
        try:
            num_others = self._bring(state, pending)
        except RecordLost:
            state = replace(state, pending=None)
            self._kept.write_state(state)
            self.finished = f"A change that was cut off ({label}) can't be finished, because its record is lost: each "
            self.finished += "of its files is as it was before or after the change."
            return state
        self.finished = f"A change that was cut off is finished: {label}."
        if num_others:
            files = counted(num_others, "file", "files")
            self.finished = f"{self.finished[:-1]}; {files} that another program has changed since stay as they are."
        return self._kept.state()[0]

    def _bring(self, rest: JournalState, pending: Pending) -> int:
        """Carry out what is pending but for files that another program has changed, and return how many these are.

        Raises UserError if a file can't be written, and RecordLost; the step then stays pending.
        """
        self._kept.write_state(replace(rest, pending=pending))
        todo, num_others = set(), 0
        try:
            with self._kept.record_of(pending.step) as record:
                remove_leftovers([file.path for file in record.files], pending.token)
                for file in record.files:
                    wanted, other = _sides(file, pending.toward)
                    present = fingerprint(_read(file.path))
                    if present == other:
                        todo.add(file.path)
                    num_others += present not in (wanted, other)
            self._replace(pending, todo, lambda path: True)
        except OSError as error:
            raise UserError(
                f"A change that was cut off ({pending.step.label}) can't be finished, because {error.filename} can't "
                f"be written ({error.strerror or error}): make it and its folder writable, and open the dataset again."
            ) from error
        self._settle(rest, pending)
        return num_others

    def _replace(self, pending: Pending, paths: Collection[str], is_unchanged: Callable[[str], bool]) -> None:
        with self._kept.record_of(pending.step) as record:
            chosen = set(paths)
            files = {file.path: file for file in record.files if file.path in chosen}
            content = record.new if pending.toward == "new" else record.old
            replace_files(list(files), lambda path: content(files[path]), pending.token, is_unchanged)

    def _settle(self, rest: JournalState, pending: Pending) -> None:
        """Write down that a pending step is complete. rest: the state without it."""
        rest = replace(rest, pending=None)
        if pending.toward == "new":
            undone = () if pending.is_fresh else rest.undone
            state = self._within_bounds(replace(rest, done=(*rest.done, pending.step), undone=undone))
        elif pending.is_fresh:  # it failed and was rolled back
            state = rest
        else:
            state = replace(rest, undone=(*rest.undone, pending.step))
        self._kept.write_state(state, after_files=True)

    def _collect(self, state: JournalState, notes: Path) -> JournalState:
        """The state with the step of a long change that is complete, whose notes then go."""
        try:
            label, files = read_notes(notes)
        except (OSError, ValueError, KeyError):  # damaged: its files stay as they are, and can't be undone
            files = []
        if files:
            step = self._kept.record(Step(_next_number(state), label, len(files), 0), files)
            state = self._within_bounds(replace(state, done=(*state.done, step), undone=()))
            self._kept.write_state(state, after_files=True)
        remove_notes(notes)
        return state

    def _within_bounds(self, state: JournalState) -> JournalState:
        done = state.done[-MAX_STEPS:]
        while len(done) > 1 and sum(step.num_bytes for step in (*done, *state.undone)) > self._max_bytes:
            done = done[1:]
        return replace(state, done=done)

    @contextlib.contextmanager
    def _opened(self, patience_seconds: float | None = None) -> Iterator[JournalState]:
        """Hold the journal, with nothing pending any more. Raises UserError."""
        with self._kept.locked(LOCK_SECONDS if patience_seconds is None else patience_seconds):
            state, self.finished = self._kept.state()
            if state.pending is not None:
                state = self._finish_cut_off(state, state.pending)
            for notes in left_over(self._kept.path):
                state = self._collect(state, notes)
            yield state
            self._kept.forget_unused()


def _by_real_path(new: Mapping[str, bytes | None]) -> dict[str, bytes | None]:
    """The changes by the files that links lead to. Raises UserError if two of them are one file."""
    found: dict[str, bytes | None] = {}
    for path, content in new.items():
        real = os.path.realpath(path)
        if found.setdefault(real, content) != content:
            raise UserError(f"{path} leads to {real}, which is to be changed in another way, too: change one of them.")
    return found


def _next_number(state: JournalState) -> int:
    return max((step.number for step in state.steps), default=0) + 1


def _sides(file: FileRecord, toward: _Side) -> tuple[str, str]:
    """The fingerprints of what a file is to be and of what it is before."""
    return (file.new, file.old) if toward == "new" else (file.old, file.new)


def _read(path: str) -> bytes | None:
    """Raises UserError."""
    try:
        return read_present(path)
    except OSError as error:
        reason = error.strerror or error
        raise UserError(
            f"{path} can't be read ({reason}), and no file was changed: make it a readable file."
        ) from error


def _signature(path: str) -> _Signature:
    """What differs if a file was written meanwhile; None if it is not there."""
    try:
        status = os.stat(path)
    except OSError:
        return None
    return status.st_mtime_ns, status.st_size, status.st_ino
