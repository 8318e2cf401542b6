"""ai-toolkit's datasets and samples as concepts and samples of Chorus."""

from __future__ import annotations

from typing import Any

from modules.config.other_programs import ForeignSetting
from modules.importers.AiToolkitTranslation import AiToolkitTranslation
from modules.importers.control_folder import control_folder, why_one_folder
from modules.importers.foreign_values import read_as, shown
from modules.importers.ListEntry import ListEntry, entries

_NO_LIMIT = 1000.0  # of the aspect ratio, which is Chorus' largest
_REFERENCES = ("control_path", "control_path_1", "control_path_2", "control_path_3")
_OPTIONS = {
    "w": ("width", "int"), "h": ("height", "int"), "d": ("seed", "int"), "seed": ("seed", "int"),
    "l": ("guidance", "float"), "cfg": ("guidance", "float"), "s": ("steps", "int"), "steps": ("steps", "int"),
    "frames": ("frames", "int"), "num_frames": ("frames", "int"), "n": ("negative_prompt", "str"),
    "ctrl_img": ("reference", "str"), "m": ("strength", "float"),
}  # fmt: skip


def _take_data(t: AiToolkitTranslation, setting: ForeignSetting) -> None:
    datasets = [
        ListEntry(t, values, "datasets[].", f"dataset {number + 1}", f"concepts.{number}")
        for number, values in enumerate(entries(t["datasets"]))
    ]
    for one in datasets:
        _take_concept(t, one)
        _take_captions(t, one)
        one.note_rest()
    if not datasets:
        return
    first = datasets[0]
    sides = _sides(first)
    first.take_common("data.resolution", max(sides), "resolution")
    if len(sides) > 1:
        first.take_common("data.resolutions", sides, "resolution", why=_of_sides(len(sides)))
    for one in datasets[1:]:
        own = _sides(one)
        if own != sides:
            one.take("resolution", max(own), "resolution")
            if len(own) > 1:
                one.take("resolutions", own, "resolution", why=_of_sides(len(own)))
    _take_shapes(first)
    _take_dropout(datasets)
    _take_masks(datasets)
    if t.family.frame_step:
        _take_clips(t, datasets)


def _of_sides(number: int) -> str:
    return f"each image is in one of them, chosen at random, and in all {number} there: see concepts[].repeats"


def _sides(one: ListEntry) -> list[int]:
    """The resolutions of a dataset; ai-toolkit's default for those that are none."""
    value = one["resolution"]
    sides = []
    for side in value if isinstance(value, list) else [value]:
        try:
            number = read_as("int", side)
        except ValueError as error:
            one.leave(f"{error}; 512 is used", "resolution")
            number = 512
        number = max(8, min(16384, number))
        if number not in sides:
            sides.append(number)
    return sides or [512]


def _take_concept(t: AiToolkitTranslation, one: ListEntry) -> None:
    name = "dataset_path" if one.is_given("dataset_path") else "folder_path"
    path = one[name] or ""
    if path.lower().endswith(".json"):
        why = "write its captions into a .jsonl or .csv file with the columns file_name and text, and name its folder"
        one.leave(why, name)
    one.take("path", path, name)
    sides, copies = len(_sides(one)), 2 if one["flip_x"] else 1
    repeats = max(1, one["num_repeats"]) * sides * copies
    why = "each resolution, and each flipped image, is one more of the dataset there" if sides * copies > 1 else ""
    one.take("repeats", float(repeats), "num_repeats", "resolution", "flip_x", why=why)
    one.take("augmentation.flip", one["flip_x"], "flip_x", why="drawn, not added" if one["flip_x"] else "")
    one.take("augmentation.crop_jitter", one["random_crop"], "random_crop")
    one.take("regularisation", one["is_reg"], "is_reg")
    weight = one["loss_multiplier"] * (t["train.reg_weight"] if one["is_reg"] else 1.0)
    why = "times train.reg_weight" if weight != one["loss_multiplier"] else ""
    one.take("loss_weight", weight, "loss_multiplier", why=why)
    _take_references(t, one)
    one.take("alpha_mask", one["alpha_mask"], "alpha_mask")
    if one["mask_path"]:
        one.take("mask_folder", one["mask_path"], "mask_path")


