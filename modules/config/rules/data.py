"""Rules of concepts, captions and sizes."""

import re
from collections.abc import Iterator

from modules.config.clips import frame_problems
from modules.config.ConceptConfig import ConceptConfig
from modules.config.families import load_families
from modules.config.image_sizes import lone_bucket, size_problems
from modules.config.methods import facts_of
from modules.config.problems import Problem, set_to
from modules.config.show_value import show_value
from modules.config.TrainConfig import TrainConfig

MAX_EXTENSION = 32  # characters of a caption file's ending: far more than any has


def concept_problems(config: TrainConfig) -> Iterator[Problem]:
    enabled = _enabled_concepts(config)
    if not enabled and facts_of(config).draws_images(config):
        return
    if not enabled:
        yield Problem("concepts", "concepts: there is no dataset yet; add a folder of images.")
        return
    for path, concept in enabled:
        if not concept.path.strip():
            yield Problem(f"{path}.path", f"{path}.path is empty: name the folder with the images, or disable it.")
        if concept.captions == "prompt" and not concept.prompt.strip() and facts_of(config).uses_captions:
            message = f"{path}.prompt is empty: its images are trained without words; write a prompt to use one."
            yield Problem(f"{path}.prompt", message, blocking=False)
        if concept.captions == "txt" and not _is_extension(concept.caption_extension.strip()):
            setting = f"{path}.caption_extension"
            shown = show_value(concept.caption_extension)
            message = f"{setting} {shown}: it must be the ending of a file name, of at most {MAX_EXTENSION} characters."
            yield Problem(setting, message, remedy=set_to(setting, ".txt"))
    if all(concept.loss_weight == 0 for _, concept in enabled):
        message = "loss_weight is 0 for every enabled concept: nothing would be learned; set one above 0."
        yield Problem(f"{enabled[0][0]}.loss_weight", message)


def held_out_problems(config: TrainConfig) -> Iterator[Problem]:
    enabled = _enabled_concepts(config)
    if enabled and all(concept.validation for _, concept in enabled):
        path = f"{enabled[0][0]}.validation"
        yield Problem(path, f"{path} is on for every enabled concept: nothing would be trained; switch one off.")


def tag_problems(config: TrainConfig) -> Iterator[Problem]:
    for path, concept in _enabled_concepts(config):
        lists = {name: getattr(concept, name) for name in ("removed_tags", "dropped_tags", "undropped_tags")}
        for name, listed in lists.items():
            for tag in listed.split(concept.tag_separator or None):
                try:
                    re.compile(tag.strip())
                except re.error as error:
                    message = f"{path}.{name}: {tag.strip()!r} is not a regular expression ({error}); correct it."
                    yield Problem(f"{path}.{name}", message)
        separators = (concept.kept_separator, concept.secondary_separator, concept.removed_tags.strip())
        takes_tags = any((concept.shuffle_tags, concept.tag_dropout, concept.capitalization != "off", *separators))
        if takes_tags and not concept.tag_separator:
            message = f"{path}.tag_separator is empty: tags can't be told apart; write what stands between them."
            yield Problem(f"{path}.tag_separator", message)


def share_problems(config: TrainConfig) -> Iterator[Problem]:
    trained = [(path, concept) for path, concept in _enabled_concepts(config) if not concept.validation]
    shares = {path: concept.share for path, concept in trained if concept.share is not None}
    total = sum(shares.values())
    if len(shares) < len(trained) and total >= 1:
        path = f"{next(iter(shares))}.share"
        message = (
            f"{path} {next(iter(shares.values())):g}: the shares of all concepts add up to {total:g}, which leaves "
            "nothing for those without a share; lower some."
        )
        yield Problem(path, message)


def image_size_problems(config: TrainConfig) -> Iterator[Problem]:
    align = load_families()[config.family].align
    problems = list(size_problems(config, align, config.family))
    yield from problems or lone_bucket(config, align)
    yield from frame_problems(config)
    family = load_families()[config.family]
    for number, sample in enumerate(config.sampling.samples):
        if sample.steps < family.min_sample_steps:
            path = f"sampling.samples.{number}.steps"
            message = f"{path} {sample.steps}: {family.label} takes at least {family.min_sample_steps}; raise it."
            yield Problem(path, message, remedy=set_to(path, family.min_sample_steps))
    path, sampler = "sampling.sampler", config.sampling.sampler
    if family.has_own_sampler and sampler != "model":
        message = f"{path} {sampler}: {family.label} only samples as its base model says; set it to model."
        yield Problem(path, message, remedy=set_to(path, "model"))


def validation_problems(config: TrainConfig) -> Iterator[Problem]:
    held_out = config.data.validation_share or any(c.enabled and c.validation for c in config.concepts)
    if config.validation.unit != "never" and not held_out:
        never = set_to("validation.unit", "never", "Never")
        message = (
            f"validation.unit {config.validation.unit}: no image is held out; set data.validation_share above 0, "
            "mark a concept as validation, or set it to never."
        )
        yield Problem("validation.unit", message, blocking=False, remedy=never)


def regularization_problems(config: TrainConfig) -> Iterator[Problem]:
    trained = [(path, concept) for path, concept in _enabled_concepts(config) if not concept.validation]
    if facts_of(config).uses_denoiser and trained and all(concept.regularisation for _, concept in trained):
        path = f"{trained[0][0]}.regularisation"
        message = f"{path} is on for every concept: nothing new would be learned; turn it off for your own images."
        yield Problem(path, message, blocking=False)


def _is_extension(text: str) -> bool:
    return len(text) <= MAX_EXTENSION and not set(text) & set("/\\\0")


def _enabled_concepts(config: TrainConfig) -> list[tuple[str, ConceptConfig]]:
    """The concepts that are used, each with its path."""
    return [(f"concepts.{i}", concept) for i, concept in enumerate(config.concepts) if concept.enabled]
