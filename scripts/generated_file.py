"""The command line of the scripts that generate files of the repository from declarations in the code."""

import argparse
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def write_or_check(description: str, path: Path, text: str) -> int:
    """Implements --write and --check for a generated file; returns the exit code. path: inside the repository."""
    name = path.relative_to(ROOT).as_posix()
    parser = argparse.ArgumentParser(description=description)
    action = parser.add_mutually_exclusive_group(required=True)
    action.add_argument("--write", action="store_true", help=f"write {name}")
    action.add_argument("--check", action="store_true", help=f"exit with 1 if {name} is out of date")
    arguments = parser.parse_args()
    if arguments.write:
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, encoding="utf-8", newline="\n")
        return 0
    if path.is_file() and path.read_text(encoding="utf-8") == text:
        return 0
    print(f"{name} is out of date: run python scripts/{Path(sys.argv[0]).name} --write", file=sys.stderr)
    return 1
