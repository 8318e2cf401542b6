"""The record of the models that a run has saved, models.json: it tells them apart from files of other origins."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any, Literal

from modules.config.atomic_file import rename
from modules.session.atomic import write_json

AVERAGED_ENDING = "_ema"  # added to the name if the weights without averaging are saved as well

Kind = Literal["finished", "stopped", "intermediate"]

# File systems round times differently: FAT to 2 s.
_SAME_SECONDS = 2.0


class ModelRecord:
    """What the run whose record is at `path` has saved to `models_dir`, by name without endings.

    It is beside the folder and not in it, which several runs may share through a link. Without a readable record, no
    model is the run's own.
    """

    def __init__(self, path: Path, models_dir: Path):
        self.path = path
        self._models_dir = models_dir

    def owned_step(self, name: str) -> int | None:
        """The step of the model `name` if the run has saved it and nobody has changed its files since; else None."""
        entry = self._read().get(name)
        if entry is None:
            return None
        # A run that was killed while it saved the model has recorded no files, and completes what it had begun.
        recorded = entry["files"]
        if recorded and any(not _is_same(recorded.get(path.name), path) for path in self.files(name)):
            return None
        return entry["step"]

    def last_files(self) -> set[Path]:
        """The files of the models with which the run has finished or stopped, which output.keep must not remove."""
        names = [name for name, entry in self._read().items() if entry["kind"] in ("finished", "stopped")]
        return {path for name in names for path in self.files(name)}

    def has_finished(self, step: int) -> bool | None:
        """Whether the run has saved its finished model at `step` and it is still there; None if there is no record."""
        entries = self._read()
        if not entries:
            return None
        names = [name for name, e in entries.items() if e["kind"] == "finished" and e["step"] == step and e["files"]]
        return any(self.files(name) for name in names)

    def files(self, name: str) -> list[Path]:
        """The files and folders of the model `name`, whoever wrote them: of all formats, weights and experts."""
        pattern = re.compile(rf"{re.escape(name)}({AVERAGED_ENDING})?(_kohya)?(_\w+_\d)?(\.safetensors)?")
        try:
            return sorted(path for path in self._models_dir.iterdir() if pattern.fullmatch(path.name))
        except OSError:  # which saving the model will report
            return []

    def claim(self, name: str, step: int, kind: Kind) -> None:
        """Record that the run is about to save this model. Raises OSError."""
        entries = self._read()
        entries[name] = {"step": step, "kind": kind, "files": {}}
        self._write(entries)

    def complete(self, name: str) -> None:
        """Record the files of a claimed model, which are all saved. Raises OSError."""
        entries = self._read()
        if name in entries:
            entries[name]["files"] = {path.name: _fingerprint(path) for path in self.files(name)}
            self._write(entries)

    def move(self, name: str, new_name: str) -> None:
        """Give a model, with all its files, a name that is free. Raises OSError."""
        for path in self.files(name):
            rename(path, path.with_name(new_name + path.name.removeprefix(name)))
        entries = self._read()
        entries[new_name] = entries.pop(name)
        self._write(entries)
        self.complete(new_name)

    def _read(self) -> dict[str, dict[str, Any]]:
        try:
            models = json.loads(self.path.read_bytes())["models"]
            return {name: entry for name, entry in models.items() if _is_entry(entry)}
        except (OSError, ValueError, KeyError, TypeError, AttributeError):  # there is none, or it is damaged
            return {}

    def _write(self, entries: dict[str, dict[str, Any]]) -> None:
        there = {name: entry for name, entry in entries.items() if not entry["files"] or self.files(name)}
        write_json(self.path, {"models": there})


def _is_entry(entry: Any) -> bool:
    kinds = {"step": int, "kind": str, "files": dict}
    return isinstance(entry, dict) and all(isinstance(entry.get(key), kind) for key, kind in kinds.items())


def _fingerprint(path: Path) -> dict[str, float]:
    """The size of a file and when it was changed, in Unix seconds; of a folder, those of its content."""
    stats = [file.stat() for file in (path.rglob("*") if path.is_dir() else [path]) if file.is_file()]
    return {"size": sum(stat.st_size for stat in stats), "time": max((stat.st_mtime for stat in stats), default=0.0)}


def _is_same(recorded: Any, path: Path) -> bool:
    try:
        now = _fingerprint(path)
        return recorded["size"] == now["size"] and abs(recorded["time"] - now["time"]) <= _SAME_SECONDS
    except (OSError, KeyError, TypeError):  # not recorded, or gone
        return False
