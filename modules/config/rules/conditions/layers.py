"""Rules of the layers of images."""

from collections.abc import Iterator

from modules.config.families import load_families
from modules.config.problems import Problem, Remedy, set_to
from modules.config.rules.conditions.ConditionRules import ConditionRules
from modules.config.SampleConfig import SampleConfig
from modules.config.TrainConfig import TrainConfig


class _Layers(ConditionRules):
    def problems(self, config: TrainConfig) -> Iterator[Problem]:
        """Layers that the model can't learn, or can't do without, and what would no longer add up to the image."""
        family = load_families()[config.family]
        is_layered = family.takes("layers")
        for number, concept in enumerate(config.concepts):
            if not concept.enabled:
                continue
            path = f"concepts.{number}"
            setting = f"{path}.layer_folder"
            if concept.layer_folder and not is_layered:
                message = f"{setting}: {family.label} does not decompose images into layers; empty it."
                yield Problem(setting, message, remedy=Remedy("Train without layers", {setting: ""}))
            if is_layered and not concept.layer_folder:
                message = (
                    f"{setting} is empty: {family.label} learns to decompose images; choose the folder with the "
                    "layers of the images, such as cat_0.png and cat_1.png of cat.png."
                )
                yield Problem(setting, message)
            for name in ("contrast", "hue", "fixed_contrast", "fixed_hue") if is_layered else ():
                if value := getattr(concept.augmentation, name):
                    setting = f"{path}.augmentation.{name}"
                    message = f"{setting} {value:g}: the layers would no longer add up to the image; set it to 0."
                    yield Problem(setting, message, remedy=set_to(setting, 0.0, "0"))

    def images_at_once(self, config: TrainConfig) -> int:
        """An image and its layers. The images of the dataset are taken to have as many layers as the samples."""
        enabled = [sample for sample in config.sampling.samples if sample.enabled] or [SampleConfig()]
        return 1 + max(sample.layers for sample in enabled)


RULES = _Layers()
