"""How concepts, shapes and samples become sd-scripts' dataset file and its file of prompts."""

from __future__ import annotations

import math
from typing import Any

from modules.config.ConceptConfig import ConceptConfig
from modules.config.describe import is_visible, settings_by_path, value_at
from modules.config.SampleConfig import SampleConfig
from modules.importers.sd_scripts_data import COLOR_AUGMENTATION, SAME, SUBSET
from modules.importers.SdScriptsArguments import SdScriptsArguments, full_path

# What subsets with masks can't have: the scripts refuse the file.
WITHOUT_MASKS = ("is_reg", "class_tokens", "alpha_mask")


def export_data(export: SdScriptsArguments) -> dict[str, Any]:
    """The dataset file, and the arguments that go with it."""
    data = export.config.data
    general: dict[str, Any] = {"enable_bucket": data.bucketing}
    if data.bucketing:
        general |= {"bucket_reso_steps": data.bucket_step, "bucket_no_upscale": data.no_upscale}
    if data.caption_dropout and export.takes("caption_dropout_rate"):
        general["caption_dropout_rate"] = data.caption_dropout
    if data.validation_share and export.takes("validation_split"):
        general["validation_split"] = float(data.validation_share)
    datasets: list[dict[str, Any]] = []
    seen: set[str] = set()
    for concept in export.config.concepts:
        head, subset = _shapes(export, concept), _subset(export, concept)
        last = datasets[-1] if datasets else {}
        same = head.items() <= last.items() and _has_mask(subset) == _has_mask(last.get("subsets", [{}])[0])
        if not same or subset["image_dir"] in seen:  # the scripts ignore a folder that a dataset has already
            datasets.append({**head, "subsets": []})
            seen = set()
        seen.add(subset["image_dir"])
        datasets[-1]["subsets"].append(subset)
    weights = [concept.loss_weight for concept in export.config.concepts if concept.regularisation]
    export.put("prior_loss_weight", weights[0] if weights else None)
    _put_caching(export)
    return {"general": general, "datasets": datasets}


def _has_mask(subset: dict[str, Any]) -> bool:
    return "conditioning_data_dir" in subset


def _shapes(export: SdScriptsArguments, concept: ConceptConfig) -> dict[str, Any]:
    """The resolution of a dataset, and the shortest and longest sides that the aspect ratio allows."""
    data = export.config.data
    side = _active(export, concept, "resolution") or data.resolution
    if not data.bucketing:
        return {"resolution": [data.width, data.height] if data.width and data.height else side}
    step, stretch = data.bucket_step, math.sqrt(data.max_aspect)
    shortest = max(step, math.floor(side / stretch / step + 1e-9) * step)
    longest = data.max_side or math.ceil(side * stretch / step - 1e-9) * step
    return {"resolution": side, "min_bucket_reso": min(shortest, side), "max_bucket_reso": max(longest, side)}


def _subset(export: SdScriptsArguments, concept: ConceptConfig) -> dict[str, Any]:
    values: dict[str, Any] = {"image_dir": full_path(concept.path), "num_repeats": max(1, round(concept.repeats))}
    values["caption_extension"] = ".caption"  # an extension that no caption has, for images with the words alone
    if concept.captions == "txt":
        values["caption_extension"] = concept.caption_extension or ".txt"
    words = concept.prompt if concept.captions == "prompt" else concept.caption_fallback
    if words:
        values["class_tokens"] = words
    for name, setting in SAME.items():
        value = _active(export, concept, setting)
        if value is not None and value != SUBSET[name][1]:
            values[name] = value
    if concept.tag_dropout and export.takes("caption_tag_dropout_rate"):
        values["caption_tag_dropout_rate"] = concept.tag_dropout
    colors = concept.augmentation
    if colors.hue == colors.brightness == colors.contrast == COLOR_AUGMENTATION:
        values["color_aug"] = True
    mask = _active(export, concept, "mask_folder") if export.config.loss.masked_training else ""
    if mask:
        values["conditioning_data_dir"] = full_path(mask)
        values = {name: value for name, value in values.items() if name not in WITHOUT_MASKS}
    return values


def _active(export: SdScriptsArguments, concept: ConceptConfig, setting: str) -> Any:
    info = settings_by_path()[f"concepts[].{setting}"]
    return value_at(concept, setting) if is_visible(info, export.config, concept) else None


def _put_caching(export: SdScriptsArguments) -> None:
    """Cache what Chorus caches, as far as the scripts can with these augmentations and captions."""
    concepts = export.config.concepts
    changes = any(_changes_pixels(concept) for concept in concepts)
    export.put("cache_latents", not changes)
    varies = export.config.data.caption_dropout or any(
        concept.shuffle_tags or concept.tag_dropout or concept.wildcards for concept in concepts
    )
    trains_text = export.method.trains_words or (export.method.chooses_parts and export.config.text_encoder.train)
    export.put("cache_text_encoder_outputs", not varies and not trains_text)
    export.put("sdpa", True)


def _changes_pixels(concept: ConceptConfig) -> bool:
    looks = concept.augmentation
    return looks.crop_jitter or looks.hue == looks.brightness == looks.contrast == COLOR_AUGMENTATION


def export_prompts(export: SdScriptsArguments) -> str:
    """The file of prompts: one a line, with its options."""
    return "".join(f"{_prompt(export, sample)}\n" for sample in export.config.sampling.samples)


def _prompt(export: SdScriptsArguments, sample: SampleConfig) -> str:
    guidance = "g" if export.family.takes_guidance else "l"
    side = export.config.data.resolution
    options = {"n": sample.negative_prompt, "w": sample.width or side, "h": sample.height or side, "d": sample.seed}
    options |= {"s": sample.steps, guidance: sample.guidance}
    texts = [f"--{name} {value}" for name, value in options.items() if value != ""]
    return " ".join(" ".join([sample.prompt, *texts]).split())
