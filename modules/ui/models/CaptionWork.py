"""Edits of the dataset window: captions, masks and image settings, written through their folder's journal. No Tk."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from modules.config.counted import counted
from modules.config.errors import UserError
from modules.curation.CaptionFiles import Caption, CaptionFiles
from modules.curation.FileChanges import MISSING, FileChanges, fingerprint, read_present
from modules.curation.Journal import Applied, Journal, Outside
from modules.curation.mask_files import MaskFile, mask_path
from modules.curation.TokenCounts import TokenCount, TokenCounts
from modules.curation.unsaved_copies import keep_caption, keep_mask
from modules.data.captions import has_fallback
from modules.data.ImageSettings import ImageSetting, ImageSettings, settings_file
from modules.data.mask_names import masked_stem
from modules.ui.models.dataset_reading import find_item_masks
from modules.ui.models.DatasetView import DatasetItem, Trait

if TYPE_CHECKING:
    import numpy as np

    from modules.config.ConceptConfig import ConceptConfig
    from modules.data.ImageSettings import Crop


class CaptionWork:
    """The captions and masks of some concepts, by their numbers. Each concept's folder has its own journal.

    All methods may be called from any thread; those that write take a moment, as they wait for the disk. They raise
    UserError, and ChangedOutside if a file is not what it was when its caption was read.

    state_folder: where journals are kept; None: the usual place.
    """

    def __init__(self, concepts: Mapping[int, ConceptConfig], state_folder: Path | None = None):
        self._concepts = dict(concepts)
        self._files = {number: CaptionFiles(one, f"concepts.{number}") for number, one in concepts.items()}
        self._journals = {number: Journal(one.path, state_folder) for number, one in concepts.items() if one.path}

    def journal(self, number: int) -> Journal | None:
        """The journal of a concept; None if it has no folder yet."""
        return self._journals.get(number)

    def concept(self, number: int) -> ConceptConfig:
        return self._concepts[number]

    def read(self, item: DatasetItem) -> Caption:
        """The caption as it is in its file now."""
        return self._files[item.concept].read(item.path)

    def write(
        self,
        label: str,
        number: int,
        texts: Mapping[str, str],
        made_from: Mapping[str, Caption] | None = None,
        overwrites: bool = False,
    ) -> Applied:
        """Give images of one concept these captions, as one step. texts: by path.

        made_from: the captions that were edited. overwrites: whether what other programs have written is replaced.
        """
        files = self._files[number]
        if overwrites:
            files.reload(texts)
            made_from = None
        applied = self._journals[number].apply(label, files.changes(texts, made_from))
        files.reload(texts)
        return applied

    def save_as_utf8(self, number: int, paths: Sequence[str]) -> Applied:
        """Rewrite the caption files of these images of one concept that are not UTF-8, as one step."""
        files = self._files[number]
        changes = files.in_utf8(paths)
        applied = self._journals[number].apply(f"Save {counted(len(changes.new), 'caption')} as UTF-8", changes)
        files.reload(paths)
        return applied

    def set_left_out(self, number: int, paths_below: Sequence[str], left_out: bool) -> Applied:
        """Leave images out of the training, or no longer. paths_below: in the concept's folder."""
        images = counted(len(paths_below), "image")
        label = f"Leave {images} out" if left_out else f"Train {images} again"
        return self._set(label, number, paths_below, lambda path, before: ImageSetting(left_out, before.crop))

    def keep_only(self, number: int, label: str, kept: Collection[str], left_out: Collection[str]) -> Applied:
        """Train some images and leave others out, as one step. label: of it. The others: paths below the folder."""
        paths = [*kept, *left_out]
        return self._set(label, number, paths, lambda path, before: ImageSetting(path in left_out, before.crop))

    def set_crop(self, number: int, path_below: str, crop: Crop | None) -> Applied:
        """Crop an image, whose file stays as it is; None: train the whole image. path_below: in the concept's folder.

        crop: inside of the image.
        """
        label = f"Crop of {os.path.basename(path_below)}"
        return self._set(label, number, [path_below], lambda path, before: ImageSetting(before.left_out, crop))

    def _set(
        self, label: str, number: int, paths_below: Sequence[str], change: Callable[[str, ImageSetting], ImageSetting]
    ) -> Applied:
        """Change the settings of images in one concept's folder. change: called with the path of each."""
        path = settings_file(self._concepts[number].path)
        content = read_present(path)
        settings = ImageSettings({}) if content is None else ImageSettings.parse(content, path)
        made = settings.with_images({one: change(one, settings.of(one)) for one in paths_below})
        seen = MISSING if content is None else fingerprint(content)
        changes = FileChanges({path: made.to_bytes() if made.images else None}, {path: seen})
        return self._journals[number].apply(label, changes)

    def write_mask(self, number: int, file: MaskFile, values: np.ndarray | None, overwrites: bool = False) -> Applied:
        """Save a mask, uint8[H, W], of an image of this concept; None removes it. overwrites: as for `write`."""
        if overwrites:
            file.look()
        folder = os.path.dirname(mask_path(file.image, self._concepts[number]))
        try:
            os.makedirs(folder, exist_ok=True)
        except OSError as error:
            raise UserError(f"{folder} can't be made ({error.strerror}): make its parent folder writable.") from error
        label = f"{'Remove mask' if values is None else 'Mask'} of {os.path.basename(file.image)}"
        applied = self._journals[number].apply(label, file.changes(values))
        file.take_written()
        return applied

    def keep_caption(self, image: str, text: str) -> str:
        """Keep a caption that could not be saved beside its image. Returns a sentence that says where."""
        try:
            return f"What was typed is kept in {keep_caption(image, text)}."
        except OSError as error:
            return f"{os.path.dirname(image)} can't be written either ({error.strerror}); what was typed: {text}"

    def keep_mask(self, number: int, image: str, values: np.ndarray | None) -> str:
        """Likewise a mask, uint8[H, W], of an image of this concept; "" for None, which removes it."""
        if values is None:
            return ""
        try:
            return f"What was painted is kept in {keep_mask(image, self._concepts[number], values)}."
        except OSError as error:
            return f"Nor could the mask be kept elsewhere in its folder ({error.strerror}): it is lost."

    def step_back(self, number: int, direction: Literal["undo", "redo"], outside: Outside = "ask") -> Applied:
        """Undo or redo the last change to the files of a concept's folder."""
        journal = self._journals[number]
        return journal.undo(outside) if direction == "undo" else journal.redo(outside)

    def touched(self, number: int, items: Iterable[DatasetItem], paths: Sequence[str]) -> list[DatasetItem]:
        """Which of these items, of this concept, changed files belong to. paths: of the files, as in Applied."""
        root = os.path.realpath(os.path.expanduser(self._concepts[number].path))
        changed = set(paths)
        of_concept = [item for item in items if item.concept == number]
        if os.path.realpath(settings_file(root)) in changed or self._concepts[number].captions == "table":
            return of_concept
        stems = {os.path.splitext(path)[0] for path in changed}
        masked = self._masked_stems(number, changed)

        def is_touched(item: DatasetItem) -> bool:
            path = os.path.join(root, *item.path_below.split("/"))
            names = {path, os.path.splitext(path)[0]}
            return bool(names & stems) or bool(masked and {name.lower() for name in names} & masked)

        return [item for item in of_concept if is_touched(item)]

    def _masked_stems(self, number: int, changed: Iterable[str]) -> set[str]:
        """The images whose masks are among these files, without extension and in lower case."""
        concept = self._concepts[number]
        root, folder = (
            os.path.realpath(os.path.expanduser(path)) if path else "" for path in (concept.path, concept.mask_folder)
        )
        found = set()
        for path in changed:
            place, name = os.path.split(path)
            stem = masked_stem(name) or (os.path.splitext(name)[0] if folder else None)
            if stem is None or (folder and not os.path.join(place, "").startswith(os.path.join(folder, ""))):
                continue
            place = os.path.normpath(os.path.join(root, os.path.relpath(place, folder))) if folder else place
            found.add(os.path.join(place, stem).lower())
        return found

    def renew(self, item: DatasetItem, settings: ImageSettings) -> None:
        """Let an item follow its files. settings: of its concept's folder, as of `image_settings`."""
        take_caption(item, self.read(item), self._concepts[item.concept])
        setting = settings.of(item.path_below)
        item.crop = setting.crop
        item.set_trait(Trait.LEFT_OUT, setting.left_out)

    def renew_masks(self, items: Sequence[DatasetItem]) -> None:
        """Let items follow the files of their masks. Lists their folders."""
        for item, mask in zip(items, find_item_masks(self._concepts, items), strict=True):
            item.mask = mask

    def image_settings(self, number: int) -> ImageSettings:
        return ImageSettings.read(self._concepts[number].path)


