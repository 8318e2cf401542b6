"""The images that samples start from: those of the settings, or of the dataset for samples without a prompt."""

from __future__ import annotations

import os
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Any

from modules.data.concepts import as_prompt
from modules.data.conditions import conditions_of
from modules.data.errors import DataError
from modules.data.image_formats import EXTENSIONS
from modules.data.images import size_or_reason
from modules.data.videos import info_or_reason, is_video, split_time

if TYPE_CHECKING:
    from modules.config.SamplingConfig import SamplingConfig
    from modules.data.Dataset import Dataset
    from modules.families.Family import Family


def settings_of_captions(
    dataset: Dataset, texts: Sequence[tuple[str, ...]], family: Family, unusable: Collection[int] = ()
) -> dict[str, dict[str, Any]]:
    """First caption of an image -> the settings of a sample that starts from what the image or clip has.

    Captions are as from `caption_prompts`, and the name of its concept stands for that of an image without one.
    Several paths of a setting are divided by line breaks, as `image_files` takes them.
    texts: as from `captions`. unusable: samples that are left out.
    """
    conditions = conditions_of(family)
    found: dict[str, dict[str, Any]] = {}
    for sample, options in enumerate(texts):
        concept = dataset.concepts[dataset.concept_index[sample]]
        prompt = as_prompt(options[0], dataset.concepts) if options[0] else concept.name
        if prompt in found or sample in unusable:
            continue
        settings: dict[str, Any] = {}
        for condition in conditions:
            settings |= condition.sample_settings(dataset, sample)
        if settings:
            found[prompt] = settings
    return found


def image_files(path: str) -> list[str]:
    """The image at `path`, or several of them, one a line; of a folder all its images, by name.

    Raises DataError if a folder has none.
    """
    if "\n" in path:
        return [file for line in path.split("\n") for file in image_files(line)]
    path = os.path.expanduser(path)
    if not os.path.isdir(path):
        return [path]
    names = sorted(name for name in os.listdir(path) if os.path.splitext(name)[1].lower() in EXTENSIONS)
    if not names:
        raise DataError(f"{path} holds no images: choose an image, or a folder with some.")
    return [os.path.join(path, name) for name in names]


def check_sample_images(sampling: SamplingConfig, family: Family) -> None:
    """Raises DataError if enabled samples can't start from their images; families that take none ignore them.

    That samples have one where the family needs it is up to the validation of the settings.
    """
    conditions = conditions_of(family)
    for number, sample in enumerate(sampling.samples) if family.max_input_images else ():
        path = f"sampling.samples.{number}"
        if sample.enabled and sample.reference:
            named, files = f"{path}.reference {sample.reference}", image_files(sample.reference)
            for condition in conditions:
                for name, value in condition.further_images(sample).items():
                    named += f" with {name} {value}" if value else ""
                    files += image_files(value) if value else []
            if refused := refused_images(files, family):
                raise DataError(f"{named}: {refused}", f"{path}.reference")
        for condition in conditions if sample.enabled else ():
            condition.check_sample(sample, path)


def refused_images(files: Sequence[str], family: Family | None) -> str:
    """Why a model of `family` (None: unknown) can't see these images, as a clause with the remedy; "" if it can.

    A video stands for its first frame, as the last image for the one where the sample ends, unless a time is named.
    """
    for condition in conditions_of(family):
        if text := condition.why_too_few(len(files)):
            return f"{condition.family.label} {text}"
    if files and (family is None or not family.max_input_images):
        return f"{family.label if family else 'this model'} takes no reference images; leave it out."
    if family and len(files) > family.max_input_images:
        return f"these are {len(files)} images, but {family.label} takes {family.max_input_images}."
    for path in files:
        file, _ = split_time(path)
        reason = info_or_reason(file) if is_video(file) else size_or_reason(file)
        if isinstance(reason, str):
            return f"{path} can't be read ({reason}); choose another image."
    return ""
