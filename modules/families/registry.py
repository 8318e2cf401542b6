"""The families there are, by name."""

from modules.families.Family import Family
from modules.families.sd3 import SD3
from modules.families.sd15 import SD15

FAMILIES: dict[str, Family] = {family.name: family for family in (SD15, SD3)}
