"""OneTrainer's concepts and samples."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from modules.config.errors import ConfigError
from modules.importers.foreign_values import is_empty, read_as, shown
from modules.importers.ImportResult import Line
from modules.importers.onetrainer_versions import concept_to_present
from modules.importers.read_file import IMAGE_ENDINGS, find_beside, read_content
from modules.importers.Translation import Translation

AUGMENTATIONS = ("brightness", "contrast", "saturation", "hue")
CAPITALIZATIONS = {"capslock": "upper", "title": "title", "first": "first", "random": "random"}
DROPOUT_MODES = {"FULL": "all", "RANDOM": "single", "RANDOM WEIGHTED": "later"}
_UNUSED = {"seed", "concept_stats", "__version"}


class Part:
    """One entry of a list in a file of OneTrainer: a concept or a sample.

    path: of the part in Chorus, such as "concepts.0". name: what lines call it.
    """

    def __init__(self, translation: Translation, values: Mapping[str, Any], path: str, name: str):
        self.translation = translation
        self.values = dict(values)
        self.path = path
        self.name = name
        self.read: set[str] = set()

    def get(self, name: str, default: Any, kind: str = "") -> Any:
        """The value of "name" or "section.name"; the default if it is not there or can't be read."""
        self.read.add(name)
        value: Any = self.values
        for key in name.split("."):
            value = value.get(key) if isinstance(value, Mapping) else None
        if is_empty(value) and value != "":
            return default
        try:
            return read_as(kind or type(default).__name__, value)
        except ValueError as error:
            self.leave(f"{error}; OneTrainer's default is used", shown(name, value))
            return default

    def take(self, setting: str, value: Any, theirs: str, why: str = "") -> None:
        """Set a setting of the part. theirs: the setting that it comes from."""
        self.translation.take_line(f"{self.path}.{setting}", value, f"{self.name}: {theirs}", why)

    def leave(self, why: str, theirs: str) -> None:
        self.translation.result.left.append(Line(f"{self.name}: {theirs}", why=why))

    def note_unknown(self) -> None:
        """A line for each setting that nothing has read."""
        for name, value in self.values.items():
            is_section = name in ("image", "text") and isinstance(value, Mapping)
            inner = {f"{name}.{key}": one for key, one in value.items()} if is_section else {name: value}
            for key, one in inner.items():
                if key not in self.read and key.rpartition(".")[2] not in _UNUSED:
                    self.leave("OneTrainer's table has no such setting", shown(key, one))


def take_concept_file(translation: Translation, name: str) -> None:
    """The concepts of the file that the settings name, if it is there."""
    content = _read_beside(translation, name, "concept_file_name")
    if content is not None:
        take_concepts(translation, content)


def take_sample_file(translation: Translation, name: str, model: str) -> None:
    """Likewise the samples."""
    content = _read_beside(translation, name, "sample_definition_file_name")
    if content is not None:
        take_samples(translation, content, model)


def take_concepts(translation: Translation, concepts: list[Any]) -> None:
    """The concepts of a list, and the settings that hold for all of them here."""
    parts = []
    for number, values in enumerate(entry for entry in concepts if isinstance(entry, Mapping)):
        name = values.get("name") if isinstance(values.get("name"), str) else ""
        part = Part(
            translation, concept_to_present(dict(values)), f"concepts.{number}", name or f"concept {number + 1}"
        )
        _take_concept(part)
        parts.append(part)
    for setting, name in (("augmentation_variants", "image_variations"), ("caption_variants", "text_variations")):
        numbers = [part.get(name, 1) for part in parts]
        if numbers:
            why = "one number for all concepts here: the largest" if len(set(numbers)) > 1 else ""
            translation.take_line(f"data.{setting}", max(numbers), f"{name} {max(numbers)}", why)
    for part in parts:
        part.note_unknown()


def take_samples(translation: Translation, samples: list[Any], model: str) -> None:
    """The prompts of a list. model: OneTrainer's name of it, which decides the defaults; "" if it is unknown."""
    facts = translation.program.facts["sample_defaults"]
    width, height, steps, guidance = facts.get(model, facts[""])
    for number, values in enumerate(entry for entry in samples if isinstance(entry, Mapping)):
        part = Part(translation, values, f"sampling.samples.{number}", f"sample {number + 1}")
        part.take("prompt", part.get("prompt", ""), "prompt")
        part.take("negative_prompt", part.get("negative_prompt", ""), "negative_prompt")
        part.take("seed", max(0, part.get("seed", 42)), "seed")
        part.take("width", part.get("width", width), "width")
        part.take("height", part.get("height", height), "height")
        part.take("steps", part.get("diffusion_steps", steps), "diffusion_steps")
        part.take("guidance", part.get("cfg_scale", float(guidance)), "cfg_scale")
        part.take("enabled", part.get("enabled", True), "enabled")
        if (frames := part.get("frames", 1)) > 1:
            part.take("frames", frames, "frames")
        if part.get("random_seed", False):
            part.leave("the seed is fixed here, so that samples of different steps can be compared", "random_seed true")
        if part.get("sample_inpainting", False):
            part.take("reference", part.get("base_image_path", ""), "base_image_path")
            part.take("mask", part.get("mask_image_path", ""), "mask_image_path")
        if (scheduler := part.get("noise_scheduler", "")) not in ("", "DDIM", "EULER", "EULER_A"):
            part.leave("sampling.sampler has the model's own, Euler and Heun", f"noise_scheduler {scheduler}")
        part.read |= {"base_image_path", "mask_image_path", "length", "transformer_attention_mask"}
        part.read |= {"force_last_timestep"} | {name for name in values if name.startswith("text_encoder_")}
        part.note_unknown()


