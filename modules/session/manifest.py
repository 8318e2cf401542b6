"""The manifest of a folder: size and hash of every file in it, so that damage is detected before the files are used."""

import hashlib
import json
import os
from collections.abc import Iterable, Mapping
from pathlib import Path, PurePosixPath

from modules.session.atomic import is_temporary, write_json

MANIFEST_NAME = "manifest.json"

Entry = dict[str, int | str]

_CHUNK_BYTES = 1 << 20


def write_manifest(folder: str | os.PathLike, known: Mapping[str, Entry] | None = None) -> None:
    """Write `manifest.json` into `folder`: the size in bytes and SHA-256 of every file below it, by path with slashes.

    Write it last: files added later are not covered. known: the entries of files that need not be read again.
    """
    folder = Path(folder)
    files = dict(known or {})
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder).as_posix()
        if path.is_file() and name != MANIFEST_NAME and name not in files and not is_temporary(name):
            files[name] = manifest_entry(path)
    write_json(folder / MANIFEST_NAME, {"files": files})


def manifest_entry(path: Path) -> Entry:
    """What a manifest says of a file: its size in bytes and SHA-256."""
    return {"size": path.stat().st_size, "sha256": _sha256(path)}


def check_manifest(folder: str | os.PathLike, required: Iterable[str] = (), contents: bool = True) -> str | None:
    """Compare `folder` with its manifest. Returns the first problem in words, or None if all listed files are intact.

    required: names that the manifest has to list. contents: False compares only sizes, not hashes, so that no file but
    the manifest is read. Sizes are compared before hashes, so that a truncated file is found at once. Files that are
    not listed are ignored: users and file managers put notes and thumbnails into folders.
    """
    folder = Path(folder)
    try:
        expected = _read(folder)
    except FileNotFoundError:
        return f"{MANIFEST_NAME} is missing"
    except (OSError, ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError) as error:
        return f"{MANIFEST_NAME} can't be read ({type(error).__name__})"
    for name in required:
        if name not in expected:
            return f"{MANIFEST_NAME} does not list {name}"
    try:
        return _first_difference(folder, expected, contents)
    except OSError as error:
        return f"{error.filename or folder} can't be read ({error.strerror})"


def listed_files(folder: str | os.PathLike) -> list[str]:
    """The names in the manifest of `folder`, which must have passed `check_manifest`."""
    return list(_read(Path(folder)))


def _read(folder: Path) -> dict[str, tuple[int, str]]:
    """Name -> (size in bytes, SHA-256). A damaged file may raise any exception of JSON parsing and type checks."""
    files = json.loads((folder / MANIFEST_NAME).read_bytes())["files"]
    return {str(name): (int(entry["size"]), str(entry["sha256"])) for name, entry in files.items()}


def _first_difference(folder: Path, expected: dict[str, tuple[int, str]], contents: bool) -> str | None:
    for name, (size, _) in expected.items():
        if not _is_inside(name):
            return f"{MANIFEST_NAME} names {name!r}, which is outside the folder"
        path = folder / name
        if not path.is_file():
            return f"{name} is missing"
        if path.stat().st_size != size:
            return f"{name} has {path.stat().st_size} bytes instead of {size}"
    for name, (_, sha256) in expected.items() if contents else ():
        if _sha256(folder / name) != sha256:
            return f"{name} has other content than was written (SHA-256 differs)"
    return None


def _is_inside(name: str) -> bool:
    path = PurePosixPath(name)
    illegal = "\\" in name or ":" in name or "\0" in name  # an absolute path on Windows, or no valid name at all
    return bool(path.parts) and not path.is_absolute() and ".." not in path.parts and (os.name != "nt" or not illegal)


def _sha256(path: Path) -> str:
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while chunk := file.read(_CHUNK_BYTES):
            digest.update(chunk)
    return digest.hexdigest()
