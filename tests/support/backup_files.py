"""Backups as files, made without a training and without torch."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from modules.session.manifest import write_manifest


def state_of(step: int, **changes: Any) -> dict[str, Any]:
    """What a backup of `step` says in its state.json, with `changes`."""
    return {
        "step": step,
        "epoch": 0,
        "step_in_epoch": step,
        "smooth_loss": 0.5,
        "learning_rate_factor": 1.0,
        "optimizer": {"kind": "AdamW", "groups": [{}], "state": {}},
        "loss_scale": {},
        "ema": False,
        "run": {"global_batch": 4, "samples": "digest"},
        **changes,
    }


def write_backup(folder: Path, step: int, state: dict[str, Any] | None = None, without: tuple[str, ...] = ()) -> Path:
    """The folder of a backup of `step` below `folder`, good unless `state` or what it is made `without` is not."""
    path = folder / f"step-{step:09d}"
    path.mkdir(parents=True, exist_ok=True)  # one that was being written when its process was killed
    files = {name: bytes(step) for name in ("model.safetensors", "optimizer.safetensors")}
    files["state.json"] = json.dumps(state_of(step) if state is None else state).encode()
    for name, content in files.items():
        if name not in without:
            (path / name).write_bytes(content)
    write_manifest(path)
    return path
