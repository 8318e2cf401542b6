"""Write resources/families.json, what is known of the model families without torch, or check that it is up to date.

    python scripts/families_reference.py --write
    python scripts/families_reference.py --check
"""

import json
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from modules.families.Family import Family  # noqa: E402
from modules.families.registry import FAMILIES  # noqa: E402
from scripts.generated_file import write_or_check  # noqa: E402

FILE = ROOT / "resources" / "families.json"


def main() -> int:
    return write_or_check(__doc__.splitlines()[0], FILE, families_text())


def families_text() -> str:
    """The whole file: a list with one entry for each family."""
    return json.dumps([_entry(family) for family in FAMILIES.values()], indent=2) + "\n"


def _entry(family: Family) -> dict:
    return {
        "name": family.name,
        "label": family.label,
        "is_default": family.is_default,
        "denoisers": family.denoisers,
        "text_encoders": family.text.encoders,
        "vae": family.vae,
        "objective": family.objective,
        "align": family.align,
        "typical_bytes": family.typical_bytes,
        "single_file": family.single_file,
        "embeddings": bool(family.embedding_keys),
    }


if __name__ == "__main__":
    sys.exit(main())
