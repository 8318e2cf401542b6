"""Writes captions beside the images, in the form that training reads."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from modules.annotators.DoneRecord import DoneRecord
from modules.config.atomic_file import write_bytes
from modules.config.errors import UserError
from modules.config.installation import window_state_folder
from modules.data.captions import caption_paths

if TYPE_CHECKING:
    from modules.annotators.caption_run import Wanted
    from modules.config.ConceptConfig import ConceptConfig


class CaptionWriter:
    """Writes one caption at a time, each of which is old or new at any moment."""

    def __init__(self, concept: ConceptConfig):
        if concept.captions == "table":
            raise UserError(f"The captions of {concept.path} are a table, which is not written: use text files.")
        self._concept = concept

    def __call__(self, image: str, text: str) -> None:
        """Raises UserError if the file can't be written."""
        paths = caption_paths(image, self._concept)
        path = next((one for one in paths if os.path.exists(one)), paths[0])
        try:
            write_bytes(path, f"{text}\n".encode())
        except OSError as error:
            raise UserError(f"{path} can't be written ({error.strerror}): make its folder writable.") from error


def interrupted_work(concept: ConceptConfig, wanted: Wanted) -> DoneRecord:
    """What an earlier run for the same captions has done. Raises UserError if that can't be kept."""
    folder = window_state_folder() / "captioning"
    options = wanted.options
    work = (
        os.path.abspath(os.path.expanduser(concept.path)),
        wanted.model,
        wanted.server.address if wanted.server else "",
    )
    try:
        return DoneRecord(folder, (*work, options.style, options.name, options.prompt))
    except OSError as error:
        raise UserError(f"{folder} can't be written ({error.strerror}): make it writable.") from error