def _take_concept(part: Part) -> None:
    part.take("name", part.get("name", ""), "name")
    part.take("path", _folder(part), "path")
    part.take("enabled", part.get("enabled", True), "enabled")
    part.take("include_subfolders", part.get("include_subdirectories", False), "include_subdirectories")
    part.take("loss_weight", part.get("loss_weight", 1.0), "loss_weight")
    kind = part.get("type", "STANDARD")
    part.take("validation", kind == "VALIDATION", f"type {kind}")
    part.take(
        "regularisation",
        kind == "PRIOR_PREDICTION",
        f"type {kind}",
        "together, regularization concepts are shown as often as all others" if kind == "PRIOR_PREDICTION" else "",
    )
    if kind == "PRIOR_PREDICTION":
        part.translation.take_line("loss.prior_by_frozen_model", True, f"{part.name}: type {kind}")
    _take_repeats(part)
    _take_augmentation(part)
    _take_captions(part)
    _take_tags(part)


def _folder(part: Part) -> str:
    path = part.get("path", "")
    found = find_beside(path, part.translation.folder) if path and not os.path.isabs(path) else None
    return str(found) if found is not None and found.is_dir() else path


def _take_repeats(part: Part) -> None:
    balancing, strategy = part.get("balancing", 1.0), part.get("balancing_strategy", "REPEATS")
    if strategy != "SAMPLES":
        part.take("repeats", balancing, f"balancing {balancing:g}")
        return
    images = count_images(Path(part.get("path", "")), part.get("include_subdirectories", False))
    theirs = f"balancing {balancing:g} SAMPLES"
    if images:
        part.take(
            "repeats", balancing / images, theirs, f"that many samples per epoch of the {images} images in it now"
        )
    else:
        part.leave("the folder has no images on this machine: set repeats to this number, divided by theirs", theirs)


def count_images(folder: Path, recursive: bool) -> int:
    """Number of images in a folder; 0 if there is none."""
    try:
        found = folder.rglob("*") if recursive else folder.iterdir()
        return sum(path.suffix.lower() in IMAGE_ENDINGS for path in found)
    except (OSError, ValueError):
        return 0


def _take_augmentation(part: Part) -> None:
    part.take("augmentation.crop_jitter", part.get("image.enable_crop_jitter", True), "enable_crop_jitter")
    part.take("augmentation.flip", part.get("image.enable_random_flip", False), "enable_random_flip")
    part.take("augmentation.fixed_flip", part.get("image.enable_fixed_flip", False), "enable_fixed_flip")
    angle = part.get("image.random_rotate_max_angle", 0.0)
    if part.get("image.enable_random_rotate", False) and angle:
        why = "turned images are enlarged until no black corner shows"
        part.take("augmentation.rotation", min(45.0, abs(angle)), f"random_rotate_max_angle {angle:g}", why)
    if part.get("image.enable_fixed_rotate", False) and angle:
        why = "turned images are enlarged until no black corner shows"
        part.take("augmentation.fixed_rotation", angle, f"random_rotate_max_angle {angle:g} of all", why)
    for name in AUGMENTATIONS:
        strength = part.get(f"image.random_{name}_max_strength", 0.0)
        limit, why = (
            (0.5, "a share of half the color circle there, of the whole one here") if name == "hue" else (1.0, "")
        )
        value = min(limit, abs(strength) * limit)
        for kind, setting in (("random", name), ("fixed", f"fixed_{name}")):
            if part.get(f"image.enable_{kind}_{name}", False) and strength:
                part.take(f"augmentation.{setting}", value, f"random_{name}_max_strength {strength:g}", why)
    if part.get("image.enable_resolution_override", False):
        _take_resolutions(part, part.get("image.resolution_override", "512"))
    part.read.add("image.resolution_override")
    for name in ("enable_random_circular_mask_shrink", "enable_random_mask_rotate_crop"):
        if part.get(f"image.{name}", False):
            part.leave("Chorus trains masks as they are", name)


