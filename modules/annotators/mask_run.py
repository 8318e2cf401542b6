"""Masks for the images of a concept: from their alpha channel, or by a model that finds what is wanted."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from modules.annotators.alpha_masks import alpha_mask
from modules.annotators.annotation_run import Steps, annotate_all, spread
from modules.annotators.Captioner import Failure
from modules.annotators.DoneRecord import DoneRecord
from modules.annotators.mask_edges import Edges, finished
from modules.annotators.Masker import LocalMasker, Masker, MaskHint
from modules.annotators.masker_kinds import MaskerKind, masker_class, masker_kind_in
from modules.annotators.model_folder import model_folder, onnx_file
from modules.annotators.onnx_models import check_onnxruntime
from modules.annotators.reports import Report
from modules.config.errors import UserError
from modules.curation.mask_files import mask_path, mask_there
from modules.data.captions import file_stem
from modules.data.concepts import scan
from modules.data.images import load_image
from modules.data.videos import is_video
from modules.machine.devices import list_gpus

if TYPE_CHECKING:
    from PIL import Image

    from modules.config.ConceptConfig import ConceptConfig

ALPHA = "alpha"

Write = Callable[[str, "Image.Image"], None]


@dataclass(frozen=True)
class WantedMasks:
    """What a person asks for.

    model: folder, Hub name or ONNX file; ALPHA for the images' own alpha channels. overwrite: also images that have a
    mask. restart: those, too, that an interrupted run has overwritten. only: paths to choose among; None for all.
    preview: mask so many images and write nothing into the dataset; 0 masks all. preview_to: a folder for the masks of
    a preview; "": they are only counted.
    """

    model: str
    hint: MaskHint = field(default_factory=MaskHint)
    edges: Edges = field(default_factory=Edges)
    dtype: str = ""
    device_index: int | None = None
    on_cpu: bool = False
    overwrite: bool = False
    restart: bool = False
    only: Collection[str] | None = None
    preview: int = 0
    preview_to: str = ""
    is_canceled: Callable[[], bool] = field(default=lambda: False)


class MaskSource:
    """Gives masks of images, from a model that is loaded when the first one is asked for, or from alpha channels.

    Raises UserError if the model can't be used.
    """

    def __init__(self, wanted: WantedMasks, report: Report):
        self._wanted, self._report = wanted, report
        self._masker: Masker | None = None
        self._path: Path | None = None
        self.kind: MaskerKind | None = None
        if wanted.model != ALPHA:
            self._path = _model_path(wanted.model, report, self._check)

    def load(self, path: str) -> Any:
        """What `mask` needs of the image at `path`: its pixels, or its alpha channel. Raises ImageError."""
        return alpha_mask(path) if self.kind is None else load_image(path)

    def mask(self, loaded: Any, hint: MaskHint, edges: Edges) -> Image.Image:
        """The finished mask of what `load` has given, in its upright size.

        Raises UserError if the hint lacks what is needed.
        """
        if self.kind is None:
            return finished(loaded, edges)
        if self._masker is None:
            self._report("loading")
            self._masker = self.kind.load(self._local())
        return finished(self._masker.mask(loaded, hint), edges)

    def _check(self, path: Path) -> None:
        self.kind = masker_kind_in(path, self._wanted.model)
        if not self.kind.models:
            check_onnxruntime()

    def _local(self) -> LocalMasker:
        assert self._path is not None
        assert self.kind is not None
        wanted = self._wanted
        if not self.kind.models:
            return LocalMasker(self._path, on_gpu=not wanted.on_cpu and bool(list_gpus()))
        from modules.annotators.safe_loading import device_and_dtype

        device, dtype = device_and_dtype(wanted.on_cpu, wanted.device_index, wanted.dtype)
        return LocalMasker(self._path, masker_class(self.kind, self._path), device, dtype)


def _model_path(name: str, report: Report, check: Callable[[Path], None]) -> Path:
    """The ONNX file or the folder of a model. Raises UserError."""
    path = onnx_file(name)
    if path is not None:
        check(path)
        return path
    return model_folder(name, check, lambda done, total: report("downloading", done=done, total=total))


def mask_concept(
    concept: ConceptConfig, wanted: WantedMasks, write: Write, record: DoneRecord | None, report: Report
) -> int:
    """Mask what is to be masked; returns how many images failed.

    write: saves the mask of an image; raises UserError. record: of an interrupted run that overwrites masks.
    Raises UserError if nothing can be masked.
    """
    paths = _targets(concept, wanted)
    source = MaskSource(wanted, report)
    if source.kind is not None and source.kind.needs == "prompt" and not wanted.hint.prompt:
        raise UserError(f'--prompt: {source.kind.label} needs to be told what to mask, such as "face, hair".')
    if source.kind is not None and source.kind.needs == "clicks" and len(paths) > 1:
        raise UserError(
            f"--click: {source.kind.label} marks what is at a place of one image; choose that image by --only."
        )
    chosen = [path for path in paths if wanted.overwrite or not mask_there(path, concept)]
    facts = {"images": len(paths), "done_before": len(paths) - len(chosen), "sent_to": ""}
    left = chosen if record is None else record.left(chosen, wanted.restart)
    facts["resumed"], chosen = len(chosen) - len(left), left
    if wanted.preview:
        chosen = [*spread(chosen, wanted.preview)]
    report("plan", chosen=len(chosen), model="their alpha channels" if source.kind is None else wanted.model, **facts)

    def annotate(loaded: Sequence[Any]) -> list[Image.Image | Failure]:
        return [source.mask(one, wanted.hint, wanted.edges) for one in loaded]

    numbers = itertools.count(1)

    def finish(path: str, mask: Image.Image) -> dict[str, Any]:
        file = mask_path(path, concept)
        if not wanted.preview:
            write(path, mask)
            if record is not None:
                record.add(path)
        elif wanted.preview_to:
            file = _save_preview(wanted.preview_to, next(numbers), path, mask)
        share = sum(number * value for value, number in enumerate(mask.histogram())) / (255 * mask.width * mask.height)
        return {"mask": file, "share": round(share, 4), "written": not wanted.preview}

    steps = Steps(source.load, annotate, finish, "mask")
    num_failed = annotate_all(chosen, steps, 1, report, wanted.is_canceled)
    if record is not None and not wanted.preview and not wanted.is_canceled():
        record.clear()
    return num_failed


def _save_preview(folder: str, number: int, path: str, mask: Image.Image) -> str:
    """Save a mask where it is only looked at; returns its file. Raises UserError."""
    file = os.path.join(folder, f"{number:03d}-{file_stem(path)}.png")
    try:
        os.makedirs(folder, exist_ok=True)
        mask.save(file)
    except OSError as error:
        raise UserError(f"--preview-to {folder!r}: can't be written to ({error.strerror}): choose another.") from error
    return file


def _targets(concept: ConceptConfig, wanted: WantedMasks) -> list[str]:
    """The images of a concept that training reads, without clips. Raises UserError."""
    paths = [path for path in scan([concept]).paths if not is_video(path)]
    if wanted.only is None:
        return paths
    chosen = {os.path.abspath(os.path.expanduser(path)) for path in wanted.only}
    found = [path for path in paths if os.path.abspath(path) in chosen]
    if not found:
        raise UserError(f"--only: names none of the {len(paths)} images of {concept.path}.")
    return found
