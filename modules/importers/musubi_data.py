"""musubi-tuner's dataset files, of images and of videos."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from modules.config.errors import ConfigError
from modules.config.other_programs import ForeignSetting
from modules.importers.control_folder import control_folder, unknown_models_folder
from modules.importers.foreign_values import is_empty, read_as, shown
from modules.importers.ImportResult import Line
from modules.importers.read_file import read_content
from modules.importers.SdScriptsTranslation import SdScriptsTranslation

# Settings that may also be in the section "general": name -> (kind, musubi-tuner's default).
COMMON: dict[str, tuple[str, Any]] = {
    "resolution": ("any", [960, 544]),
    "enable_bucket": ("bool", False),
    "bucket_no_upscale": ("bool", False),
    "caption_extension": ("str", ""),
    "batch_size": ("int", 1),
    "num_repeats": ("int", 1),
}
OWN: dict[str, tuple[str, Any]] = {
    "image_directory": ("str", ""),
    "image_jsonl_file": ("str", ""),
    "video_directory": ("str", ""),
    "video_jsonl_file": ("str", ""),
    "control_directory": ("str", ""),
    "cache_directory": ("str", ""),
    "target_frames": ("list", [1]),
    "frame_extraction": ("str", "head"),
    "frame_stride": ("int", 1),
    "frame_sample": ("int", 1),
    "max_frames": ("int", 129),
    "source_fps": ("float", None),
    "multiple_target": ("bool", False),
    "no_resize_control": ("bool", False),
    "control_resolution": ("any", None),
    "fp_latent_window_size": ("int", 9),
    "fp_1f_clean_indices": ("any", None),
    "fp_1f_target_index": ("any", None),
    "fp_1f_no_post": ("bool", False),
    "debug_dataset": ("bool", False),
}
FOLDERS = ("image_directory", "video_directory", "image_jsonl_file", "video_jsonl_file")
CLIPS = {"head": "start", "chunk": "chunks", "slide": "chunks", "uniform": "chunks", "full": "start"}
LENGTHS = {"full": "max_frames"}  # which setting tells a clip's length, where it isn't target_frames
STEP = 16  # of the sides of buckets
_OF_CLIPS = ("target_frames", "frame_extraction", "frame_stride", "frame_sample", "max_frames")
_UNUSED = ("cache_directory", "debug_dataset")
_LOST = {
    "multiple_target": "put the layers into a folder of their own and name it in layer_folder",
    "no_resize_control": "references are resized as the model needs them",
    "control_resolution": "references are resized as the model needs them",
    "fp_1f_clean_indices": "Chorus lacks the model that it is for",
    "fp_1f_target_index": "Chorus lacks the model that it is for",
}


def is_dataset(content: Mapping[str, Any]) -> bool:
    """Whether this is a dataset file of musubi-tuner."""
    datasets = content.get("datasets")
    return isinstance(datasets, list) and any(
        isinstance(entry, Mapping) and any(name in entry for name in FOLDERS) for entry in datasets
    )


class Dataset:
    """One dataset of a file, which takes from the section "general" what it lacks."""

    def __init__(self, values: Mapping[str, Any], general: Mapping[str, Any], number: int):
        self.values = values
        self.general = general
        self.name = f"dataset {number + 1}"

    def get(self, t: SdScriptsTranslation, name: str) -> tuple[Any, bool]:
        """The value, and whether the file has it."""
        kind, default = (COMMON | OWN)[name]
        for values in (self.values, self.general if name in COMMON else {}):
            if not is_empty(values.get(name)):
                try:
                    return read_as(kind, values[name]), True
                except ValueError as error:
                    used = f"{error}; {default!r} is used"
                    t.result.left.append(Line(shown(f"{self.name}: {name}", values[name]), why=used))
                    break
        return default, False


def take_dataset(t: SdScriptsTranslation, content: Mapping[str, Any]) -> None:
    """The concepts of a dataset file, and what holds for all of them here."""
    general = content.get("general")
    general = general if isinstance(general, Mapping) else {}
    entries = content.get("datasets")
    entries = [entry for entry in entries if isinstance(entry, Mapping)] if isinstance(entries, list) else []
    datasets = [Dataset(entry, general, number) for number, entry in enumerate(entries)]
    for number, dataset in enumerate(datasets):
        _take_concept(t, dataset, number, datasets[0])
        _note_unknown(t, dataset.name, dataset.values, {**COMMON, **OWN})
    _note_unknown(t, "general", general, COMMON)
    _note_unknown(t, "file", content, {"general": (), "datasets": ()})
    if datasets:
        _take_shapes(t, datasets[0])
        _take_clips(t, datasets)
        _take_batch_size(t, datasets)


def _take_concept(t: SdScriptsTranslation, dataset: Dataset, number: int, first: Dataset) -> None:
    path = f"concepts.{number}"

    def take(setting: str, name: str, value: Any, why: str = "") -> None:
        own, is_given = dataset.get(t, name)
        t.take_line(f"{path}.{setting}", value, shown(f"{dataset.name}: {name}", own), why, is_given)

    name = next((one for one in FOLDERS if dataset.get(t, one)[0]), FOLDERS[0])
    folder = dataset.get(t, name)[0]
    if name.endswith("jsonl_file"):
        why = "write its captions into a .jsonl or .csv file in the folder, with the columns file_name and text"
        t.result.left.append(Line(shown(f"{dataset.name}: {name}", folder), why=why))
        folder = str(Path(folder).parent)
    take("path", name, folder)
    take("include_subfolders", name, False)
    take("repeats", "num_repeats", dataset.get(t, "num_repeats")[0])
    extension = dataset.get(t, "caption_extension")[0]
    if extension:
        take("captions", "caption_extension", "txt")
        take("caption_extension", "caption_extension", extension if extension.startswith(".") else f".{extension}")
    elif not name.endswith("jsonl_file"):
        why = "without it, all captions are empty there"
        take("captions", "caption_extension", "prompt", why)
        take("prompt", "caption_extension", "", why)
    if control := dataset.get(t, "control_directory")[0]:
        # A dataset file alone, without arguments, does not tell the model.
        setting = control_folder(t.family) if t.given else unknown_models_folder(name.startswith("video"))
        if setting:
            take(setting, "control_directory", control)
        else:
            why = "this model sees no such images here"
            t.result.left.append(Line(shown(f"{dataset.name}: control_directory", control), why=why))
    for setting, why in _LOST.items():
        value, is_given = dataset.get(t, setting)
        if is_given and value:
            t.result.left.append(Line(shown(f"{dataset.name}: {setting}", value), why=why))
    unused = [one for one in _UNUSED if dataset.get(t, one)[1]]
    if unused:
        t.result.left.append(Line(f"{dataset.name}: {', '.join(unused)}", why="the cache is in cache_dir"))
    side = _side(t, dataset)
    if side != _side(t, first):
        t.take_line(f"{path}.resolution", side, f"{dataset.name}: resolution {side}")


def _take_shapes(t: SdScriptsTranslation, dataset: Dataset) -> None:
    width, height = _shape(t, dataset)
    buckets, is_given = dataset.get(t, "enable_bucket")
    text, has_size = f"resolution {width}, {height}", dataset.get(t, "resolution")[1]
    t.take_line("data.resolution", _side(t, dataset), text, is_given=has_size)
    t.take_line("data.bucketing", buckets, shown("enable_bucket", buckets), is_given=is_given)
    if not buckets:
        if width != height:
            t.take_line("data.width", width, text, is_given=has_size)
            t.take_line("data.height", height, text, is_given=has_size)
        return
    t.take_line("data.bucket_step", STEP, "buckets' sides", is_given=False)
    no_upscale, is_given = dataset.get(t, "bucket_no_upscale")
    t.take_line("data.no_upscale", no_upscale, shown("bucket_no_upscale", no_upscale), is_given=is_given)


def _take_clips(t: SdScriptsTranslation, datasets: list[Dataset]) -> None:
    """How videos are cut: of the first dataset with videos."""
    videos = [one for one in datasets if one.get(t, "video_directory")[0] or one.get(t, "video_jsonl_file")[0]]
    if not videos:
        return
    video = videos[0]
    chosen, is_given = video.get(t, "frame_extraction")
    lengths = []
    for value in video.get(t, "target_frames")[0]:
        try:
            lengths.append(read_as("int", value))
        except ValueError as error:
            t.result.left.append(Line(shown(f"{video.name}: target_frames", value), why=str(error)))
    name = LENGTHS.get(chosen, "target_frames")
    frames = video.get(t, name)[0] if chosen in LENGTHS else max(lengths, default=1)
    why = "the largest; the same videos are not cut to the other lengths, too" if len(set(lengths)) > 1 else ""
    t.take_line("data.frames", frames, f"{name} {frames}", why, video.get(t, name)[1])
    if chosen not in CLIPS:
        t.result.left.append(Line(shown("frame_extraction", chosen), why="Chorus has nothing like it"))
    why = "clips follow each other without overlapping" if chosen in ("slide", "uniform") else ""
    step = {"slide": "frame_stride", "uniform": "frame_sample"}.get(chosen)
    theirs = shown("frame_extraction", chosen) + (f", {shown(step, video.get(t, step)[0])}" if step else "")
    t.take_line("data.clips", CLIPS.get(chosen, "start"), theirs, why, is_given)
    for other in videos[1:]:
        own = [one for one in _OF_CLIPS if one in other.values and other.get(t, one)[0] != video.get(t, one)[0]]
        if own:
            theirs = ", ".join(shown(one, other.get(t, one)[0]) for one in own)
            t.result.left.append(Line(f"{other.name}: {theirs}", why=f"one for all videos here: of {video.name}"))
    rate, is_given = video.get(t, "source_fps")
    why = "every video has a rate of its own in its file, by which its frames are chosen here"
    t.result.left.append(Line(shown("source_fps", rate), why=why, is_given=is_given))


def _take_batch_size(t: SdScriptsTranslation, datasets: list[Dataset]) -> None:
    sizes = [dataset.get(t, "batch_size") for dataset in datasets]
    why = "one for all datasets here: that of the first" if len({size for size, _ in sizes}) > 1 else ""
    t.take_line("batch_size", sizes[0][0], f"batch_size {sizes[0][0]}", why, sizes[0][1])


def _side(t: SdScriptsTranslation, dataset: Dataset) -> int:
    """Side of the square with as many pixels as the resolution has, as a multiple of the step."""
    width, height = _shape(t, dataset)
    return max(STEP, round(math.sqrt(width * height) / STEP) * STEP)


def _shape(t: SdScriptsTranslation, dataset: Dataset) -> tuple[int, int]:
    value = dataset.get(t, "resolution")[0]
    sides = value if isinstance(value, list) else [value]
    try:
        numbers = [read_as("int", side) for side in sides]
    except ValueError:
        numbers = []
    if len(numbers) not in (1, 2) or not all(8 <= side <= 16384 for side in numbers):
        t.result.left.append(Line(shown(f"{dataset.name}: resolution", value), why="is no size; 960 x 544 is used"))
        return 960, 544
    return numbers[0], numbers[-1]


def _note_unknown(t: SdScriptsTranslation, place: str, values: Mapping[str, Any], known: Mapping[str, Any]) -> None:
    for name, value in values.items():
        if name not in known:
            t.result.left.append(Line(shown(f"{place}: {name}", value), why="musubi-tuner has no such setting"))


def _take_data(t: SdScriptsTranslation, setting: ForeignSetting) -> None:
    """The dataset file that the arguments name."""
    name = t["dataset_config"]
    if not name:
        return
    path = Path(name) if Path(name).is_absolute() else t.folder / name
    try:
        content = read_content(path)
    except ConfigError as error:
        t.result.left.append(Line(shown("dataset_config", name), str(error), path="concepts"))
        return
    take_dataset(t, content if isinstance(content, Mapping) else {})


OF_DATA: dict[str, Any] = {"data": _take_data}
