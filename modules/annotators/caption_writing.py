"""Writes captions in the form that a concept has them in: text files, or a table."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from modules.annotators.DoneRecord import DoneRecord, chosen_paths, open_record
from modules.curation.CaptionFiles import Caption, CaptionFiles
from modules.curation.FileChanges import ChangedOutside
from modules.curation.Journal import Journal

if TYPE_CHECKING:
    from modules.annotators.caption_run import Wanted
    from modules.config.ConceptConfig import ConceptConfig


class CaptionWriter:
    """Writes captions one by one, each of which is old or new at any moment; together they are one step of the journal.

    A context: the step is complete when it is left. label: of the step. Raises UserError if the journal can't be
    written.
    """

    def __init__(self, concept: ConceptConfig, label: str):
        self._files = CaptionFiles(concept)
        self._change = Journal(os.path.expanduser(concept.path)).long_change(label)
        self._before: dict[str, Caption] = {}

    def __enter__(self) -> CaptionWriter:
        self._write = self._change.__enter__()
        return self

    def __exit__(self, *exc_info: Any) -> None:
        self._change.__exit__(*exc_info)

    def see(self, image: str) -> None:
        """Note the caption that an image has before a model is asked for another one."""
        self._before[image] = self._files.read(image)

    def __call__(self, image: str, text: str) -> None:
        """Raises ChangedOutside if the caption has changed since `see`, and UserError if it can't be written."""
        before, now = self._before.pop(image), self._files.read(image)
        if (now.text, now.is_missing) != (before.text, before.is_missing):
            raise ChangedOutside([now.file])
        self._write.apply(self._files.changes({image: text}))


def interrupted_work(concept: ConceptConfig, wanted: Wanted) -> DoneRecord:
    """What an earlier run for the same captions of the same images has done. Raises UserError if that can't be kept."""
    options = wanted.options
    path = os.path.abspath(os.path.expanduser(concept.path))
    address = wanted.server.address if wanted.server else ""
    work = path, wanted.model, address, options.style, options.name, options.prompt, *chosen_paths(wanted.only)
    return open_record("captioning", work)
