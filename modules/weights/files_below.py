"""The files of some parts of a folder."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path


def files_below(folder: Path, names: Iterable[str]) -> list[Path]:
    """All files in these entries of a folder, sorted; "" is the folder itself."""
    return sorted(path for name in names for path in (folder / name).rglob("*") if path.is_file())
