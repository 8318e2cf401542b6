"""diffusion-pipe's dataset files, also those for evaluation, as concepts of Chorus."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from modules.config.clips import clip_length
from modules.config.other_programs import ForeignSetting
from modules.importers.DiffusionPipeTranslation import DiffusionPipeTranslation
from modules.importers.foreign_values import read_as, shown
from modules.importers.ImportResult import Line
from modules.importers.ListEntry import ListEntry, entries

_PREFIX = "directory[]."
_OWN = ("path", "mask_path", "control_path", "default_mask_file")  # that hold for one directory alone
_LARGEST_SIDE = 16_384
_LARGEST_ASPECT = 1000.0
_CAPTIONS = "captions.json"


def take_dataset(t: DiffusionPipeTranslation) -> None:
    """The concepts of the dataset file and of those for evaluation, and what holds for all of them here."""
    trained = _directories(t, t.data, "", 0)
    ratio = _note_file(t, t.data, "dataset")
    for one in trained:
        _take_concept(t, one, ratio)
    number = len(trained)
    for name, content in t.evaluations:
        held = _directories(t, content, f"{name} ", number)
        number += len(held)
        ratio = _note_file(t, content, name)
        for one in held:
            _take_concept(t, one, ratio)
            t.take_line(f"{one.path}.validation", True, f"eval_datasets {name}")
    if not trained:
        return
    _take_resolutions(trained)
    _take_shapes(t, trained[0])
    _take_variants(trained)
    if any(one["mask_path"] for one in trained):
        _take_masks(next(one for one in trained if one["mask_path"]))
    if t.takes_clips:
        _take_clips(t, trained)


def _directories(t: DiffusionPipeTranslation, content: Mapping[str, Any], label: str, first: int) -> list[ListEntry]:
    """The directories, with the settings of the file for what they lack."""
    known = {name.removeprefix(_PREFIX) for name in t.program.settings if name.startswith(_PREFIX)} - set(_OWN)
    common = {name: value for name, value in content.items() if name in known}
    return [
        ListEntry(t, {**common, **entry}, _PREFIX, f"{label}directory {number + 1}", f"concepts.{first + number}")
        for number, entry in enumerate(entries(content.get("directory")))
    ]


def _note_file(t: DiffusionPipeTranslation, content: Mapping[str, Any], label: str) -> float:
    """The lines of what else is in a dataset file. Returns the share of the images that it uses."""
    known = {name.removeprefix(_PREFIX) for name in t.program.settings if name.startswith(_PREFIX)}
    rest = {name: value for name, value in content.items() if name != "directory" and name not in known}
    file = ListEntry(t, rest, "dataset.", label)
    file.note_rest()
    ratio = file["subsample_ratio"]
    return ratio if ratio is not None and 0 < ratio < 1 else 1.0


def _take_concept(t: DiffusionPipeTranslation, one: ListEntry, ratio: float) -> None:
    one.take("path", one["path"], "path")
    one.take("include_subfolders", False, "path")
    copies = max(1, len(_sides(one)))
    whys = ["each resolution is one more of the dataset there"] * (copies > 1)
    whys += [f"times subsample_ratio {ratio:g}; each epoch chooses other images here"] * (ratio < 1)
    why = "; ".join(whys)
    one.take("repeats", one["num_repeats"] * copies * ratio, "num_repeats", "resolutions", why=why)
    _take_captions(one)
    if one["mask_path"]:
        one.take("mask_folder", one["mask_path"], "mask_path")
    if one["control_path"] and t.control_folder:
        one.take(t.control_folder, one["control_path"], "control_path")
    elif one["control_path"]:
        one.leave("this model sees no such images here", "control_path")
    one.note_rest()


def _take_captions(one: ListEntry) -> None:
    one.take("captions", "txt", "path")
    one.take("caption_extension", ".txt", "path")
    if _has_captions_file(one["path"]):
        why = "its captions count there: write them into a .jsonl file with the columns file_name and text"
        one.translation.result.left.append(Line(f"{one.label}: {_CAPTIONS}", why=why))
    names = ("shuffle_tags", "cache_shuffle_num")
    is_shuffled = one["shuffle_tags"] or one["cache_shuffle_num"] > 0
    one.take("shuffle_tags", is_shuffled, *names)
    if is_shuffled:
        separator = one["cache_shuffle_delimiter"]
        why = "blanks around tags don't count here" if separator.strip() not in ("", separator, ",") else ""
        one.take("tag_separator", separator.strip() or separator, "cache_shuffle_delimiter", why=why)
    if prefix := one["caption_prefix"]:
        why = "" if prefix.endswith(" ") else "a blank follows it here"
        one.take("caption_prefix", prefix.strip(), "caption_prefix", why=why)
    if one["skip_empty_caption"]:
        theirs, is_given = one.theirs("skip_empty_caption"), one.is_given("skip_empty_caption")
        why = "images without a caption file are trained without a caption here: remove them"
        one.translation.result.left.append(Line(theirs, why=why, is_given=is_given))


def _has_captions_file(folder: str) -> bool:
    try:
        return bool(folder) and (Path(folder) / _CAPTIONS).exists()
    except (OSError, ValueError):
        return False


def _take_variants(trained: list[ListEntry]) -> None:
    numbers = [
        max(1, one["cache_shuffle_num"]) if one["shuffle_tags"] or one["cache_shuffle_num"] else 0 for one in trained
    ]
    most = max(numbers)
    if most:
        why = "one number for all concepts here: the largest" if len({one for one in numbers if one}) > 1 else ""
        one = trained[numbers.index(most)]
        one.take_common("data.caption_variants", most, "cache_shuffle_num", "shuffle_tags", why=why)


def _take_resolutions(trained: list[ListEntry]) -> None:
    sides = _sides(trained[0])
    _take_sides(trained[0], "data.resolution", "data.resolutions", sides)
    for one in trained[1:]:
        if (own := _sides(one)) != sides:
            _take_sides(one, f"{one.path}.resolution", f"{one.path}.resolutions", own)


def _take_sides(one: ListEntry, of_one: str, of_several: str, sides: list[int]) -> None:
    name = "size_buckets" if one.is_given("size_buckets") else "resolutions"
    pairs = any(isinstance(value, list) for value in one[name])
    why = "a square with as many pixels" if pairs else ""
    one.take_common(of_one, max(sides), name, why=why)
    if len(sides) > 1:
        why = f"one of them is chosen at random each time, where each image has all {len(sides)} there"
        one.take_common(of_several, sides, name, why=why)


def _sides(one: ListEntry) -> list[int]:
    """The resolutions as sides of squares, without doubles; 512 if there is none."""
    if one.is_given("size_buckets"):
        areas = [width * height for width, height, *_ in _tuples(one, "size_buckets", 3)]
        return [_side(sum(areas) / len(areas))] if areas else [512]
    sides = {_side(math.prod(pair) if len(pair) == 2 else pair[0] ** 2) for pair in _tuples(one, "resolutions", 2)}
    return sorted(sides) or [512]


def _side(area: float) -> int:
    return max(8, min(_LARGEST_SIDE, round(math.sqrt(area))))


def _tuples(one: ListEntry, name: str, length: int) -> list[list[float]]:
    """The entries of a list that are lists of `length` numbers above 0; for pairs also those that are one number."""
    found = []
    for entry in one[name] or []:
        values = entry if isinstance(entry, list) else [entry]
        try:
            numbers = [read_as("float", value) for value in values]
        except ValueError:
            numbers = []
        lengths = (1, 2) if length == 2 else (length,)
        if len(numbers) in lengths and all(0 < number <= 10 * _LARGEST_SIDE for number in numbers):
            found.append(numbers)
        else:
            one.leave("an entry of it is no size", name)
    return found


def _take_shapes(t: DiffusionPipeTranslation, first: ListEntry) -> None:
    sizes = [(round(width), round(height)) for width, height, *_ in _tuples(first, "size_buckets", 3)]
    if not sizes and not first["enable_ar_bucket"]:
        first.take_common("data.bucketing", False, "enable_ar_bucket")
        return
    name = next((one for one in ("size_buckets", "ar_buckets") if first.is_given(one)), "enable_ar_bucket")
    if len(sizes) == 1:
        first.take_common("data.bucketing", False, name)
        first.take_common("data.width", sizes[0][0], name)
        first.take_common("data.height", sizes[0][1], name)
        return
    why = "all shapes of about this many pixels, not these alone" if name != "enable_ar_bucket" else ""
    first.take_common("data.bucketing", True, name, why=why)
    steps = t.program.facts["steps"]
    first.take_common("data.bucket_step", steps.get(t.family.name, steps[""]), name)
    if name == "enable_ar_bucket":
        ratios = [first["min_ar"], first["max_ar"]]
    else:
        pairs = sizes or _tuples(first, "ar_buckets", 2)
        ratios = [pair[0] / pair[1] if len(pair) == 2 else pair[0] for pair in pairs]
    most = max((max(ratio, 1 / ratio) for ratio in ratios if ratio > 0), default=2.0)
    is_even = len({round(max(ratio, 1 / ratio), 3) for ratio in ratios if ratio > 0}) <= 1
    why = "" if name == "enable_ar_bucket" and is_even else "the same for wide and tall images here: the largest"
    names = ("min_ar", "max_ar") if name == "enable_ar_bucket" else (name,)
    first.take_common("data.max_aspect", min(_LARGEST_ASPECT, max(1.0, most)), *names, why=why)


def _take_masks(one: ListEntry) -> None:
    one.take_common("loss.masked_training", True, "mask_path")
    one.take_common("loss.unmasked_weight", 0.0, "mask_path")
    one.take_common("loss.unmasked_probability", 0.0, "mask_path")
    facts, kind = one.translation.program.facts, one.translation["model.type"]
    one.take_common("loss.normalize_masked_area_loss", kind in facts["normalizes_masks"], "mask_path")


def _take_clips(t: DiffusionPipeTranslation, trained: list[ListEntry]) -> None:
    lengths = [max(_lengths(one), default=1) for one in trained]
    longest = trained[lengths.index(max(lengths))]
    name = "size_buckets" if longest.is_given("size_buckets") else "frame_buckets"
    step = t.family.frame_step if t.knows_model else 0
    frames = clip_length(max(lengths), step, t.family.frame_rest) if step else max(lengths)
    several = {length for one in trained for length in _lengths(one) if length > 1}
    whys = ["rounded down to what the model takes"] * (frames != max(lengths))
    whys += ["the largest; a shorter video has as many as it can"] * (len(several) > 1)
    longest.take_common("data.frames", frames, name, why="; ".join(whys))


def _lengths(one: ListEntry) -> list[int]:
    """The numbers of frames of its buckets."""
    if one.is_given("size_buckets"):
        return [max(1, round(entry[2])) for entry in _tuples(one, "size_buckets", 3)]
    lengths = []
    for value in one["frame_buckets"] or []:
        try:
            lengths.append(max(1, min(100_000, read_as("int", value))))
        except ValueError as error:
            line = shown(f"{one.label}: frame_buckets", value)
            one.translation.result.left.append(Line(line, why=str(error)))
    return lengths


def _take_clip_mode(t: DiffusionPipeTranslation, setting: ForeignSetting) -> None:
    if not t.takes_clips:
        return
    chosen = t["video_clip_mode"]
    here = t.program.facts["clips"].get(chosen)
    if here is None:
        t.leave("diffusion-pipe has no such mode: clips start with the video", "video_clip_mode")
    why = "clips follow each other without overlapping" if here == "chunks" else ""
    t.take("data.clips", here or "start", "video_clip_mode", why=why)


def _take_data(t: DiffusionPipeTranslation, setting: ForeignSetting) -> None:
    """The dataset files that the training file names."""
    take_dataset(t)


OF_DATA: dict[str, Any] = {"data": _take_data, "clips": _take_clip_mode}
