"""The names of source files can be told apart, also where upper and lower case are the same."""

from collections import defaultdict
from pathlib import Path

MODULES = Path(__file__).parents[1] / "modules"
# every room has its own __init__.py and may have its own errors.py
PATHS = [path for path in sorted(MODULES.rglob("*.py")) if path.name not in ("__init__.py", "errors.py")]


def test_no_two_files_of_a_room_differ_only_in_case_underscores_or_plural():
    stems = defaultdict(set)
    for path in PATHS:
        stems[path.parent.relative_to(MODULES), path.stem.lower().replace("_", "").rstrip("s")].add(path.stem)
    assert [names for names in stems.values() if len(names) > 1] == []


def test_no_two_files_of_any_rooms_differ_only_in_case():
    stems = defaultdict(set)
    for path in PATHS:
        stems[path.stem.lower()].add(path.stem)
    assert [names for names in stems.values() if len(names) > 1] == []