def _take_resolutions(part: Part, text: str) -> None:
    sides = [int(side) for side in re.findall(r"(?<![\dx])\d+(?![\dx])", text.replace(" ", ""))]
    theirs = f"resolution_override {text}"
    if len(sides) == 1:
        part.take("resolution", sides[0], theirs)
    elif sides:
        part.take("resolutions", sides, theirs, "one of them is drawn each time an image is shown")
    if "x" in text:
        part.leave("a concept has no exact size here: set its resolution, or data.width and data.height", theirs)


def _take_captions(part: Part) -> None:
    source = part.get("text.prompt_source", "sample")
    prompt_path = part.get("text.prompt_path", "")
    if source == "filename":
        part.take("captions", "file_name", "prompt_source filename", "_ in a file name becomes a space")
    elif source == "concept" and prompt_path:
        _take_prompt(part, prompt_path)
    else:
        part.take("captions", "txt", f"prompt_source {source}")
        part.take("caption_per_line", True, f"prompt_source {source}")


def _take_prompt(part: Part, name: str) -> None:
    path = find_beside(name, part.translation.folder)
    try:
        lines = path.read_text(encoding="utf-8-sig").splitlines() if path is not None else []
    except (OSError, ValueError):
        lines = []
    prompts = [line.strip() for line in lines if line.strip()]
    part.take("captions", "prompt", "prompt_source concept")
    if prompts:
        why = f"the first of the {len(prompts)} lines; one prompt for all images here" if len(prompts) > 1 else ""
        part.take("prompt", prompts[0], f"prompt_path {name}", why)
    else:
        part.leave("the file can't be read here: write its prompt into the concept's prompt", f"prompt_path {name}")


def _take_tags(part: Part) -> None:
    shuffles, drops = part.get("text.enable_tag_shuffling", False), part.get("text.tag_dropout_enable", False)
    separator = part.get("text.tag_delimiter", ",")
    part.take("shuffle_tags", shuffles, "enable_tag_shuffling")
    part.take("tag_separator", separator or ",", "tag_delimiter")
    part.take("keep_tags", max(0, part.get("text.keep_tags_count", 1)), "keep_tags_count")
    probability, mode = part.get("text.tag_dropout_probability", 0.0), part.get("text.tag_dropout_mode", "FULL")
    if drops:
        part.take("tag_dropout", probability, f"tag_dropout_probability {probability:g}")
        part.take("tag_dropout_mode", DROPOUT_MODES.get(mode, "single"), f"tag_dropout_mode {mode}")
    special = part.get("text.tag_dropout_special_tags", "")
    special_mode = part.get("text.tag_dropout_special_tags_mode", "NONE")
    is_pattern = part.get("text.tag_dropout_special_tags_regex", False)
    if drops and special and special_mode in ("WHITELIST", "BLACKLIST"):
        tags = special if is_pattern else separator.join(map(re.escape, special.split(separator)))
        setting = "undropped_tags" if special_mode == "WHITELIST" else "dropped_tags"
        if special.lower().endswith((".txt", ".csv")):
            part.leave("write the tags of that file into the concept", f"tag_dropout_special_tags {special}")
        else:
            part.take(setting, tags, f"tag_dropout_special_tags {special_mode}")
    _take_capitalization(part)


def _take_capitalization(part: Part) -> None:
    is_on = part.get("text.caps_randomize_enable", False)
    modes = part.get("text.caps_randomize_mode", "capslock, title, first, random")
    share, lower = part.get("text.caps_randomize_probability", 0.0), part.get("text.caps_randomize_lowercase", False)
    if not is_on:
        return
    chosen = [mode.strip() for mode in modes.split(",") if mode.strip() in CAPITALIZATIONS]
    several = "one of all kinds here" if 1 < len(chosen) < len(CAPITALIZATIONS) else ""
    value = CAPITALIZATIONS[chosen[0]] if len(chosen) == 1 else "any"
    part.take("capitalization", value, f"caps_randomize_mode {modes}", several)
    part.take("capitalization_share", share, f"caps_randomize_probability {share:g}")
    part.take("lower_case", lower, "caps_randomize_lowercase")


def _read_beside(translation: Translation, name: str, setting: str) -> list[Any] | None:
    path = find_beside(name, translation.folder)
    try:
        content = read_content(path) if path is not None else None
    except ConfigError as error:
        translation.leave(str(error), setting)
        return None
    if isinstance(content, list):
        return content
    if translation.is_given(setting):
        why = "the file is not there: name it, too, when you import"
        here = translation.program.settings[setting].here
        translation.result.left.append(Line(translation.theirs(setting), why=why, path=here))
    return None


def image_area_side(width: int, height: int) -> int:
    """Side of the square with as many pixels."""
    return max(8, round(math.sqrt(width * height)))
