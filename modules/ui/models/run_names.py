"""Names of the next run and its model, after its folder of images. No Tk."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import TYPE_CHECKING

from modules.config.describe import settings_by_path
from modules.session.free_folders import next_free_folder
from modules.session.names import safe_file_name

if TYPE_CHECKING:
    from modules.ui.models.SettingsModel import SettingsModel

FOLDER, MODEL = "workspace_dir", "output.name"
COMMON_NAMES = frozenset(("data", "dataset", "images", "img", "photos", "pictures", "train", "training"))
MAX_BYTES = 40


def name_after_images(settings: SettingsModel, before: str) -> None:
    """Name the output folder, in the folder that it is in, and the model after the first folder of images.

    Only names that nobody has chosen are replaced: those of Chorus and of the preset, and those given by an earlier
    call. A run that exists already gets no other name. before: the folder of images until now, "" if there was none.
    """
    concepts = settings.get("concepts")
    name, former = run_name(concepts[0].path if concepts else ""), run_name(before)
    if not name:
        return
    values = {}
    if _is_given(settings, MODEL, settings.get(MODEL), former):
        values[MODEL] = name
    parent, shown = os.path.split(settings.get(FOLDER).rstrip("/\\"))
    stem = re.sub(r"-\d+$", "", shown)
    if name not in (stem, shown) and any(_is_given(settings, FOLDER, one, former) for one in (shown, stem)):
        folder = os.path.join(parent, name)
        values[FOLDER] = next_free_folder(folder) if os.path.exists(os.path.expanduser(folder)) else folder
    settings.set_many({path: value for path, value in values.items() if settings.get(path) != value})


def run_name(folder: str) -> str:
    """What a run with the images of a folder is called: as the folder, or the one around it if every dataset has a
    folder of that name; without kohya's repeats ("10_cat"). "" if it has no name."""
    path = Path(os.path.abspath(os.path.expanduser(folder))) if folder else Path()
    if path.name.lower() in COMMON_NAMES and path.parent.name:
        path = path.parent
    name = re.sub(r"^\d+_+", "", path.name)
    return safe_file_name(name, MAX_BYTES) if name else ""


def _is_given(settings: SettingsModel, path: str, name: str, former: str) -> bool:
    """Whether a name is the default, that of the preset, or was made from the images until now."""
    others = [str(settings_by_path()[path].default)]
    if settings.is_preset:
        others.append(str(settings.preset_value(path)))
    return name in (former, *map(os.path.basename, others)) and path not in settings.typed