def _take_references(t: AiToolkitTranslation, one: ListEntry) -> None:
    paths: list[Any] = []
    for name in _REFERENCES:
        value = one[name]
        paths += value if isinstance(value, list) else [value] if value else []
    paths = [path for path in paths if isinstance(path, str) and path]
    if not paths:
        return
    folder = control_folder(t.family)
    if not folder:
        one.leave("this model sees no such images here", *_REFERENCES)
        return
    one.take(folder, paths[0], *_REFERENCES)
    if len(paths) > 1:
        why = why_one_folder(folder)
        one.leave(why, *_REFERENCES[1:] if one.is_given(_REFERENCES[1]) else _REFERENCES[:1])


def _take_captions(t: AiToolkitTranslation, one: ListEntry) -> None:
    name = "caption_type" if one.is_given("caption_type") else "caption_ext"
    ending = one[name].strip() or ".txt"
    ending = ending if ending.startswith(".") else f".{ending}"
    one.take("captions", "txt", name)
    one.take("caption_extension", ending, name)
    if ending == ".json":
        one.leave("captions of .json files are not read: write them into .txt files", name)
    if one["default_caption"]:
        one.take("caption_fallback", one["default_caption"], "default_caption")
    one.take("shuffle_tags", one["shuffle_tokens"], "shuffle_tokens")
    one.take("keep_tags", one["keep_tokens"], "keep_tokens")
    one.take("tag_dropout", one["token_dropout_rate"], "token_dropout_rate")
    _take_trigger(t, one)


def _take_trigger(t: AiToolkitTranslation, one: ListEntry) -> None:
    word = one["trigger_word"] or t["trigger_word"]
    if not word or one["is_reg"]:
        return
    theirs = one.theirs("trigger_word") if one.is_given("trigger_word") else t.theirs("trigger_word")
    why = "before every caption, also where the caption has it already; [trigger] in captions is not replaced"
    t.take_line(f"{one.path}.caption_prefix", word, theirs, why)
    if t["train.diff_output_preservation"]:
        t.take_line(f"{one.path}.trigger_word", word, theirs)
        name = "train.diff_output_preservation_class"
        t.take(f"{one.path}.class_word", t[name], name)


def _take_shapes(first: ListEntry) -> None:
    is_bucketed = first["buckets"] and not first["square_crop"]
    first.take_common("data.bucketing", is_bucketed, "buckets", "square_crop")
    if not is_bucketed:
        return
    step = first["bucket_tolerance"]
    first.take_common("data.bucket_step", max(8, step), "bucket_tolerance", why="at least 8 here" if step < 8 else "")
    first.take_common("data.no_upscale", True, "buckets")
    first.take_common("data.max_aspect", _NO_LIMIT, "buckets", why="shapes have no limit there")


def _take_dropout(datasets: list[ListEntry]) -> None:
    rates = [one["caption_dropout_rate"] for one in datasets]
    most = datasets[rates.index(max(rates))]
    why = "one for all concepts here: the largest" if len(set(rates)) > 1 else ""
    most.take_common("data.caption_dropout", max(rates), "caption_dropout_rate", why=why)


def _take_masks(datasets: list[ListEntry]) -> None:
    masked = [one for one in datasets if one["mask_path"] or one["alpha_mask"]]
    if not masked:
        return
    names = ("mask_path", "alpha_mask")
    masked[0].take_common("loss.masked_training", True, *names)
    masked[0].take_common("loss.unmasked_probability", 0.0, *names)
    masked[0].take_common("loss.normalize_masked_area_loss", True, *names)
    values = {one["mask_min_value"] for one in masked}
    why = "one for all concepts here: that of the first" if len(values) > 1 else ""
    masked[0].take_common("loss.unmasked_weight", masked[0]["mask_min_value"], "mask_min_value", why=why)


