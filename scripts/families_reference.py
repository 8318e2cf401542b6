"""Write resources/families.json, what the window knows of the model families, or check that it is up to date.

    python scripts/families_reference.py --write
    python scripts/families_reference.py --check
"""

import argparse
import json
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from modules.families.Family import Family  # noqa: E402
from modules.families.registry import FAMILIES  # noqa: E402

FILE = ROOT / "resources" / "families.json"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    action = parser.add_mutually_exclusive_group(required=True)
    action.add_argument("--write", action="store_true", help="write resources/families.json")
    action.add_argument("--check", action="store_true", help="exit with 1 if resources/families.json is out of date")
    arguments = parser.parse_args()
    text = families_text()
    if arguments.write:
        FILE.write_text(text, encoding="utf-8", newline="\n")
        return 0
    if FILE.is_file() and FILE.read_text(encoding="utf-8") == text:
        return 0
    print("resources/families.json is out of date: run python scripts/families_reference.py --write", file=sys.stderr)
    return 1


def families_text() -> str:
    """The whole file: a list with one entry for each family."""
    return json.dumps([_entry(family) for family in FAMILIES.values()], indent=2) + "\n"


def _entry(family: Family) -> dict:
    return {
        "name": family.name,
        "label": family.label,
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
