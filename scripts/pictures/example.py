"""An example for the pictures of the window: a machine with four GPUs, a folder of cats to train on, a failed run.

None of it was trained. The photo is of Chelsea, by Stéfan van der Walt, who dedicated it to the public domain (CC0).
"""

from __future__ import annotations

import json
from pathlib import Path

from PIL import Image

from modules.config.files import save_config
from modules.config.TrainConfig import TrainConfig
from modules.data.videos import write_mp4
from modules.machine.devices import GPU_TYPE
from modules.queue.entry_events import append_event
from modules.queue.grid import Axis, grid_entries, make_grid
from modules.queue.ProcessLock import ProcessLock, boot_id
from modules.queue.TrainingQueue import TrainingQueue
from modules.session.events import EventWriter
from modules.session.out_of_memory import GPU_ADVICE
from modules.session.RunFolder import RunFolder
from modules.session.StepInfo import StepInfo
from modules.ui.models.HubScript import HubFacts
from tests.support.fake_nvml import GIB, FakeGpu, FakeNvml

PHOTO = Path(__file__).parent / "chelsea.jpg"
CROP_TO = 1024  # pixels along each side, as the example's preset trains
# (left, top, side) in pixels of the photo, and the caption
CROPS = (
    (80, 0, 300, "portrait, looking to the right"),
    (120, 60, 100, "close-up of the left eye"),
    (151, 0, 300, "head, seen from the front"),
    (20, 40, 240, "left half of the face, whiskers"),
    (230, 70, 140, "close-up of the right eye and nose"),
    (110, 50, 240, "face filling the image"),
    (190, 160, 140, "close-up of the nose"),
    (0, 0, 300, "looking away, blurred background"),
    (140, 0, 180, "striped forehead"),
    (60, 20, 200, "one eye and the cheek"),
    (100, 90, 210, "lower half of the face, whiskers"),
    (210, 30, 240, "right half of the face"),
)
TRIGGER = "a photo of ohwx cat"
NUM_WALKS = 260
WALK_SIZES = (
    (1600, 1200), (1200, 1600), (1024, 1024), (1920, 1080), (1536, 1024), (1600, 1200), (1280, 1920), (900, 900),
    (1600, 1200), (800, 600), (2400, 1350),
)  # fmt: skip
WALK_TAGS = ("outdoors", "running", "grass", "sitting", "from side", "snow", "close-up", "beach", "sleeping", "indoors")
WALK_TYPO = "outdors"
SCENES = ((0, 0, 240, 40), (150, 40, 260, 50), (110, 60, 120, 60), (200, 10, 200, 70))  # left, top, width; frames
FILM_FPS = 12.0
MASKED = {  # number of a photo -> ellipses in a square of 256 pixels, as a model could propose them
    0: ((48, 80, 108, 128), (158, 84, 216, 134), (80, 166, 150, 222)),
    4: ((118, 96, 214, 170), (8, 196, 96, 256)),
    8: ((0, 138, 60, 202), (196, 148, 256, 216)),
}
PREVIEWED = (  # what a captioner is shown to propose for the first, the fifth and the ninth photo
    "ohwx cat looks to the right, its head filling the frame, with soft daylight from the side and a blurred brown "
    "background.",
    "A close-up of ohwx cat, cropped to its right eye and its nose, in soft light.",
    "A close-up of the forehead of ohwx cat from the front, its eyes at the lower edge, against a dark background.",
)
SDXL_BYTES = 13_900_000_000
SDXL_NAME = "stabilityai/stable-diffusion-xl-base-1.0"
SDXL = HubFacts(SDXL_NAME, "openrail++", False, "sdxl", "StableDiffusionXLPipeline", SDXL_BYTES, 0)
ON_THE_HUB = f"On the Hub: {SDXL.describe()}"

FAILED_STEP, FAILED_RANK = 12, 2
TRACEBACK = """Traceback (most recent call last):
  File "modules/trainer/TrainingLoop.py", line 212, in step
    self.runtime.backward(loss)
torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.25 GiB. GPU 2 has 1.31 GiB free."""


def idle_gpus() -> FakeNvml:
    """Four GPUs that nobody uses, in two pairs with an NVLink bridge."""
    gpus = [
        FakeGpu("NVIDIA RTX A6000", f"GPU-{index}a6e{index}d00-0000-4000-8000-00000000000{index}", 48 * GIB)
        for index in range(4)
    ]
    for index, gpu in enumerate(gpus):
        gpu.used_bytes, gpu.temperature = GIB // 2, 34 + (2, 0, 3, 1)[index]
    pairs = ((0, 1), (0, 2), (0, 3), (1, 2), (1, 3), (2, 3))
    return FakeNvml(gpus, {pair: "nvlink" if pair in ((0, 1), (2, 3)) else "pcie" for pair in pairs})


