"""Rules of methods whose loss compares predictions, and of what they take in place of images."""

from collections.abc import Iterator
from operator import attrgetter

from modules.config.families import load_families
from modules.config.methods import TARGET, facts_of, has_images
from modules.config.problems import Problem, set_to, switch_off
from modules.config.show_value import show_value
from modules.config.TrainConfig import TrainConfig

IMAGE_LOSSES = ("masked_training", "prior_by_frozen_model", "output_preservation")


def comparison_problems(config: TrainConfig) -> Iterator[Problem]:
    """What methods that compare predictions can't be combined with."""
    method = facts_of(config)
    if method.refuses_text and config.text_encoder.train:
        message = f"text_encoder.train with method {method.name}: it trains the denoiser alone; turn it off."
        yield Problem("text_encoder.train", message, remedy=switch_off("text_encoder.train"))
    for path, (value, why) in method.refused.items():
        if (own := attrgetter(path)(config)) != value:
            remedy = set_to(path, value)
            shown, off = (one if isinstance(one, str) else show_value(one) for one in (own, value))
            undone = f"set it to {off}"
            message = f"{path} {shown} with method {method.name}: {why}; {undone}."
            yield Problem(path, message, remedy=remedy)
    if not method.compares:
        return
    for name in IMAGE_LOSSES:
        if getattr(config.loss, name):
            message = f"loss.{name} with method {method.name}: its loss compares predictions, not images; turn it off."
            yield Problem(f"loss.{name}", message, remedy=switch_off(f"loss.{name}"))
    for number, concept in enumerate(config.concepts):
        if concept.enabled and concept.regularisation:
            path = f"concepts.{number}.regularisation"
            message = f"{path} with method {method.name}: it trains no images to preserve; turn it off."
            yield Problem(path, message, remedy=switch_off(path))


def slider_problems(config: TrainConfig) -> Iterator[Problem]:
    slider = config.slider
    if TARGET in facts_of(config).prompts(config) and slider.positive.strip() == slider.negative.strip():
        same = f"slider.positive {slider.positive!r} is the same as slider.negative"
        same = same if slider.positive.strip() else "slider.positive and slider.negative are empty"
        message = f"{same}: the slider has no direction; write what there is more of, and what less."
        yield Problem("slider.positive", message)


def pair_problems(config: TrainConfig) -> Iterator[Problem]:
    method = facts_of(config)
    if not method.takes_pairs(config):
        return
    for number, concept in enumerate(config.concepts):
        path = f"concepts.{number}.pair_folder"
        if concept.enabled and not concept.pair_folder.strip() and not method.lists_pairs:
            yield Problem(path, f"{path} is empty: name the folder with the {method.pair_words[1]}.")
    if config.data.frames > 1:
        message = f"data.frames {config.data.frames} with pairs: they are images; set it to 1."
        yield Problem("data.frames", message, remedy=set_to("data.frames", 1))


def drawing_problems(config: TrainConfig) -> Iterator[Problem]:
    """Runs without images, whose latents the model draws."""
    if not facts_of(config).draws_images(config) or has_images(config):
        return
    family = load_families()[config.family]
    if family.experts or family.takes_masks or any(facts.get("needed") for facts in family.conditions.values()):
        message = f"concepts: {family.label} can't draw its training images itself; add a folder of images."
        yield Problem("concepts", message)
    if config.data.validation_share:
        path, share = "data.validation_share", config.data.validation_share
        message = f"{path} {share:g}: there are no images to hold out; set it to 0."
        yield Problem(path, message, remedy=set_to(path, 0.0, "0"))
