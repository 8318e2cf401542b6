"""SimpleTuner's datasets and validation prompts as concepts and samples of Chorus."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from modules.config.other_programs import ForeignSetting
from modules.importers.control_folder import control_folder, unknown_models_folder, why_one_folder
from modules.importers.foreign_values import is_empty, read_as, shown
from modules.importers.ImportResult import Line
from modules.importers.ListEntry import ListEntry, entries
from modules.importers.simpletuner_samples import take_samples
from modules.importers.SimpleTunerTranslation import SimpleTunerTranslation

_TRAINED = ("image", "video", "eval")
_STRATEGIES = {
    "textfile": "txt", "filename": "file_name", "instanceprompt": "prompt", "instance_prompt": "prompt",
}  # fmt: skip
_OF_CAPTIONS = ("caption_strategy", "instance_prompt", "prepend_instance_prompt", "only_instance_prompt")
_SEPARATORS = {"comma": ",", "space": " ", "period": "."}


def _take_data(t: SimpleTunerTranslation, setting: ForeignSetting) -> None:
    t.take("data.caption_dropout", t["caption_dropout_probability"], "caption_dropout_probability")
    step = t["aspect_bucket_alignment"]
    t.take("data.bucket_step", max(8, step), "aspect_bucket_alignment", why="at least 8 here" if step < 8 else "")
    side, why = _side(t["resolution"], t["resolution_type"])
    t.take("data.resolution", side, "resolution", "resolution_type", why=why)
    name = "data_backend_config"
    content = t.structure(name, list) if t.is_given(name) else None
    if content is not None:
        take_datasets(t, content)
    elif t.is_given(name):
        t.leave("the file was not found or can't be read: import it behind this one", name, *_OF_CAPTIONS)
    else:
        t.result.left.append(Line("datasets", why="none are named: import multidatabackend.json behind this file"))


def take_datasets(t: SimpleTunerTranslation, content: list[Any]) -> None:
    """Take the datasets of multidatabackend.json as concepts."""
    conditions: dict[str, ListEntry] = {}
    taken: list[ListEntry] = []
    for number, values in enumerate(entries(content)):
        label = shown("dataset", values["id"] if isinstance(values.get("id"), str) else number + 1)
        one = ListEntry(t, values, "datasets[].", label, f"concepts.{len(taken)}")
        kind = one["dataset_type"]
        if kind in t.program.facts["caches"]:
            one.note_rest()
        elif kind == "conditioning":
            conditions[one["id"]] = one
            one.note_rest()
        elif kind not in _TRAINED:
            one.leave("Chorus has concepts of images and videos alone", "dataset_type")
        elif one["type"] != "local":
            one.leave("Chorus reads folders alone: download the images into one, with their captions", "type")
        else:
            taken.append(one)
    paired: set[str] = set()
    for one in taken:
        _take_concept(t, one)
        _take_captions(t, one)
        paired |= _take_conditions(t, one, conditions)
        one.note_rest()
    for name in conditions.keys() - paired:
        conditions[name].leave("no dataset is paired with it", "conditioning_type", "instance_data_dir")
    if taken:
        _take_common(t, taken)


def _take_concept(t: SimpleTunerTranslation, one: ListEntry) -> None:
    name = "instance_data_dir" if one.is_given("instance_data_dir") else "instance_data_root"
    one.take("path", one[name] or "", name)
    if one["id"]:
        one.take("name", one["id"], "id")
    is_off = one["disabled"] or one["disable"]
    one.take("enabled", not is_off, "disabled", "disable")
    one.take("include_subfolders", True, name)
    repeats = max(0.0, one["repeats"])
    one.take("repeats", repeats + 1, "repeats", why="additional ones are counted there, all here" if repeats else "")
    is_cropped = one["crop"] and one["crop_style"] == "random"
    one.take("augmentation.crop_jitter", is_cropped, "crop_style", "crop")
    if one["crop"] and one["crop_style"] not in ("random", "center"):
        one.leave("images are cropped around their center here", "crop_style")
    one.take("augmentation.flip", False, "crop")
    if one["dataset_type"] == "eval":
        one.take("validation", True, "dataset_type")
    names = ("is_regularisation_data", "is_regularization_data")
    is_kept = one[names[0]] or one[names[1]]
    one.take("regularisation", is_kept, *names)
    if is_kept and (t.method.keeps_old_model or t.is_data_alone):
        why = "SimpleTuner's adapters keep the model at its old predictions for these images"
        one.take_common("loss.prior_by_frozen_model", True, *names, why=why)


def _text(t: SimpleTunerTranslation, one: ListEntry, name: str) -> Any:
    """A setting that the run has, too: that of the dataset, or that of the run."""
    return one[name] if one.is_given(name) else t[name]


def _take_captions(t: SimpleTunerTranslation, one: ListEntry) -> None:
    chosen = str(_text(t, one, "caption_strategy")).lower()
    prompt = _text(t, one, "instance_prompt") or ""
    kind = _STRATEGIES.get(chosen)
    if kind is None:
        one.leave("put each caption into a .txt file beside its image", "caption_strategy")
        kind = "txt"
    if _text(t, one, "only_instance_prompt"):
        kind = "prompt"
    one.take("captions", kind, "caption_strategy", "only_instance_prompt")
    if kind == "prompt":
        one.take("prompt", prompt, "instance_prompt")
    elif _text(t, one, "prepend_instance_prompt") and prompt:
        one.take("caption_prefix", prompt, "instance_prompt", "prepend_instance_prompt")
    if kind == "txt":
        one.take("caption_extension", ".txt", "caption_strategy")
        one.take("caption_per_line", not _text(t, one, "disable_multiline_split"), "disable_multiline_split")
    _take_shuffling(t, one)


def _take_shuffling(t: SimpleTunerTranslation, one: ListEntry) -> None:
    given = one["caption_shuffle"] or {}
    if not given.get("enable"):
        return
    kept = _number(given, "position_start", 0)
    one.take("shuffle_tags", True, "caption_shuffle")
    one.take("keep_tags", kept, "caption_shuffle")
    one.take("tag_separator", _SEPARATORS.get(str(given.get("split_on", "comma")), ","), "caption_shuffle")
    variants = max(1, _number(given, "count", 1)) + (given.get("include_original", True) is not False)
    why = "orders of the tags for each image, with the original; one number for all concepts here"
    one.take_common("data.caption_variants", variants, "caption_shuffle", why=why)


def _number(given: Mapping[str, Any], name: str, default: int) -> int:
    try:
        return int(read_as("int", given.get(name, default)))
    except ValueError:
        return default


def _take_conditions(t: SimpleTunerTranslation, one: ListEntry, conditions: Mapping[str, ListEntry]) -> set[str]:
    """Take the masks and references of a dataset. Returns the names of the datasets that it is paired with."""
    value = one["conditioning_data"]
    wanted = [str(name) for name in (value if isinstance(value, list) else [value]) if not is_empty(name)]
    found = {
        name: other
        for name, other in conditions.items()
        if name in wanted or (one["id"] and other["source_dataset_id"] == one["id"])
    }
    for name in wanted:
        if name not in conditions:
            one.leave("there is no such dataset in the file", "conditioning_data")
    is_video = one["dataset_type"] == "video"
    folder = unknown_models_folder(is_video) if t.is_data_alone else control_folder(t.family)
    has_references = False
    for other in found.values():
        kind, path = other["conditioning_type"] or "controlnet", other["instance_data_dir"]
        if kind == "mask" and path:
            t.take_line(f"{one.path}.mask_folder", path, other.theirs("instance_data_dir"))
            other.take_common("loss.masked_training", True, "conditioning_type")
            chance = min(1.0, max(0.0, 1 - t["masked_loss_probability"]))
            t.take("loss.unmasked_probability", chance, "masked_loss_probability")
            other.take_common("loss.unmasked_weight", 0.0, "conditioning_type")
        elif not kind.startswith("reference") or not path:
            other.leave("Chorus trains no control nets", "conditioning_type", "instance_data_dir")
        elif not folder:
            other.leave("this model sees no such images here", "instance_data_dir")
        elif has_references:
            other.leave(why_one_folder(folder), "instance_data_dir")
        else:
            t.take_line(f"{one.path}.{folder}", path, other.theirs("instance_data_dir"))
            has_references = True
    return set(found)


def _side(value: float, kind: str, is_square: bool = False) -> tuple[int, str]:
    """The resolution as the root of the area, in pixels, and why it differs."""
    kind, why = kind.lower(), ""
    if kind == "area":
        value, why = math.sqrt(max(0.0, value) * 1e6), "megapixels there, the root of the area in pixels here"
    elif kind == "pixel" and not is_square:
        why = "the shorter side there, the root of the area here"
    return max(8, round(min(max(value, 0.0), 16384.0) / 8) * 8), why


def _side_of(t: SimpleTunerTranslation, one: ListEntry) -> tuple[int, str]:
    return _side(_text(t, one, "resolution"), _text(t, one, "resolution_type"), _is_square(one))


def _is_square(one: ListEntry) -> bool:
    return bool(one["crop"] and one["crop_aspect"] == "square")


def _take_common(t: SimpleTunerTranslation, taken: list[ListEntry]) -> None:
    first = taken[0]
    side, why = _side_of(t, first)
    first.take_common("data.resolution", side, "resolution", "resolution_type", why=why)
    for one in taken[1:]:
        own, why = _side_of(t, one)
        if own != side:
            one.take("resolution", own, "resolution", "resolution_type", why=why)
    is_square = all(map(_is_square, taken))
    mixed = not is_square and any(map(_is_square, taken))
    why = "some datasets are square there; one for all concepts here" if mixed else ""
    first.take_common("data.bucketing", not is_square, "crop", "crop_aspect", why=why)
    first.take_common("data.no_upscale", False, "crop")
    videos = [one for one in taken if one["dataset_type"] == "video" or one["video"]]
    if videos and (t.is_data_alone or t.family.frame_step):
        _take_clips(t, videos)


def _take_clips(t: SimpleTunerTranslation, videos: list[ListEntry]) -> None:
    sections = [one["video"] or {} for one in videos]
    frames = [_number(section, "num_frames", 0) or _number(section, "max_frames", 0) for section in sections]
    longest = videos[frames.index(max(frames))]
    if max(frames) > 0:
        why = "one for all concepts here: the largest" if len(set(frames)) > 1 else ""
        longest.take_common("data.frames", max(frames), "video", why=why)
    if t["framerate"]:
        t.take("data.fps", t["framerate"], "framerate")
    is_optional = t.is_data_alone or (t.family.takes("first_frame") and not t.family.fact("first_frame", "needed"))
    if is_optional and any(section.get("is_i2v") is True for section in sections):
        longest.take_common("data.image_to_video", 1.0, "video")
    for one, section in zip(videos, sections, strict=True):
        for name, value in section.items():
            if name not in ("num_frames", "max_frames", "is_i2v"):
                why = "videos that are shorter than data.frames are left out; set data.frames and data.clips"
                t.result.left.append(Line(f"{one.label}: {shown(f'video {name}', value)}", why=why))


OF_DATA: dict[str, Any] = {"data": _take_data, "samples": take_samples}