def take_caption(item: DatasetItem, caption: Caption, concept: ConceptConfig) -> None:
    """Set the caption of an item, and what it says of it."""
    had_problem, item.caption_problem = item.caption_problem, caption.problem
    item.captions = None if caption.is_missing else tuple(caption.captions)
    item.words = " ".join(item.captions or ()).casefold()
    item.set_trait(Trait.NO_CAPTION, not any(item.captions or ()) and not caption.problem and not has_fallback(concept))
    if caption.problem or had_problem:
        item.set_trait(Trait.BROKEN, bool(caption.problem or item.problem))


def length_text(counts: Sequence[TokenCount]) -> str:
    """How long the longest of an image's captions is, in words."""
    longest = max(counts, key=lambda one: one.count)
    if longest.in_words:
        return f"{counted(longest.count, 'word')} (not tokens)"
    if longest.limit is None:
        return counted(longest.count, "token")
    text = f"{longest.count:,} of {longest.limit:,} tokens"
    return f"{text}: what is marked is cut off" if longest.is_over else text


def too_long(items: Sequence[DatasetItem], counts: TokenCounts) -> list[bool]:
    """Of each item, whether one of its captions is not read to its end. May take seconds: call it in a thread."""
    captions = [item.captions or () for item in items]
    over = [one.is_over for one in counts.count([text for own in captions for text in own])]
    ends = list(itertools.accumulate(map(len, captions)))
    return [any(over[end - len(own) : end]) for own, end in zip(captions, ends, strict=True)]


def cut_ranges(text: str, captions: Sequence[str], counts: Sequence[TokenCount]) -> list[tuple[int, int]]:
    """Which letters of a text have no effect. captions: the parts of the text that were counted, in order."""
    ranges, start = [], 0
    for caption, count in zip(captions, counts, strict=True):
        start = text.index(caption, start)
        if count.cut_at is not None:
            ranges.append((start + count.cut_at, start + len(caption)))
        start += len(caption)
    return ranges
