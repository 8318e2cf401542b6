"""The families there are, by name."""

from modules.families.Family import Family
from modules.families.sd3 import SD3
from modules.families.sd15 import SD15
from modules.families.sdxl import SDXL

FAMILIES: dict[str, Family] = {family.name: family for family in (SD15, SDXL, SD3)}


def family_of(pipeline: str | None) -> Family | None:
    """The family that trains what diffusers calls `pipeline`, None where there is none."""
    return next((one for one in FAMILIES.values() if pipeline in one.pipelines), None)