def write_cats(folder: Path) -> None:
    """Write crops of the photo, each with its caption in a text file."""
    folder.mkdir(parents=True)
    with Image.open(PHOTO) as photo:
        for number, (left, top, side, words) in enumerate(CROPS, 1):
            crop = photo.crop((left, top, left + side, top + side))
            crop.resize((CROP_TO, CROP_TO), Image.Resampling.LANCZOS).save(folder / f"cat_{number:02d}.jpg", quality=90)
            (folder / f"cat_{number:02d}.txt").write_text(f"{TRIGGER}, {words}\n", encoding="utf-8")


def write_walks(folder: Path) -> None:
    """Write images of many sizes, in one color each, with tags: for the figures of a dataset."""
    folder.mkdir(parents=True)
    for number in range(NUM_WALKS):
        size = WALK_SIZES[number * 7 % len(WALK_SIZES)]
        Image.new("RGB", size, (40 + number % 200, 120, 90)).save(folder / f"walk_{number:03d}.jpg", quality=30)
        tags = [tag for place, tag in enumerate(WALK_TAGS) if number % (place + 2) < 2]
        tags += [WALK_TYPO] if number == NUM_WALKS // 2 else []
        (folder / f"walk_{number:03d}.txt").write_text(", ".join(["zxk dog", *tags]), encoding="utf-8")


def write_film(path: Path) -> None:
    """Write a video of four scenes, in each of which the view moves over the photo."""
    path.parent.mkdir(parents=True)
    frames = []
    with Image.open(PHOTO) as photo:
        for left, top, width, count in SCENES:
            for number in range(count):
                x = left + number // 3
                part = photo.convert("RGB").crop((x, top, x + width, top + width * 9 // 16))
                frames.append(part.resize((320, 180), Image.Resampling.LANCZOS))
    write_mp4(path, frames, FILM_FPS)


def write_failed_run(folder: Path, config: TrainConfig, now: float) -> None:
    """Write a run of four ranks, of which one ran out of memory. now: Unix seconds, shortly after its end."""
    run = RunFolder(folder)
    run.create()
    save_config(config, run.config_path)
    for rank in range(4):
        step = {
            "type": "step", "rank": rank, "time": now - 61, "epoch": 1 + FAILED_STEP // 2, "step": FAILED_STEP,
            "steps_total": 2000, "loss": 0.1271, "smooth_loss": 0.1304, "lr": 1e-5, "samples": 8, "seconds": 1.4,
            "device": f"{GPU_TYPE}:{rank}", "memory_bytes": 31 * GIB, "peak_memory_bytes": 46 * GIB,
        }  # fmt: skip
        events = [{"type": "status", "rank": rank, "time": now - 90, "text": "Training"}, step]
        if rank == FAILED_RANK:
            events.append({"type": "failed", "rank": rank, "time": now - 60, "text": GPU_ADVICE})
        run.event_path(rank).write_text("".join(json.dumps(event) + "\n" for event in events), encoding="utf-8")
    log = f"Loading model\nCaching images: 12 of 12\nTraining\n{TRACEBACK}\n"
    run.log_path(FAILED_RANK).write_text(log, encoding="utf-8")
    supervisor = f"Rank {FAILED_RANK} ended with exit code 1.\nThe other 3 ranks were ended after 1.2 s.\n"
    run.supervisor_log_path.write_text(supervisor, encoding="utf-8")
    run.write_exit("failed", rank=FAILED_RANK, kind="out_of_memory", text=GPU_ADVICE, exit_code=1, traceback=TRACEBACK)


_HELD: list[ProcessLock] = []  # until this process ends, as if others held them


def write_queue(queue: TrainingQueue, config: TrainConfig | None, now: float) -> None:
    """A grid of six runs: one finished, one failed, one running, and three to do."""
    assert config is not None  # no setting is invalid
    axes = [Axis("lora.rank", ("8", "16", "32")), Axis("seed", ("1", "2"))]
    done, failed, running, _, later, held = queue.add_all(grid_entries(make_grid(config, axes), "my-cat"))
    for entry in (done, failed, running):
        append_event(entry.events_path, "started", boot=boot_id(), owns=True)
    append_event(done.events_path, "ended", status="finished", text="step 500 of 500")
    text = "cuda:2: out of memory; lower batch_size."
    append_event(failed.events_path, "ended", status="failed", text=text)
    folder = RunFolder(running.run_folder)
    folder.create()
    with EventWriter(folder.event_path(0), 0) as events:
        events.write(StepInfo(5, 320, 500, 0.08, 0.08, 1e-4, 4, 0.8, 0.1, device=f"{GPU_TYPE}:0"))
    for path in (running.claim_path, queue.runner_lock_path):
        _HELD.append(ProcessLock(path))
        assert _HELD[-1].take()
    queue.change(later.id, not_before=now + 11.5 * 3600, limit_hours=6.0)
    queue.change(held.id, held=True)
    queue.set_on(True)
