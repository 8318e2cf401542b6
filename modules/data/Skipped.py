"""What was found in a concept's folder but is not part of the dataset."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from modules.config.counted import counted
from modules.data.image_formats import EXTENSIONS
from modules.data.ImageSettings import FILE_NAME
from modules.data.unread_files import FOLDERS, VIDEOS, Unread, described, merged

if TYPE_CHECKING:
    from modules.config.ConceptConfig import ConceptConfig


@dataclass
class Skipped:
    """What was found in a concept's folder but is not part of the dataset.

    folders: (path, reason) of subfolders that can't be listed. num_masks, run_images, unread, set_aside: as in Dataset.
    """

    folders: list[tuple[str, str]] = field(default_factory=list)
    num_masks: int = 0
    run_images: Counter[str] = field(default_factory=Counter)
    unread: dict[Unread, list[str]] = field(default_factory=dict)
    set_aside: list[str] = field(default_factory=list)

    def why_no_images(self, concept: ConceptConfig, setting: str) -> str:
        """Why a concept's folder has no images, and what to do."""
        if self.folders:
            path, reason = self.folders[0]
            return f"{path} can't be listed ({reason}); change its permissions."
        if self.set_aside:
            return f"{FILE_NAME} leaves all of its images out; take some back, or disable the concept."
        if self.run_images:
            run, count = next(iter(self.run_images.items()))
            return (
                f"contains only {counted(count, 'image')} of the run folder {run}, left out here; add images, or "
                "choose the folder of its samples to train on them."
            )
        if VIDEOS in self.unread:
            return (
                "contains only videos, which models of videos train if data.frames is above 1; add images, or choose "
                "such a model and set data.frames."
            )
        if files := [
            described(kind, sorted(paths)) for kind, paths in merged([self.unread]).items() if kind != FOLDERS
        ]:
            return f"contains no image that can be read, only {' and '.join(files)}."
        if concept.include or concept.exclude:
            return (
                f"{setting}.include {concept.include!r} and exclude {concept.exclude!r} match none of its images; "
                "change the patterns."
            )
        subfolders = "" if concept.include_subfolders else f", turn on {setting}.include_subfolders"
        extensions = " ".join(sorted(EXTENSIONS))
        return f"contains no images ({extensions}); add some{subfolders} or disable the concept."
