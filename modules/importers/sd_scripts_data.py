"""sd-scripts' data: dataset files, folders such as 10_cat, arguments of the data, and prompts for samples."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from modules.config.errors import ConfigError
from modules.config.other_programs import ForeignSetting
from modules.importers.foreign_values import is_empty, read_as, shown
from modules.importers.ImportResult import Line
from modules.importers.read_file import read_content, read_text
from modules.importers.SdScriptsTranslation import SdScriptsTranslation

# Settings of a dataset and of its subsets: name -> (kind, sd-scripts' default). The nearest level that has one counts.
DATASET: dict[str, tuple[str, Any]] = {
    "batch_size": ("int", 1),
    "resolution": ("any", None),
    "enable_bucket": ("bool", False),
    "min_bucket_reso": ("int", 256),
    "max_bucket_reso": ("int", 1024),
    "bucket_reso_steps": ("int", 64),
    "bucket_no_upscale": ("bool", False),
    "validation_split": ("float", 0.0),
    "validation_seed": ("any", None),
    "network_multiplier": ("float", 1.0),
    "resize_interpolation": ("any", None),
}
SUBSET: dict[str, tuple[str, Any]] = {
    "image_dir": ("str", ""),
    "metadata_file": ("str", ""),
    "conditioning_data_dir": ("str", ""),
    "num_repeats": ("int", 1),
    "is_reg": ("bool", False),
    "class_tokens": ("str", ""),
    "caption_extension": ("str", ".caption"),
    "shuffle_caption": ("bool", False),
    "caption_separator": ("str", ","),
    "keep_tokens": ("int", 0),
    "keep_tokens_separator": ("str", ""),
    "secondary_separator": ("str", ""),
    "enable_wildcard": ("bool", False),
    "caption_prefix": ("str", ""),
    "caption_suffix": ("str", ""),
    "caption_dropout_rate": ("float", 0.0),
    "caption_tag_dropout_rate": ("float", 0.0),
    "caption_dropout_every_n_epochs": ("int", 0),
    "token_warmup_min": ("int", 1),
    "token_warmup_step": ("float", 0.0),
    "flip_aug": ("bool", False),
    "random_crop": ("bool", False),
    "color_aug": ("bool", False),
    "alpha_mask": ("bool", False),
    "face_crop_aug_range": ("any", None),
    "cache_info": ("bool", False),
    "custom_attributes": ("any", None),
}
# What a subset of sd-scripts is called in a concept, where only the name differs.
SAME = {
    "shuffle_caption": "shuffle_tags",
    "caption_separator": "tag_separator",
    "keep_tokens": "keep_tags",
    "keep_tokens_separator": "kept_separator",
    "secondary_separator": "secondary_separator",
    "enable_wildcard": "wildcards",
    "caption_prefix": "caption_prefix",
    "caption_suffix": "caption_suffix",
    "flip_aug": "augmentation.flip",
    "random_crop": "augmentation.crop_jitter",
    "alpha_mask": "alpha_mask",
    "is_reg": "regularisation",
}
LOST = {
    "token_warmup_min": "tags are shown from the first step here",
    "cache_info": "what is known of the files is cached in cache_dir",
    "caption_dropout_every_n_epochs": "set data.caption_dropout",
    "token_warmup_step": "tags are shown from the first step here",
    "face_crop_aug_range": "Chorus does not look for faces; crop the images first",
    "custom_attributes": "Chorus has nothing like it",
}
# Of datasets, and so of general.
LOST_OF_DATASETS = {
    "network_multiplier": "the adapter has its whole strength in training here; weigh the concept with loss_weight",
    "resize_interpolation": "images are resized by Lanczos' filter here",
    "validation_seed": "which images are held out depends on the images alone",
}
COLOR_AUGMENTATION = 0.05
_FOLDER = re.compile(r"(\d+)_(.*)", re.DOTALL)
_FROM_ARGUMENTS = {"batch_size": "train_batch_size", "num_repeats": "dataset_repeats"}


class Level:
    """One level of a dataset file, above which are others whose values it takes where it has none."""

    def __init__(self, values: Mapping[str, Any], above: Level | None = None, name: str = ""):
        self.values = values
        self.above = above
        self.name = name

    def get(self, t: SdScriptsTranslation, name: str) -> tuple[Any, bool]:
        """The value, and whether the file has it."""
        kind, default = (DATASET | SUBSET)[name]
        level: Level | None = self
        while level is not None:
            value = level.values.get(name)
            if name in level.values and (not is_empty(value) or kind == "str"):
                try:
                    return ("" if value is None else read_as(kind, value)), True
                except ValueError as error:
                    t.result.left.append(
                        Line(shown(f"{self.name}: {name}", value), why=f"{error}; {default!r} is used")
                    )
                    return default, False
            level = level.above
        argument = _FROM_ARGUMENTS.get(name, name)
        if argument in t.program.settings and t.is_given(argument):
            return t[argument], True
        return t.defaults.get(argument, default), False


def is_dataset(content: Mapping[str, Any]) -> bool:
    """Whether this is a dataset file of sd-scripts, and not one of its successors."""
    datasets = content.get("datasets")
    return isinstance(datasets, list) and any(
        isinstance(entry, Mapping) and isinstance(entry.get("subsets"), list) for entry in datasets
    )


def take_dataset(t: SdScriptsTranslation, content: Mapping[str, Any]) -> None:
    """The concepts of a dataset file, and what holds for all of them here."""
    general = Level(_mapping(content.get("general")), name="general")
    levels, number = [], 0
    for count, entry in enumerate(entry for entry in content.get("datasets", []) if isinstance(entry, Mapping)):
        dataset = Level(entry, general, f"dataset {count + 1}")
        levels.append(dataset)
        seen: set[str] = set()
        subsets = entry.get("subsets")
        for values in subsets if isinstance(subsets, list) else []:
            subset = Level(_mapping(values), dataset, f"subset {number + 1}")
            folder, _ = subset.get(t, "image_dir")
            if folder in seen and folder:
                t.result.left.append(Line(f"{subset.name}: {folder}", why="the dataset has this folder already"))
                continue
            seen.add(folder)
            _take_subset(t, subset, number, levels[0])
            number += 1
            _note_unknown(t, subset, DATASET | SUBSET)
        _note_lost(t, dataset, LOST_OF_DATASETS)
        _note_unknown(t, dataset, {**DATASET, **SUBSET, "subsets": ()})
    _note_unknown(t, general, DATASET | SUBSET)
    _note_unknown(t, Level(content, name="file"), {"general": (), "datasets": ()})
    if levels:
        _take_shapes(t, levels[0])
        _take_common(t, levels)


def take_folder(t: SdScriptsTranslation, parent: str, is_regularisation: bool, start: int = 0) -> int:
    """The concepts of folders such as 10_cat. Returns the number of the next concept."""
    number = start
    try:
        folders = sorted(path for path in Path(parent).iterdir() if path.is_dir())
    except (OSError, ValueError):
        name = "reg_data_dir" if is_regularisation else "train_data_dir"
        t.result.left.append(Line(shown(name, parent), why="there is no such folder here: add its folders as concepts"))
        return number
    for folder in folders:
        match = _FOLDER.fullmatch(folder.name)
        if match is None or int(match[1]) < 1:
            why = "its name is not such as 10_cat, so sd-scripts does not train it, either"
            t.result.left.append(Line(f"folder {folder.name}", why=why))
            continue
        values = {"image_dir": str(folder), "num_repeats": int(match[1]), "class_tokens": match[2]}
        level = Level({**values, "is_reg": is_regularisation}, None, f"folder {folder.name}")
        _take_subset(t, level, number, level)
        t.take_line(f"concepts.{number}.name", match[2], f"folder {folder.name}")
        number += 1
    return number


def take_prompts(t: SdScriptsTranslation, text: str) -> None:
    """The prompts of a file, one a line, with options such as --n and --w."""
    kinds = {"w": ("width", "int"), "h": ("height", "int"), "d": ("seed", "int"), "s": ("steps", "int")}
    kinds |= {"f": ("frames", "int")} | dict.fromkeys(_guidance_options(t), ("guidance", "float"))
    lines = [line.strip() for line in text.splitlines() if line.strip() and not line.strip().startswith("#")]
    for number, line in enumerate(lines):
        prompt, *options = line.split(" --")
        path, name = f"sampling.samples.{number}", f"prompt {number + 1}"
        values = {"prompt": prompt, **_sample_defaults(t, any(option.startswith("n ") for option in options))}
        for option in options:
            key, _, value = option.strip().partition(" ")
            try:
                setting, kind = kinds[key.lower()]
                values[setting] = read_as(kind, value.strip())
            except (KeyError, ValueError):
                if key.lower() == "n":
                    values["negative_prompt"] = value
                elif key.lower() in ("l", "g"):
                    why = f"the guidance of this model is --{_guidance_options(t)[0]} there"
                    t.result.left.append(Line(f"{name}: --{key}", why=why))
                else:
                    t.result.left.append(Line(f"{name}: --{key[:20]}", why="Chorus has nothing like it"))
        for setting, value in values.items():
            t.take_line(f"{path}.{setting}", value, f"{name}: {setting}")


def _guidance_options(t: SdScriptsTranslation) -> tuple[str, ...]:
    """The option of prompts that gives the guidance; both, if no arguments tell the model."""
    if not t.given:
        return ("l", "g")
    return ("g",) if t.family.takes_guidance or t.family.name in t.program.facts["guided_by_g"] else ("l",)


def _sample_defaults(t: SdScriptsTranslation, has_negative: bool) -> dict[str, Any]:
    """What prompts without options have."""
    facts, family = t.program.facts, t.family.name
    values = {**facts["sample_defaults"][""], **facts["sample_defaults"].get(family, {})}
    if has_negative and family in facts["guidance_with_negative"]:
        values["guidance"] = facts["guidance_with_negative"][family]
    return values


def _take_subset(t: SdScriptsTranslation, level: Level, number: int, first: Level) -> None:
    path = f"concepts.{number}"

    def take(setting: str, name: str, value: Any = None, why: str = "") -> None:
        own, is_given = level.get(t, name)
        value = own if value is None else value
        t.take_line(f"{path}.{setting}", value, shown(f"{level.name}: {name}", own), why, is_given)

    folder, table = level.get(t, "image_dir")[0], level.get(t, "metadata_file")[0]
    t.take_line(f"{path}.path", folder or str(Path(table).parent), f"{level.name}: image_dir")
    t.take_line(f"{path}.include_subfolders", False, f"{level.name}: image_dir", is_given=False)
    if table:
        why = "write its captions into a .jsonl or .csv file with the columns file_name and text"
        t.result.left.append(Line(shown(f"{level.name}: metadata_file", table), why=why))
    take("repeats", "num_repeats")
    for name, setting in SAME.items():
        take(setting, name)
    _take_captions(t, level, path)
    take("tag_dropout", "caption_tag_dropout_rate")
    if level.get(t, "color_aug")[0]:
        why = "weak shifts of hue, brightness and contrast, drawn otherwise there"
        for name in ("hue", "brightness", "contrast"):
            take(f"augmentation.{name}", "color_aug", COLOR_AUGMENTATION, why)
    if level.get(t, "conditioning_data_dir")[0]:
        take("mask_folder", "conditioning_data_dir")
    if level.get(t, "is_reg")[0] and t["prior_loss_weight"] != 1:
        t.take(f"{path}.loss_weight", t["prior_loss_weight"], "prior_loss_weight")
    _note_lost(t, level, LOST)
    _take_validation(t, level, path)
    side = _side(t, level)
    if side != _side(t, first):
        t.take_line(f"{path}.resolution", side, f"{level.name}: resolution {side}")


def _note_lost(t: SdScriptsTranslation, level: Level, reasons: Mapping[str, str]) -> None:
    for name, why in reasons.items():
        value, is_given = level.get(t, name)
        if is_given and value not in (0, None, {}, [], (DATASET | SUBSET)[name][1]):
            t.result.left.append(Line(shown(f"{level.name}: {name}", value), why=why))


def _take_validation(t: SdScriptsTranslation, level: Level, path: str) -> None:
    """The share of a subset of its own, which sd-scripts' documentation has, and its code for whole datasets alone."""
    if "validation_split" not in level.values:
        return
    share, _ = level.get(t, "validation_split")
    theirs = f"{level.name}: validation_split {share:g}"
    if share == 1:
        t.take_line(f"{path}.validation", True, theirs)
    elif share:
        t.result.left.append(Line(theirs, why="one share for all concepts here: set data.validation_share"))