def _take_clips(t: AiToolkitTranslation, datasets: list[ListEntry]) -> None:
    longest = max(datasets, key=lambda one: one["num_frames"])
    frames = longest["num_frames"]
    why = "one for all concepts here: the largest" if len({one["num_frames"] for one in datasets}) > 1 else ""
    longest.take_common("data.frames", max(1, frames), "num_frames", why=why)
    if frames > 1:
        longest.take_common("data.fps", longest["fps"], "fps")
        shrinks = longest["shrink_video_to_frames"] and not longest["auto_frame_count"]
        why = "a whole video is squeezed into the frames there; here clips have the rate of data.fps" if shrinks else ""
        clips = "chunks" if shrinks else "random"
        longest.take_common("data.clips", clips, "shrink_video_to_frames", why=why)
    is_optional = t.family.takes("first_frame") and not t.family.fact("first_frame", "needed")
    if is_optional and any(one["do_i2v"] for one in datasets):
        longest.take_common("data.image_to_video", 1.0, "do_i2v")


def _take_samples(t: AiToolkitTranslation, setting: ForeignSetting) -> None:
    given = entries(t["sample.samples"])
    if t["sample.samples"] is None:
        given = [{"prompt": prompt} for prompt in t["sample.prompts"] or [] if isinstance(prompt, str)]
    for number, values in enumerate(given):
        one = ListEntry(t, values, "sample.samples[].", f"sample {number + 1}", f"sampling.samples.{number}")
        _take_sample(t, one, number)
        one.note_rest()


def _take_sample(t: AiToolkitTranslation, one: ListEntry, number: int) -> None:
    prompt, options = _prompt(one["prompt"])
    if options.pop("strength", 1.0) != 1.0:
        one.leave("samples have the trained strength: try others with scripts/sample.py --lora FILE:STRENGTH", "prompt")
    for name, setting in (
        ("width", "width"),
        ("height", "height"),
        ("sample_steps", "steps"),
        ("guidance_scale", "guidance"),
    ):
        options.setdefault(setting, t[f"sample.{name}"] if one[name] is None else one[name])
    seed = t["sample.seed"] + (number if t["sample.walk_seed"] else 0)
    options["seed"] = options.get("seed", seed if one["seed"] is None else one["seed"]) % 2**31
    negative = t["sample.neg"] if one["neg"] is None else one["neg"]
    options.setdefault("negative_prompt", negative if isinstance(negative, str) else "")
    frames = t["sample.num_frames"] if one["num_frames"] is None else one["num_frames"]
    frames = options.pop("frames", frames)
    if t.family.frame_step:
        options["frames"] = frames
    if image := one["ctrl_img"] or one["ctrl_img_1"]:
        options["reference"] = image
    if "reference" in options and not t.family.max_input_images:
        one.leave("this model's samples start from no image here", "ctrl_img", "ctrl_img_1")
        del options["reference"]
    word = t["trigger_word"] or ""
    one.take("prompt", prompt.replace("[trigger]", word), "prompt")
    for setting, value in options.items():
        value = value.replace("[trigger]", word) if isinstance(value, str) else value
        t.take_line(f"{one.path}.{setting}", value, f"{one.label}: {shown(setting, value)}")


def _prompt(text: str) -> tuple[str, dict[str, Any]]:
    """A prompt, and the options such as --w 768 behind it; others stay in the prompt."""
    prompt, *rest = text.split("--")
    options: dict[str, Any] = {}
    for part in rest:
        name, _, value = part.partition(" ")
        try:
            setting, kind = _OPTIONS[name.strip()]
            options[setting] = read_as(kind, value.strip())
        except (KeyError, ValueError):
            prompt = f"{prompt}--{part}"
    return prompt.strip(), options


OF_DATA: dict[str, Any] = {"data": _take_data, "samples": _take_samples}
