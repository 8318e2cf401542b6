"""Saves what a run leaves at its end, also where the disk of its folder takes no more."""

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

LOOK_SECONDS = 1.0
RETRY_SECONDS = 10.0  # between two attempts on a disk that seems to have room, such as one with a quota
TELL_SECONDS = 60.0


class FallbackSaver:
    """Saves to the run folder, or else to a fallback folder, and brings that to the run folder once there is room.

    To be used by rank 0 alone: `save` each thing, `wait` for room, `finish`.
    """

    def __init__(self, folder: RunFolder, output: OutputConfig, callbacks: TrainCallbacks):
        self._folder = folder
        self._fallback = FallbackFolders(folder.path.name, output.fallback_dir)
        self._wait_seconds = 60 * output.wait_minutes
        self._callbacks = callbacks
        self._away: list[FinalSave] = []  # what is not where it belongs

    @property
    def has_away(self) -> bool:
        """Whether something is not where it belongs."""
        return bool(self._away)

    def save(self, save: FinalSave) -> None:
        """Saves it where it belongs, else elsewhere. What can't be saved anywhere is left to `wait`.

        Raises TrainingError for an error that room on a disk would not mend.
        """
        self._save_at_home(save)
        if save.error is None:
            return
        self._away.append(save)
        self._save_elsewhere(save)
        where = f". It was saved to {save.where} instead" if save.place else _nowhere(save)
        self._callbacks.on_warning(f"The {save.name} could not be written to {save.home} ({save.lack}){where}.")

    def wait(self, is_over: Callable[[], bool], beat: Callable[[], None]) -> None:
        """Tries again until all is where it belongs, `is_over` says so, or the time of output.wait_minutes is over.

        beat: called every second.
        """
        deadline = time.monotonic() + self._wait_seconds
        next_words = time.monotonic()
        while self._away and time.monotonic() < deadline and not is_over():
            if time.monotonic() >= next_words:
                next_words = time.monotonic() + TELL_SECONDS
                self._callbacks.on_status(self._waiting_words(deadline - time.monotonic()))
            time.sleep(LOOK_SECONDS)
            beat()
            for save in list(self._away):
                self._try_again(save)

    def finish(self) -> None:
        """Says for good what is not where it belongs. Raises TrainingError for what is nowhere."""
        for save in self._away:
            if save.place:
                self._callbacks.on_warning(self._place_words(save))
        for save in self._away:
            if save.place is None:
                text = f"The {save.name} could not be written to {save.home} ({save.lack}){_nowhere(save)}"
                if save.fails_run:
                    raise TrainingError(f"{text}: free some space, then {resume_advice(self._folder)}.")
                self._callbacks.on_warning(f"{text}.")

    # --- attempts -------------------------------------------------------------------------------------------------

    def _save_at_home(self, save: FinalSave) -> None:
        try:
            # a run folder that has gone with its disk must not be made anew where that disk was mounted
            self._folder.config_path.stat()
            for path in save.part:  # a folder is never written over
                remove_folder(path)
            save.part, error = save.write(save.home)
            for path in save.part:
                save.tell(path)
        except OSError as gone:
            error = gone
        if isinstance(error, WeightsError):
            text = f"The {save.name} could not be written to {save.home}: {str(error).rstrip('.')}"
            raise TrainingError(f"{text}: {resume_advice(self._folder)}.") from error
        save.error = error

    def _save_elsewhere(self, save: FinalSave) -> None:
        save.problems = []
        for place in self._fallback.places():
            if problem := self._save_in(place, save):
                save.problems.append(f"{place}: {problem}")
            else:
                break
        self._fallback.remove_empty()
        if save.place:
            save.num_bytes = total_bytes(save.elsewhere)
            save.link()
            self._put_down()

    def _save_in(self, place: Path, save: FinalSave) -> str:
        """Why it could not be saved there, or ""."""
        try:
            folder = self._fallback.folder_in(place)
            free = shutil.disk_usage(folder).free
            if free < save.num_bytes:
                return f"only {spoken_bytes(free)} free"
            paths, error = save.write(folder)
        except OSError as unusable:
            paths, error = [], unusable
        if error is None:
            save.place, save.elsewhere = folder, paths
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
            self._save_at_home(save)
            if save.error is None:
                self._come_home(save)
                return
            save.link()  # an attempt at home begins with the removal of the link
        if save.place is None:
            self._save_elsewhere(save)
        save.next_try = started + max(RETRY_SECONDS, 3 * (time.monotonic() - started))

    def _come_home(self, save: FinalSave) -> None:
        self._away.remove(save)
        for path in save.elsewhere:
            remove_folder(path)
        if save.place:
            self._callbacks.on_status(f"The {save.name} is in {save.home} now; its copy in {save.place} is removed")
        self._fallback.remove_empty()
        self._put_down()

    # --- words ----------------------------------------------------------------------------------------------------

    def _waiting_words(self, seconds: float) -> str:
        homes = " and ".join(
            f"{spoken_bytes(save.missing_bytes)} in {save.home}"
            if save.missing_bytes
            else f"{save.home} ({save.obstacle})"
            for save in self._away
        )
        return f"Waiting at most {math.ceil(seconds / 60)} min for {homes}; stop the run to wait no longer"

    def _place_words(self, save: FinalSave) -> str:
        text = f"The {save.name} is in {save.where}, not in {save.home} ({save.obstacle})"
        is_temporary = self._fallback.is_temporary(save.place)
        if not save.is_resumed_from:
            return f"{text}{': move it before the system empties its temporary folder' if is_temporary else ''}."
        if not save.is_linked:
            return f"{text}: move it to {save.home}, then --resume goes on from it."
        how_long = ", as long as the system does not empty its temporary folder" if is_temporary else ""
        return f"{text}: --resume goes on from it there{how_long}."

    def _put_down(self) -> None:
        """For exit.json, whoever writes it."""
        away = [save for save in self._away if save.place]
        paths = [path for save in away for path in save.elsewhere]
        with contextlib.suppress(OSError):  # the words on the terminal have to do
            self._folder.note_end(" ".join(map(self._place_words, away)), elsewhere=paths)


def _nowhere(save: FinalSave) -> str:
    return ", nor anywhere else" + (f" ({'; '.join(save.problems)})" if save.problems else "")
