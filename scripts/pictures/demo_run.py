"""The run that the pictures show: the demo, trained here, as it was at one of its steps or at its end."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from modules.config.files import config_from_values, load_values, save_config
from modules.config.installation import ROOT
from modules.session.atomic import write_json
from modules.session.RunFolder import RunFolder
from modules.session.RunLock import RunLock

NUM_RANKS = 2
CHANGES = ("backup.every=100", "backup.unit=steps", "backup.keep=9")  # the demo itself is over before it makes one
KEPT_BACKUPS = 3  # shown, as if so many had been kept
AFTER_STEP_SECONDS = 0.3
DEMO = "resources/demo"
COPIED = ("samples", "backup", "models")
CONCEPTS = ("pictures", "regularisation")


def train_demo(folder: Path) -> RunFolder:
    """The finished run of the demo in `folder`. If there is none, train it, on the CPU, which takes minutes."""
    run = RunFolder(folder)
    if (run.read_exit() or {}).get("status") == "finished":
        return run
    script = [sys.executable, str(ROOT / "scripts" / "start_multi_gpu.py"), "--demo", f"--run-folder={folder}"]
    hidden = os.environ | {"CUDA_VISIBLE_DEVICES": ""}
    subprocess.run([*script, *(f"--set={change}" for change in CHANGES)], check=True, env=hidden)
    return run


def copy_demo(source: RunFolder, folder: Path, now: float, step: int | None = None) -> RunFolder:
    """Copy a run of the demo to `folder`, which is relative to the working folder, and move its times to end at `now`.

    step: copy what was there right after this step; None: all of it. Paths in the copy start from the working folder,
    which has to hold a copy of the demo's resources.
    """
    run = RunFolder(folder)
    shutil.rmtree(run.path, ignore_errors=True)  # of an earlier picture
    run.create()
    _copy_settings(source, run, folder)
    events = {rank: _read_events(source, rank) for rank in range(NUM_RANKS)}
    ends = {
        rank: max(event["time"] for event in found if step is None or event.get("step") == step)
        for rank, found in events.items()
    }
    shift = now - AFTER_STEP_SECONDS - max(ends.values())
    for rank, found in events.items():
        kept = [_moved(event, shift, folder) for event in found if event["time"] <= ends[rank]]
        run.event_path(rank).write_text("".join(json.dumps(event) + "\n" for event in kept), encoding="utf-8")
    for part in COPIED:
        for path in sorted((source.path / part).iterdir()):
            if step is None or (part != "models" and _step_of(path) <= step):
                copy = shutil.copytree if path.is_dir() else shutil.copy2
                copy(path, run.path / part / path.name)
    for backup in sorted(run.backup_dir.iterdir())[:-KEPT_BACKUPS]:
        shutil.rmtree(backup)
    for rank in range(NUM_RANKS):
        shutil.copy(source.log_path(rank), run.log_path(rank))
    if step is None:
        record = source.read_exit() or {}
        write_json(run.exit_path, {**record, "time": record["time"] + shift})
    for path in (run.path, *run.path.rglob("*")):
        os.utime(path, (path.stat().st_mtime + shift,) * 2 if path.is_relative_to(run.backup_dir) else (now, now))
    return run


@contextmanager
def as_if_running(run: RunFolder, now: float) -> Iterator[None]:
    """Let the run look as if its processes were there, in the block."""
    ranks = {rank: {"silent_seconds": AFTER_STEP_SECONDS, "phase": "training"} for rank in range(NUM_RANKS)}
    write_json(run.heartbeats_path(0), {"time": now, "ranks": ranks})
    with RunLock(run.lock_path):
        yield


def _copy_settings(source: RunFolder, run: RunFolder, folder: Path) -> None:
    values = load_values(source.config_path)
    values["workspace_dir"], values["cache_dir"] = str(folder), str(folder.parent / "cache")
    values["model"]["base"] = f"{DEMO}/model"
    for concept, name in zip(values["concepts"], CONCEPTS, strict=True):
        concept["path"] = f"{DEMO}/{name}"
    values["backup"]["keep"] = KEPT_BACKUPS
    save_config(config_from_values(values), run.config_path)


def _read_events(source: RunFolder, rank: int) -> list[dict]:
    return [json.loads(line) for line in source.event_path(rank).read_text(encoding="utf-8").splitlines()]


def _moved(event: dict, shift: float, folder: Path) -> dict:
    """The event with its times moved, and its path below `folder`."""
    moved = {**event, **{name: event[name] + shift for name in ("time", "started") if name in event}}
    if "path" in event:
        parts = Path(event["path"]).parts
        first = max(number for number, part in enumerate(parts) if part in COPIED)
        moved["path"] = str(folder.joinpath(*parts[first:]))
    return moved


def _step_of(path: Path) -> int:
    return int(path.name.rpartition("-")[2])
