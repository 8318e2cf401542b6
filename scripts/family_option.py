"""The families as a choice of a script."""

from __future__ import annotations

from modules.config.installation import docs_page
from modules.families.registry import FAMILIES
from scripts.name_option import name_among

family = name_among(FAMILIES, "family", docs_page("families"))
"""The name of a family, as argparse's `type`."""
