"""Saves the final model and backup of a run even if the disk of its run folder is full or fails."""

from __future__ import annotations

import contextlib
import math
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from modules.session.atomic import remove_folder
from modules.session.backups import resume_advice
from modules.session.byte_sizes import spoken_bytes
from modules.trainer.FallbackFolders import FallbackFolders
from modules.trainer.FinalSave import FinalSave, total_bytes
from modules.trainer.TrainingError import TrainingError
from modules.weights.errors import WeightsError

if TYPE_CHECKING:
    from modules.config.OutputConfig import OutputConfig
    from modules.session.RunFolder import RunFolder
    from modules.session.TrainCallbacks import TrainCallbacks

POLL_SECONDS = 1.0
RETRY_SECONDS = 10.0  # between attempts on a disk that reports enough free space, such as one with a quota
STATUS_SECONDS = 60.0


class FallbackSaver:
    """Saves to the run folder, or else to a fallback folder; moves the fallback copy once there is space.

    Only rank 0 uses it: `save` each item, `wait` for free space, then `finish`.
    """

    def __init__(self, folder: RunFolder, output: OutputConfig, callbacks: TrainCallbacks):
        self._folder = folder
        self._fallback = FallbackFolders(folder.path, output.fallback_dir)
        self._wait_seconds = 60 * output.wait_minutes
        self._callbacks = callbacks
        self._misplaced: list[FinalSave] = []  # not at their destination

    @property
    def has_misplaced(self) -> bool:
        """Whether something is not at its destination."""
        return bool(self._misplaced)

    def save(self, save: FinalSave) -> None:
        """Saves it to its destination, or else to a fallback folder. `wait` retries if neither works.

        Raises TrainingError for an error that more disk space would not fix.
        """
        self._save_at_destination(save)
        if save.error is None:
            return
        self._misplaced.append(save)
        self._save_to_fallback(save)
        where = f". It was saved to {save.where} instead" if save.fallback_folder else _nowhere(save)
        self._callbacks.on_warning(
            f"The {save.name} could not be written to {save.destination} ({save.explanation}){where}."
        )

    def wait(self, is_over: Callable[[], bool], beat: Callable[[], None]) -> None:
        """Retries until everything is at its destination, `is_over` returns True, or output.wait_minutes have passed.

        beat: called every second.
        """
        deadline = time.monotonic() + self._wait_seconds
        next_status = time.monotonic()
        while self._misplaced and time.monotonic() < deadline and not is_over():
            if time.monotonic() >= next_status:
                next_status = time.monotonic() + STATUS_SECONDS
                self._callbacks.on_waiting(self._waiting_text(deadline - time.monotonic()))
            time.sleep(POLL_SECONDS)
            beat()
            waiting = list(self._misplaced)
            for save in waiting:
                self._try_again(save)
            if self._misplaced != waiting:  # it waits for less
                next_status = time.monotonic()

    def finish(self) -> None:
        """Warns of everything that stays in a fallback folder. Raises TrainingError for what could not be saved."""
        for save in self._misplaced:
            if save.fallback_folder:
                self._callbacks.on_warning(self._location_text(save))
        for save in self._misplaced:
            if save.fallback_folder is None:
                text = (
                    f"The {save.name} could not be written to {save.destination} ({save.explanation}){_nowhere(save)}"
                )
                if save.fails_run:
                    raise TrainingError(f"{text}: free some space, then {resume_advice(self._folder)}.")
                self._callbacks.on_warning(f"{text}.")

    # --- attempts -------------------------------------------------------------------------------------------------

    def _save_at_destination(self, save: FinalSave) -> None:
        try:
            # if the disk was unmounted, the run folder must not be recreated at the mount point
            self._folder.config_path.stat()
            for path in save.part:  # folders are never overwritten
                remove_folder(path)
            save.part, error = save.write(save.destination)
            for path in save.part:
                save.tell(path)
        except OSError as folder_error:
            error = folder_error
        if isinstance(error, WeightsError):
            text = f"The {save.name} could not be written to {save.destination}: {str(error).rstrip('.')}"
            raise TrainingError(f"{text}: {resume_advice(self._folder)}.") from error
        save.error = error

    def _save_to_fallback(self, save: FinalSave) -> None:
        save.problems = []
        for parent in self._fallback.parents():
            if problem := self._save_in(parent, save):
                save.problems.append(f"{parent}: {problem}")
            else:
                break
        self._fallback.remove_empty()
        if save.fallback_folder:
            save.num_bytes = total_bytes(save.fallback_paths)
            save.link()
            self._record_for_exit()

    def _save_in(self, parent: Path, save: FinalSave) -> str:
        """Saves to a fallback folder in `parent`; returns why that failed, or ""."""
        try:
            folder = self._fallback.folder_in(parent)
            free = shutil.disk_usage(folder).free
            if free < save.num_bytes:
                return f"only {spoken_bytes(free)} free"
            paths, error = save.write(folder)
        except OSError as folder_error:
            paths, error = [], folder_error
        if error is None:
            save.fallback_folder, save.fallback_paths = folder, paths
            for path in paths:
                save.tell(path)
            return ""
        for path in paths:
            remove_folder(path)
        return str(getattr(error, "strerror", None) or error)

    def _try_again(self, save: FinalSave) -> None:
        started = time.monotonic()
        if started < save.next_try:
            return
        if not save.missing_bytes:
            self._save_at_destination(save)
            if save.error is None:
                self._move_to_destination(save)
                return
            save.link()  # the failed attempt removed the link
        if save.fallback_folder is None:
            self._save_to_fallback(save)
        save.next_try = started + max(RETRY_SECONDS, 3 * (time.monotonic() - started))

    def _move_to_destination(self, save: FinalSave) -> None:
        self._misplaced.remove(save)
        for path in save.fallback_paths:
            remove_folder(path)
        if save.fallback_folder:
            self._callbacks.on_status(
                f"The {save.name} is in {save.destination} now; its copy in {save.fallback_folder} is removed"
            )
        self._fallback.remove_empty()
        self._record_for_exit()

    # --- messages -------------------------------------------------------------------------------------------------

    def _waiting_text(self, seconds: float) -> str:
        targets = " and ".join(
            f"{spoken_bytes(save.missing_bytes)} in {save.destination}"
            if save.missing_bytes
            else f"{save.destination} ({save.obstacle})"
            for save in self._misplaced
        )
        return f"Waiting up to {math.ceil(seconds / 60)} min for {targets}; stop the run to stop waiting"

    def _location_text(self, save: FinalSave) -> str:
        text = f"The {save.name} is in {save.where}, not in {save.destination} ({save.obstacle})"
        is_temporary = save.fallback_folder is not None and self._fallback.is_temporary(save.fallback_folder)
        if not save.is_resumed_from:
            return f"{text}{': move it before the system empties its temporary folder' if is_temporary else ''}."
        if not save.is_linked:
            return f"{text}: move it to {save.destination}, then --resume continues from it."
        how_long = ", as long as the system does not empty its temporary folder" if is_temporary else ""
        return f"{text}: --resume continues from it there{how_long}."

    def _record_for_exit(self) -> None:
        """Records the fallback copies for exit.json, whichever process writes it."""
        saved = [save for save in self._misplaced if save.fallback_folder]
        paths = [path for save in saved for path in save.fallback_paths]
        with contextlib.suppress(OSError):  # the warning in the terminal must do
            self._folder.note_end(" ".join(map(self._location_text, saved)), elsewhere=paths)


def _nowhere(save: FinalSave) -> str:
    return ", nor anywhere else" + (f" ({'; '.join(save.problems)})" if save.problems else "")
