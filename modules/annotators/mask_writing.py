"""Saves the masks that models make, as the trainer reads them."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import numpy as np

from modules.annotators.DoneRecord import DoneRecord, chosen_paths, open_record
from modules.config.errors import UserError
from modules.curation.Journal import Journal
from modules.curation.mask_files import MaskFile, mask_path

if TYPE_CHECKING:
    from PIL import Image

    from modules.annotators.mask_run import WantedMasks
    from modules.config.ConceptConfig import ConceptConfig


class MaskWriter:
    """Saves masks one by one, each of which is there or not at any moment; together they are one step of the journal.

    A context: the step is complete when it is left. label: of the step. Raises UserError if the journal can't be
    written.
    """

    def __init__(self, concept: ConceptConfig, label: str):
        self._concept = concept
        self._change = Journal(os.path.expanduser(concept.path)).long_change(label)

    def __enter__(self) -> MaskWriter:
        self._write = self._change.__enter__()
        return self

    def __exit__(self, *exc_info: Any) -> None:
        self._change.__exit__(*exc_info)

    def __call__(self, image: str, mask: Image.Image) -> None:
        """Give an image this mask, and remove one that it has in another place or format. Raises UserError."""
        file, folder = MaskFile(image, self._concept), os.path.dirname(mask_path(image, self._concept))
        try:
            os.makedirs(folder, exist_ok=True)
        except OSError as error:
            raise UserError(f"{folder} can't be made ({error.strerror}): make it writable.") from error
        file.look()
        self._write.apply(file.changes(np.asarray(mask)))


def interrupted_masks(concept: ConceptConfig, wanted: WantedMasks) -> DoneRecord:
    """What an earlier run for the same masks of the same images has done. Raises UserError if that can't be kept."""
    folders = (
        os.path.abspath(os.path.expanduser(path)) if path else "" for path in (concept.path, concept.mask_folder)
    )
    work = *folders, wanted.model, repr(wanted.hint), repr(wanted.edges), *chosen_paths(wanted.only)
    return open_record("masking", work)
