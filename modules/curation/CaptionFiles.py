"""The captions of a concept as they are written, and what its files become when they are edited."""

from __future__ import annotations

import os
import re
import threading
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from modules.config.installation import CONVERTS_CAPTIONS
from modules.config.regular_file import read_regular
from modules.curation.CaptionTable import CaptionTable
from modules.curation.FileChanges import MISSING, FileChanges, fingerprint
from modules.curation.TextForm import TextForm
from modules.data.caption_encodings import split_mark
from modules.data.caption_tables import find_table
from modules.data.captions import MAX_LINES_BYTES, caption_paths, own_captions, path_in_concept, plain_text, texts_in
from modules.data.errors import CaptionError, DataError

if TYPE_CHECKING:
    from modules.config.ConceptConfig import ConceptConfig
    from modules.curation.Journal import Applied, Journal

_NEWLINE = re.compile(r"\r\n|\r")
_STALE = "stale"  # a fingerprint that no file has
_SOURCES = {"file_name": "the names of the image files", "prompt": "one prompt for all"}


@dataclass(frozen=True)
class Caption:
    r"""The caption of an image as it is written. Nothing that the concept adds or removes for training is done to it.

    text: its lines end in \n; "" if there is none. per_line: whether each line is a caption of its own.
    file: the caption file or table that it is in, or would be; "" if the concept takes no captions from files.
    is_missing: whether the image has none, in contrast to an empty one. seen: what the file was when it was read.
    problem: why the training can't read it, as a sentence; "" if it can. can_edit: whether it can be changed here.
    is_misencoded: whether the reason is that its file is not UTF-8, for `CaptionFiles.in_utf8`.
    """

    text: str
    per_line: bool
    file: str
    is_missing: bool
    seen: str = MISSING
    problem: str = ""
    can_edit: bool = True
    is_misencoded: bool = False

    @property
    def captions(self) -> list[str]:
        """Each caption of the image; none if there is none."""
        if self.per_line:
            return [line for line in map(str.strip, self.text.splitlines()) if line]
        return [self.text] if self.text.strip() else []


@dataclass(frozen=True)
class _ReadTable:
    """signature: of `os.stat`, by which a file that has not changed is not read for each image."""

    path: str
    signature: tuple[int, int, int]
    seen: str
    table: CaptionTable


