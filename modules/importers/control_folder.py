"""Where other trainers' control images and videos go: to the condition that the model's denoiser sees."""

from __future__ import annotations

from modules.config.families import FamilyInfo

REFERENCES = "reference_folder"
SOURCES = "source_folder"


def control_folder(family: FamilyInfo) -> str:
    """The setting of a concept for what a model sees beside each image or clip; "" if it sees nothing of the kind."""
    if family.takes("source_clip"):
        return SOURCES
    return REFERENCES if family.takes("references") else ""


def unknown_models_folder(of_videos: bool = False) -> str:
    """The setting for datasets whose file does not tell the model. of_videos: whether there are videos alone."""
    return SOURCES if of_videos else REFERENCES


def why_one_folder(setting: str) -> str:
    """Why a second folder is not taken."""
    if setting == SOURCES:
        return "each clip has one source here: see the concept's source_folder"
    return "all references of an image are in one folder here: cat_0.png, cat_1.png and so on"
