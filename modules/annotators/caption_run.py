"""A run of a captioner over a concept: what there is to do, the model, and the captions that are written."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from modules.annotators.annotation_run import Steps, annotate_all, spread
from modules.annotators.caption_targets import find_targets, load_frames
from modules.annotators.Captioner import Captioner, CaptionOptions, Failure, LocalModel
from modules.annotators.captioner_kinds import SERVER, TAGGER, check_options, kind_in
from modules.annotators.chat_client import ChatServer, sent_where
from modules.annotators.DoneRecord import DoneRecord
from modules.annotators.model_folder import model_folder
from modules.annotators.onnx_models import check_onnxruntime
from modules.annotators.reports import Report
from modules.annotators.safe_loading import device_and_dtype
from modules.machine.devices import list_gpus

if TYPE_CHECKING:
    from PIL import Image

    from modules.config.ConceptConfig import ConceptConfig

MAX_SIDE = 1024  # pixels; more cost time and tokens, and show captioners little
NUM_FRAMES = 4


class Writer(Protocol):
    """Is told of each image before a model is asked for its caption, and called with what that has written."""

    def see(self, image: str) -> None: ...

    def __call__(self, image: str, text: str) -> None: ...


@dataclass(frozen=True)
class Wanted:
    """What a person asks for.

    model: folder or Hub name, or what the server calls it. server: where to ask; None for a model on this machine.
    dtype: of weights, one of DTYPES; "" for the usual one. device_index: of the GPU; None for the first. on_cpu: though
    there is a GPU. batch_size: images at a time. preview: caption so many images and write nothing; 0 captions all.
    overwrite, only, videos: as of `find_targets`. restart: begin again though an interrupted run has done a part.
    """

    model: str
    options: CaptionOptions
    server: ChatServer | None = None
    dtype: str = ""
    device_index: int | None = None
    on_cpu: bool = False
    batch_size: int = 1
    num_frames: int = NUM_FRAMES
    max_side: int = MAX_SIDE
    preview: int = 0
    overwrite: bool = False
    restart: bool = False
    only: Collection[str] | None = None
    videos: bool = False
    is_canceled: Callable[[], bool] = field(default=lambda: False)


def caption_concept(
    concept: ConceptConfig, wanted: Wanted, write: Writer, record: DoneRecord | None, report: Report
) -> int:
    """Caption what is to be captioned; returns how many images failed.

    write: raises UserError if a caption can't be written, or has changed meanwhile. record: of an interrupted run that
    overwrites captions.
    Raises UserError if nothing can be captioned.
    """
    targets = find_targets(concept, wanted.overwrite, wanted.only, wanted.videos)
    source = _Source(wanted, report)  # after them: a mistyped folder is not worth a download
    paths = targets.paths
    if record is not None:
        paths = tuple(record.left(paths, wanted.restart))
    resumed = len(targets.paths) - len(paths)
    if wanted.preview:
        paths = spread(paths, wanted.preview)
    for path, reason in targets.skipped:
        report("skipped", path=path, reason=reason)
    facts = {"images": targets.num_images, "chosen": len(paths), "done_before": targets.num_captioned}
    report("plan", **facts, resumed=resumed, sent_to=source.sent_to, model=source.label)

    def load(path: str) -> Sequence[Image.Image]:
        write.see(path)
        frames = wanted.num_frames if source.kind.takes_frames else 1
        return load_frames(path, frames, wanted.max_side, concept.frame_folders_fps, targets.crops.get(path))

    def finish(path: str, text: str) -> dict[str, Any]:
        if not wanted.preview:
            write(path, text)
            if record is not None:
                record.add(path)
        return {"text": text, "written": not wanted.preview}

    captioner = source.load() if paths else _NoCaptioner()
    steps = Steps(load, captioner.caption, finish, "caption")
    num_failed = annotate_all(paths, steps, wanted.batch_size, report, wanted.is_canceled)
    if record is not None and not wanted.preview and not wanted.is_canceled():
        record.clear()
    return num_failed


class _Source:
    """Where the captions come from. It knows of the model what can be said before it is loaded."""

    def __init__(self, wanted: Wanted, report: Report):
        self._wanted, self._report = wanted, report
        self.kind = SERVER
        self._folder: Path | None = None
        if wanted.server is None:
            self._folder = model_folder(wanted.model, self._check, self._report_download)
        else:
            check_options(SERVER, wanted.options)

    def _check(self, folder: Path) -> None:
        self.kind = kind_in(folder, self._wanted.model)
        check_options(self.kind, self._wanted.options)
        if self.kind is TAGGER:
            check_onnxruntime()

    def _report_download(self, done: int, total: int) -> None:
        self._report("downloading", done=done, total=total)

    @property
    def label(self) -> str:
        return self._wanted.model or "the server's model"

    @property
    def sent_to(self) -> str:
        server = self._wanted.server
        return sent_where(server.address, bool(server.key)) if server else ""

    def load(self) -> Captioner:
        wanted = self._wanted
        self._report("loading")
        if wanted.server is not None:
            return SERVER.load(wanted.server, wanted.model, wanted.options)
        assert self._folder is not None
        if self.kind is TAGGER:
            local = LocalModel(self.kind, self._folder, on_gpu=not wanted.on_cpu and bool(list_gpus()))
        else:
            device, dtype = device_and_dtype(wanted.on_cpu, wanted.device_index, wanted.dtype)
            local = LocalModel(self.kind, self._folder, device, dtype, is_canceled=wanted.is_canceled)
        captioner = self.kind.load(local, wanted.options)
        most = captioner.most_tokens
        if most is not None and most < wanted.options.max_tokens:
            self._report("limited", tokens=most, wanted=wanted.options.max_tokens)
        return captioner


class _NoCaptioner(Captioner):
    """Where there is nothing to caption, so that no model is loaded."""

    def caption(self, items: Sequence[Any]) -> list[str | Failure]:
        return []
