"""A made-up workspace for the window: a run that goes on, on eight made-up GPUs, and one that has failed.

Nothing of it was trained: losses come from a formula, samples are images of the demo that come out of a blur.
"""

from __future__ import annotations

import json
import math
import random
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from PIL import Image, ImageFilter

from modules.config.files import config_from_values, save_config
from modules.config.presets import ROOT, load_preset
from modules.config.TrainConfig import TrainConfig
from modules.session.atomic import write_json
from modules.session.manifest import write_manifest
from modules.session.RunFolder import RunFolder
from modules.session.RunLock import RunLock
from scripts.pictures.example import write_failed_run
from tests.support.backup_files import state_of
from tests.support.fake_nvml import GIB, FakeNvml, eight_gpus

SETTINGS_FILE = "digits.yaml"
NUM_RANKS = 8
STEPS, ALL_STEPS, SAMPLE_STEPS = 320, 500, 100
STEP_SECONDS = 0.31
SLOW_RANK, SLOW_SECONDS = 5, 0.35


def busy_gpus() -> FakeNvml:
    """Eight GPUs at work, two of them for somebody else as well."""
    nvml = eight_gpus()
    for index, gpu in enumerate(nvml.gpus):
        gpu.used_bytes = int(gpu.memory_bytes * (0.11 + 0.013 * index))
        gpu.utilisation, gpu.temperature = 91 + index % 4 * 2, 58 + 3 * (index % 5)
        gpu.processes = {4121 + index: ("/usr/bin/python", gpu.used_bytes)}
    nvml.gpus[3].used_bytes, nvml.gpus[3].utilisation = 71 * GIB, 98
    nvml.gpus[3].processes[3310] = ("/opt/tools/render", 62 * GIB)
    return nvml


def make_workspace(folder: Path) -> None:
    """Fill `folder` with a copy of the demo and two run folders, as relative paths from there name them."""
    shutil.copytree(ROOT / "resources" / "demo", folder / "resources" / "demo")
    save_config(shown_settings(), folder / SETTINGS_FILE)
    make_running(folder)
    write_failed_run(folder / "workspace" / "larger-batch", shown_settings(), time.time() - 4000)


def shown_settings() -> TrainConfig:
    """The demo, with paths that are relative to the workspace."""
    values = load_preset("demo")
    values["model"]["base"] = "resources/demo/model"
    for concept, name in zip(values["concepts"], ("pictures", "regularisation"), strict=True):
        concept["path"] = f"resources/demo/{name}"
    return config_from_values(values)


@contextmanager
def running(folder: Path) -> Iterator[RunFolder]:
    """While the block runs, the first run of the workspace looks as if its processes were there."""
    run = RunFolder(folder / "workspace" / "demo")
    with RunLock(run.lock_path):
        beat(run)
        yield run


def beat(run: RunFolder) -> None:
    """The sign of life of a supervisor."""
    ranks = {rank: {"silent_seconds": 0.1 * (1 + rank % 3), "phase": "training"} for rank in range(NUM_RANKS)}
    write_json(run.heartbeats_path(0), {"time": time.time(), "ranks": ranks})


def make_running(folder: Path) -> RunFolder:
    run = RunFolder(folder / "workspace" / "demo")
    run.create()
    save_config(shown_settings(), run.config_path)
    start = time.time() - STEPS * STEP_SECONDS - 20
    events: dict[int, list[dict]] = {rank: [] for rank in range(NUM_RANKS)}
    for number, text in enumerate(("Loading the model", "Caching latents", "Training")):
        events[0].append({"type": "status", "time": start + 5 * number, "text": text})
    events[3].append({"type": "warning", "time": start + 9, "text": "2 of 104 images are smaller than 32 pixels."})
    smooth, chance = 0.56, random.Random(7)
    for step in range(1, STEPS + 1):
        loss = 0.06 + 0.5 * math.exp(-step / 90) + chance.uniform(-0.05, 0.05) * math.exp(-step / 300)
        smooth = 0.9 * smooth + 0.1 * loss
        for rank, lines in events.items():
            lines.append(_step(rank, step, start + 15 + step * STEP_SECONDS, loss, smooth))
    for step in range(0, STEPS + 1, SAMPLE_STEPS):
        when = start + 15 + step * STEP_SECONDS
        for path, prompt in _draw_samples(run, step):
            events[0].append({"type": "sample", "time": when, "path": _told(run, path), "prompt": prompt, "step": step})
        if step:
            loss = 0.1 + 0.5 * math.exp(-step / 90)
            events[0].append({"type": "validation", "time": when, "step": step, "samples": 40, "loss": loss})
            events[0].append({"type": "backup", "time": when, "path": _told(run, _back_up(run, step)), "step": step})
    for rank, lines in events.items():
        lines.sort(key=lambda event: event["time"])
        text = "".join(json.dumps({"rank": rank, **event}) + "\n" for event in lines)
        run.event_path(rank).write_text(text, encoding="utf-8")
    return run


def _told(run: RunFolder, path: Path) -> str:
    """A path as the run would tell it, without the folder in which the workspace was made."""
    return str(path.relative_to(run.path.parent.parent))


def _step(rank: int, step: int, when: float, loss: float, smooth: float) -> dict:
    seconds = SLOW_SECONDS if rank == SLOW_RANK else STEP_SECONDS + 0.001 * rank
    return {
        "type": "step",
        "rank": rank,
        "time": when,
        "epoch": 1 + step * 64 // 304,
        "step": step,
        "steps_total": ALL_STEPS,
        "loss": round(loss, 5),
        "smooth_loss": round(smooth, 5),
        "lr": 0.004,
        "samples": 64,
        "seconds": seconds,
        "grad_norm": 0.21,
        "data_seconds": 0.004 + 0.002 * (rank % 3),
        "device": f"cuda:{rank}",
        "memory_bytes": int((2.3 + 0.02 * rank) * GIB),
        "peak_memory_bytes": int((2.9 + 0.02 * rank) * GIB),
    }


def _draw_samples(run: RunFolder, step: int) -> Iterator[tuple[Path, str]]:
    """Images of the demo, blurred the less the later."""
    found = [*sorted((ROOT / "resources/demo/regularisation").glob("*.png"))]
    found += sorted((ROOT / "resources/demo/pictures").glob("*.png"))
    by_prompt: dict[str, Path] = {}
    for path in found:
        by_prompt.setdefault(path.with_suffix(".txt").read_text(encoding="utf-8").strip(), path)
    round_folder = run.samples_dir / f"step-{step:09d}"
    round_folder.mkdir()
    for number, (prompt, path) in enumerate(sorted(by_prompt.items())):
        target = round_folder / f"{number:03d}_{prompt}_seed42.png"
        with Image.open(path) as picture:
            picture.convert("RGB").filter(ImageFilter.GaussianBlur(4 * 0.4 ** (step / SAMPLE_STEPS))).save(target)
        yield target, prompt


def _back_up(run: RunFolder, step: int) -> Path:
    path = run.backup_dir / f"step-{step:09d}"
    path.mkdir()
    (path / "state.json").write_text(json.dumps(state_of(step)), encoding="utf-8")
    (path / "model.safetensors").write_bytes(bytes(700_000))
    (path / "optimizer.safetensors").write_bytes(bytes(1_400_000))
    write_manifest(path)
    return path
