"""The command line of the scripts that generate files of the repository from declarations in the code."""

import argparse
import sys
from collections.abc import Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def write_or_check(description: str, files: Mapping[Path, str]) -> int:
    """Implements --write and --check for generated files; returns the exit code.

    files: path, inside the repository -> the text of the file.
    """
    names = {path: path.relative_to(ROOT).as_posix() for path in files}
    listed = " and ".join(names.values())
    parser = argparse.ArgumentParser(description=description)
    action = parser.add_mutually_exclusive_group(required=True)
    action.add_argument("--write", action="store_true", help=f"write {listed}")
    action.add_argument("--check", action="store_true", help=f"exit with 1 if {listed} is out of date")
    arguments = parser.parse_args()
    if arguments.write:
        for path, text in files.items():
            path.parent.mkdir(exist_ok=True)
            path.write_text(text, encoding="utf-8", newline="\n")
        return 0
    stale = [path for path, text in files.items() if not path.is_file() or path.read_text(encoding="utf-8") != text]
    for path in stale:
        print(f"{names[path]} is out of date: run python scripts/{Path(sys.argv[0]).name} --write", file=sys.stderr)
    return int(bool(stale))