def _take_captions(t: SdScriptsTranslation, level: Level, path: str) -> None:
    extension, is_given = level.get(t, "caption_extension")
    if t.is_given("caption_extention") and not is_given:
        extension = t["caption_extention"]
    extension = extension if extension.startswith(".") or not extension else f".{extension}"
    t.take_line(f"{path}.captions", "txt", f"{level.name}: caption_extension {extension}", is_given=is_given)
    t.take_line(
        f"{path}.caption_extension", extension or ".caption", f"{level.name}: caption_extension", is_given=is_given
    )
    words, is_given = level.get(t, "class_tokens")
    if words:
        t.take_line(f"{path}.caption_fallback", words, f"{level.name}: class_tokens {words[:60]}", is_given=is_given)
    if level.get(t, "enable_wildcard")[0]:
        t.take_line(f"{path}.caption_per_line", True, f"{level.name}: enable_wildcard true")


def _take_shapes(t: SdScriptsTranslation, level: Level) -> None:
    """Resolution and buckets, of the first dataset."""
    side = _side(t, level)
    t.take_line("data.resolution", side, f"resolution {side}", is_given=level.get(t, "resolution")[1])
    buckets, is_given = level.get(t, "enable_bucket")
    t.take_line("data.bucketing", buckets, f"enable_bucket {str(buckets).lower()}", is_given=is_given)
    width, height = _shape(t, level)
    if not buckets:
        if width != height:
            t.take_line("data.width", width, f"resolution {width},{height}")
            t.take_line("data.height", height, f"resolution {width},{height}")
        return
    step, is_given = level.get(t, "bucket_reso_steps")
    t.take_line(
        "data.bucket_step", max(8, step), f"bucket_reso_steps {step}", "at least 8 here" if step < 8 else "", is_given
    )
    longest, is_given = level.get(t, "max_bucket_reso")
    no_upscale, _ = level.get(t, "bucket_no_upscale")
    t.take_line("data.no_upscale", no_upscale, f"bucket_no_upscale {str(no_upscale).lower()}")
    longest = max(longest, side)
    t.take_line("data.max_side", longest, f"max_bucket_reso {longest}", is_given=is_given)
    shortest = max(8, level.get(t, "min_bucket_reso")[0])
    aspect = max(1.0, min(1000.0, side**2 / shortest**2, longest**2 / side**2 if longest > side else 1000.0))
    if longest <= side:
        why = "wide and high shapes have fewer pixels, because no side may be longer"
        aspect = min(aspect, longest / shortest) or 1.0
    else:
        why = "the aspect ratio that its shortest and longest side allow"
    t.take_line("data.max_aspect", max(1.0, aspect), f"min_bucket_reso {shortest}", why, is_given)


