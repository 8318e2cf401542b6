"""Writes tests/long_files.json, the test files that take longest, from a report of a whole run of the tests.

    python -m pytest -n 3 --dist loadscope --no-loadscope-reorder --junitxml=tests.xml
    python scripts/long_test_files.py tests.xml

tests/conftest.py begins with these files, the longest first.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from xml.etree import ElementTree

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from modules.session.printing import print_line  # noqa: E402

TARGET = ROOT / "tests" / "long_files.json"
LEAST_SECONDS = 15.0


def seconds_of_files(report: Path, root: Path = ROOT) -> dict[str, float]:
    """How long the tests of each file took together; the paths are relative to tests, the longest first.

    report: in JUnit's format, as pytest writes it, where a file is the name of a module. Files that are not there are
    left out.
    """
    seconds: dict[str, float] = defaultdict(float)
    for case in ElementTree.parse(report).iter("testcase"):
        module = case.get("classname", "").split(".")
        for length in range(len(module), 0, -1):  # classes follow the module
            path = root.joinpath(*module[:length]).with_suffix(".py")
            if path.is_file():
                seconds[path.relative_to(root / "tests").as_posix()] += float(case.get("time", "0"))
                break
    return dict(sorted(seconds.items(), key=lambda item: -item[1]))


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("report", type=Path, help="what pytest wrote with --junitxml")
    args = parser.parse_args(argv)
    found = {name: seconds for name, seconds in seconds_of_files(args.report).items() if seconds >= LEAST_SECONDS}
    if not found:
        print_line(
            f"{args.report} has no file that takes {LEAST_SECONDS:.0f} s: write it in a run of all tests", sys.stderr
        )
        return 1
    TARGET.write_text(json.dumps(list(found), indent=1) + "\n", encoding="utf-8", newline="\n")
    for name, seconds in found.items():
        print_line(f"{seconds:6.0f} s  {name}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