class CaptionFiles:
    """Reads and edits the captions of one concept, wherever it takes them from.

    An edit is made from the captions that were read last; `Journal.apply` refuses it if their file has changed since.
    All methods may be called from any thread.

    setting: "concepts.N", for messages.
    """

    def __init__(self, concept: ConceptConfig, setting: str = "concepts.0"):
        self.concept = concept
        self._setting = setting
        self._read: dict[str, Caption] = {}
        self._table: _ReadTable | None = None
        self._lock = threading.Lock()

    @property
    def why_read_only(self) -> str:
        """Why no caption of the concept can be edited, as a sentence; "" if its captions are in files."""
        captions = self.concept.captions
        if captions not in _SOURCES:
            return ""
        return (
            f"{self._setting}.captions {captions}: its captions are {_SOURCES[captions]}, which can't be edited; set "
            "it to txt to write caption files."
        )

    def read(self, image: str) -> Caption:
        """The caption of an image or video, by its path. What is wrong with its file is in its `problem`."""
        self._read[image] = caption = self._caption(image)
        return caption

    def reload(self, images: Iterable[str] | None = None) -> None:
        """Read the captions of these images again, all that were read if None.

        For when the person wants to write over what another program has written: changes made afterwards are made from
        what the files are now.
        """
        for image in list(self._read if images is None else images):
            self.read(image)

    def changes(self, texts: Mapping[str, str | None], made_from: Mapping[str, Caption] | None = None) -> FileChanges:
        """What the files become when these images have these captions, for `Journal.apply`.

        texts: image -> caption as in `Caption.text`; None removes it, and with it a caption file that is the image's
        own. Captions that stay the same change nothing.
        made_from: the captions that the person has edited, if others may have been read since; else those read last.
        Raises DataError if the concept takes no captions from files, if a caption is too long or can't be written in
        the encoding of its file, and if images that share a caption file get different captions.
        """
        if reason := self.why_read_only:
            raise DataError(reason)
        new: dict[str, bytes | None] = {}
        seen: dict[str, str] = {}
        in_table: dict[str, dict[str, list[str]]] = defaultdict(dict)
        owner: dict[str, str] = {}
        for image, text in texts.items():
            caption = (made_from or {}).get(image) or self._read.get(image) or self.read(image)
            if not caption.can_edit:
                raise DataError(caption.problem)
            if text is not None:
                text = plain_text(_NEWLINE.sub("\n", text))
            if (text == caption.text and not caption.is_missing) or (caption.is_missing and not text):
                continue
            texts_in((text or "").encode(), caption.file, caption.per_line)  # raises if it is too long
            file = caption.file
            if seen.setdefault(file, caption.seen) != caption.seen:
                seen[file] = _STALE  # it was changed while its captions were being read
            if self.concept.captions == "table":
                in_table[file][path_in_concept(image, self.concept)] = (text or "").split("\n")
                continue
            content = self._file_with(file, text)
            if new.setdefault(file, content) != content:
                raise DataError(
                    f"{os.path.basename(owner[file])} and {os.path.basename(image)} share the caption file {file}: "
                    "give them the same caption, or rename one of them."
                )
            owner[file] = image
        for file, captions in in_table.items():
            new[file] = self._table_with(file, captions)
        return FileChanges(new, seen)

    def in_utf8(self, images: Iterable[str]) -> FileChanges:
        """What the caption files of these images become as UTF-8, without a byte order mark, for `Journal.apply`.

        Files that the training can read stay. One that tells its encoding by nothing is taken for Western European.
        Raises DataError if one can't be read.
        """
        new: dict[str, bytes | None] = {}
        seen: dict[str, str] = {}
        for image in images:
            caption = self.read(image)
            content = _caption_bytes(caption.file) if caption.is_misencoded else None
            if content is not None:
                text, form = _split(content, caption.file)
                new[caption.file] = TextForm(newline=form.newline, ending=form.ending).joined(text)
                seen[caption.file] = fingerprint(content)
        return FileChanges(new, seen)

    def write(self, journal: Journal, label: str, texts: Mapping[str, str | None]) -> Applied:
        """Write these captions as one step of the journal, and read them again. Raises like `changes` and `apply`."""
        applied = journal.apply(label, self.changes(texts))
        self.refresh(applied)
        return applied

    def refresh(self, applied: Applied) -> list[str]:
        """Read the captions again that a step of the journal has changed, and return their images.

        After `Journal.undo` and `redo`; of images whose captions were read before.
        """
        files = set(applied.paths)
        images = [image for image, caption in list(self._read.items()) if os.path.realpath(caption.file) in files]
        self.reload(images)
        return images

    def _caption(self, image: str) -> Caption:
        if self.concept.captions == "table":
            return self._table_caption(image)
        if self.concept.captions in _SOURCES:
            text = "\n".join(own_captions(image, self.concept, None) or ())
            return Caption(text, False, "", False, can_edit=False)
        return self._file_caption(image)

    def _table_caption(self, image: str) -> Caption:
        try:
            read = self._table_at(find_table(self.concept, self._setting))
        except DataError as error:
            return Caption("", True, "", True, problem=str(error), can_edit=False)
        found = read.table.captions_of(path_in_concept(image, self.concept))
        captions = found or ()
        is_missing = all(caption is None for caption in captions)
        return Caption("\n".join(caption or "" for caption in captions), True, read.path, is_missing, read.seen)

    def _file_caption(self, image: str) -> Caption:
        paths = caption_paths(image, self.concept)
        file = next(filter(os.path.lexists, paths), paths[0])
        per_line = self.concept.caption_per_line
        try:
            content = _caption_bytes(file)
            if content is None:
                return Caption("", per_line, file, True)
            text, _ = _split(content, file)
        except CaptionError as error:
            return Caption("", per_line, file, False, problem=str(error), can_edit=False)
        try:
            texts_in(content, file, per_line)
            problem, kind = "", ""
        except CaptionError as error:  # which can be corrected here
            problem, kind = str(error), error.kind
        is_misencoded = kind == "encoding"
        return Caption(text, per_line, file, False, fingerprint(content), problem, is_misencoded=is_misencoded)

    def _file_with(self, file: str, text: str | None) -> bytes | None:
        """What a caption file becomes. Raises DataError."""
        if text is None:
            return None
        present = _caption_bytes(file)
        form = TextForm() if present is None else _split(present, file)[1]
        try:
            return form.joined(text)
        except UnicodeEncodeError as error:
            raise DataError(
                f"{file} is {form.encoding}, which has no {error.object[error.start]!r}: save it as UTF-8 "
                f"({CONVERTS_CAPTIONS}), or write the caption without."
            ) from error

    def _table_at(self, path: str) -> _ReadTable:
        """Raises DataError."""
        with self._lock:
            try:
                status = os.stat(path)
                signature = status.st_mtime_ns, status.st_size, status.st_ino
                if self._table is None or (self._table.path, self._table.signature) != (path, signature):
                    content = read_regular(path)
                    table = CaptionTable(content, path, self.concept, self._setting)
                    self._table = _ReadTable(path, signature, fingerprint(content), table)
            except OSError as error:
                raise DataError(f"{path} can't be read ({error.strerror}): make it a readable file.") from error
            return self._table

    def _table_with(self, path: str, captions: Mapping[str, Sequence[str]]) -> bytes:
        """Raises DataError."""
        table = self._table_at(path).table
        content = table.with_captions(captions)
        CaptionTable(content, path, self.concept, self._setting).check(table, captions)
        return content


def _caption_bytes(path: str) -> bytes | None:
    """The content of a caption file; None if it is not there. Raises CaptionError."""
    try:
        content = read_regular(path, MAX_LINES_BYTES + 1)
    except FileNotFoundError as error:
        if os.path.islink(path):
            raise CaptionError(path, "access", "is a link to a file that is not there") from error
        return None
    except OSError as error:
        raise CaptionError(path, "access", f"can't be read ({error.strerror})") from error
    if len(content) > MAX_LINES_BYTES:
        raise CaptionError(path, "size", f"is larger than {MAX_LINES_BYTES // 1024} KB")
    return content


def _split(content: bytes, path: str) -> tuple[str, TextForm]:
    """Raises CaptionError for a file that is in no encoding that is known here."""
    try:
        return TextForm.split(content)
    except UnicodeDecodeError as error:
        raise CaptionError(path, "encoding", f"is neither UTF-8 nor {split_mark(content)[1]}") from error