def _take_common(t: SdScriptsTranslation, levels: list[Level]) -> None:
    """What each dataset may have of its own there, and all have together here."""
    for name, setting in (("batch_size", "batch_size"), ("validation_split", "data.validation_share")):
        values = [level.get(t, name)[0] for level in levels]
        if any(level.get(t, name)[1] for level in levels):
            why = "one for all datasets here: that of the first" if len(set(values)) > 1 else ""
            t.take_line(setting, values[0], f"{name} {values[0]}", why)
    rates = []
    for level in levels:
        subsets = level.values.get("subsets", [])
        rates += [Level(_mapping(one), level).get(t, "caption_dropout_rate")[0] for one in subsets]
    if rates:
        why = "one for all subsets here: the largest" if len(set(rates)) > 1 else ""
        t.take_line("data.caption_dropout", max(rates), f"caption_dropout_rate {max(rates)}", why, max(rates) > 0)


def _side(t: SdScriptsTranslation, level: Level) -> int:
    """Side of the square with as many pixels as the resolution has, as a multiple of 8."""
    width, height = _shape(t, level)
    return max(8, round(math.sqrt(width * height) / 8) * 8)


def _shape(t: SdScriptsTranslation, level: Level) -> tuple[int, int]:
    value = level.get(t, "resolution")[0]
    text = ",".join(map(str, value)) if isinstance(value, list) else str(value)
    sides = [int(side) for side in re.findall(r"\d{1,5}", text)][:2]
    if not sides or not all(8 <= side <= 16384 for side in sides):
        return 512, 512
    return (sides[0], sides[-1])


