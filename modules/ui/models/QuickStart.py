"""The few choices of the start page, made in the settings of the next run. No Tk."""

from __future__ import annotations

from typing import TYPE_CHECKING

from modules.config.families import variant_of
from modules.ui.models.fitting_presets import PresetChoice, choice_of, fitting_presets, suggested_preset
from modules.ui.models.run_names import name_after_images
from modules.ui.models.SettingsModel import FIRST_PRESET

if TYPE_CHECKING:
    from modules.ui.models.DeviceModel import DeviceModel
    from modules.ui.models.SettingsModel import SettingsModel

GPU_SETTINGS = ("enable_multi_gpu", "world_size", "device_indexes")


class QuickStart:
    """Reads and writes the settings alone: it has no state of its own. Each change is one undo step."""

    def __init__(self, settings: SettingsModel, devices: DeviceModel):
        self._settings, self._devices = settings, devices

    @property
    def has_demo_images(self) -> bool:
        """Whether the dataset is still that of the demo."""
        settings = self._settings
        if settings.preset_name != FIRST_PRESET or not settings.is_preset:
            return False
        return not any(path.partition(".")[0] == "concepts" for path in settings.modified_paths())

    @property
    def choices(self) -> tuple[PresetChoice, ...]:
        """The presets for the family and method of the settings, of its models only for the one that the user chose."""
        family, base = self._settings.get("family"), self._settings.get("model.base")
        found = fitting_presets(family, self._settings.get("method"))
        is_own = base and self._settings.differs_from_preset("model.base")
        return _of_model(found, variant_of(family, base)) if is_own else found

    @property
    def chosen_preset(self) -> PresetChoice | None:
        """The preset that the settings were loaded from, if it is one of the choices."""
        return choice_of(self.choices, self._settings.preset_name) if self._settings.is_preset else None

    @property
    def suggested(self) -> PresetChoice | None:
        """The best of the choices for the GPUs of this machine, for the same model as the chosen one."""
        chosen = self.chosen_preset
        choices = _of_model(self.choices, chosen.model) if chosen else self.choices
        return suggested_preset(choices, self._devices.gpus)

    @property
    def uses_all_gpus(self) -> bool | None:
        """Whether all GPUs train together: False for one GPU, None for some of them."""
        get = self._settings.get
        if not get("enable_multi_gpu"):
            return False
        is_all = not get("device_indexes") and get("world_size") in (None, len(self._devices.gpus))
        return True if is_all else None

    def use_folder(self, path: str) -> None:
        """Train the images of a folder, after which run and model are named. Settings of the demo, which suit no other
        images, are replaced by the suggested preset; it keeps what the user has chosen before, such as the base
        model."""
        is_demo, suggested, concepts = self.has_demo_images, self.suggested, self._settings.get("concepts")
        before = concepts[0].path if concepts else ""
        with self._settings.one_undo_step():
            self._settings.replace_parts("concepts", [{"path": path}])
            if is_demo and suggested is not None:
                self._load(suggested, self.uses_all_gpus is not False)
            name_after_images(self._settings, before)

    def use_preset(self, choice: PresetChoice) -> None:
        """Apply a preset for the chosen GPUs, keeping the base model, the images and the folders."""
        with self._settings.one_undo_step():
            self._load(choice, self.uses_all_gpus is not False)

    def use_gpus(self, all_of_them: bool) -> None:
        """Train on all GPUs or on one. A preset is replaced by its variant for so many, which has other steps; what
        differs from it is kept."""
        settings, choice = self._settings, self.chosen_preset
        own = {
            path: settings.shown(path)
            for path in settings.modified_paths()
            if path not in GPU_SETTINGS and settings.info(path).type != "list"
        }
        with settings.one_undo_step():
            if choice is not None:
                self._load(choice, all_of_them)
                for path, value in own.items():
                    if settings.shown(path) != value:
                        settings.set(path, value)
            else:
                settings.set("enable_multi_gpu", all_of_them)
                settings.set("world_size", None)
                settings.set("device_indexes", [])

    def _load(self, choice: PresetChoice, all_gpus: bool) -> None:
        num_gpus = len(self._devices.gpus) if all_gpus else 1
        name = choice.variant(num_gpus)
        self._settings.load_preset(name)
        if num_gpus > 1 and self._settings.get("world_size") != num_gpus:  # no variant for exactly so many
            self._settings.set("world_size", None)


def _of_model(choices: tuple[PresetChoice, ...], model: str) -> tuple[PresetChoice, ...]:
    """Those for one of a family's models; all if there are none. model: as in PresetChoice."""
    return tuple(choice for choice in choices if choice.model == model) or choices