def _take_data(t: SdScriptsTranslation, setting: ForeignSetting) -> None:
    """The data that the arguments name: a dataset file, or folders with folders."""
    name = t["dataset_config"]
    if name:
        path = Path(name) if Path(name).is_absolute() else t.folder / name
        try:
            content = read_content(path)
        except ConfigError as error:
            t.result.left.append(Line(shown("dataset_config", name), str(error), path="concepts"))
        else:
            take_dataset(t, _mapping(content))
            return
    arguments = Level({}, None, "arguments")
    _take_shapes(t, arguments)
    t.take("data.caption_dropout", t["caption_dropout_rate"], "caption_dropout_rate")
    t.take("data.validation_share", t["validation_split"], "validation_split")
    number = 0
    for argument, is_regularisation in (("train_data_dir", False), ("reg_data_dir", True)):
        if t.is_given(argument):
            number = take_folder(t, t[argument], is_regularisation, number)
    if t.is_given("in_json"):
        why = "write its captions into a .jsonl or .csv file with the columns file_name and text"
        t.leave(why, "in_json")


def _take_prompts(t: SdScriptsTranslation, setting: ForeignSetting) -> None:
    name = t["sample_prompts"]
    if not name:
        return
    path = Path(name) if Path(name).is_absolute() else t.folder / name
    if path.suffix.lower() != ".txt":
        t.leave("write its prompts into sampling.samples", "sample_prompts")
        return
    try:
        take_prompts(t, read_text(path))
    except ConfigError:
        line = Line(shown("sample_prompts", name), why="the file is not there: name it, too", path="sampling.samples")
        t.result.left.append(line)


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _note_unknown(t: SdScriptsTranslation, level: Level, known: Mapping[str, Any]) -> None:
    for name, value in level.values.items():
        if name not in known:
            t.result.left.append(Line(shown(f"{level.name}: {name}", value), why="sd-scripts has no such setting"))


OF_DATA: dict[str, Any] = {"data": _take_data, "prompts": _take_prompts}
