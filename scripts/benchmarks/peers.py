"""Chorus beside diffusers' official training scripts, from a checkout that the user names, on the same work.

The scripts run in an environment of their own (peer_environment.py), unchanged, and take turns with Chorus as the loop
written by hand does: PyTorch tells of their optimizer steps (peer_script.py). Each is compared twice: as it comes,
encoding images and captions in every step, and with what is encoded kept, as Chorus keeps it.
"""

from __future__ import annotations

import contextlib
import json
import math
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from modules.config.errors import UserError
from modules.session.atomic import new_folder
from scripts.benchmarks.compare import CHORUS, of_turns
from scripts.benchmarks.material import model_folder, picture_size, pictures_folder
from scripts.benchmarks.peer_environment import DIFFUSERS_SCRIPTS, peer_python
from scripts.benchmarks.results import Comparison, Target
from scripts.benchmarks.worker import BATCH_SIZE, LEARNING_RATE, LORA_RANK, MAX_GRAD_NORM, WorkerArguments
from scripts.benchmarks.workers import alternated, new_run_folder, start_program, start_worker
from scripts.gpu.cases import is_cuda

AS_IT_COMES, KEPT = "as it comes", "encoded once"
TARGET = Target(0.60)  # of the script as it comes


@dataclass(frozen=True)
class Peer:
    """path: in the checkout. family: that it trains. options: of the script, beside those that all take.

    settings: of Chorus, where the script does otherwise than the loop by hand.
    """

    path: str
    family: str
    options: tuple[str, ...] = ()
    settings: tuple[str, ...] = ()


DREAMBOOTH = ("--caption_column", "text", "--image_column", "image", "--instance_prompt", "a shape")
ALIGNED = ("data.bucket_step=64",)  # the side of the smallest images
PEERS = {
    "text_to_image_lora": Peer("examples/text_to_image/train_text_to_image_lora.py", "sd15"),
    "dreambooth_lora_sdxl": Peer("examples/dreambooth/train_dreambooth_lora_sdxl.py", "sdxl", DREAMBOOTH, ALIGNED),
    "dreambooth_lora_flux": Peer("examples/dreambooth/train_dreambooth_lora_flux.py", "flux1", DREAMBOOTH, ALIGNED),
}


def compare_peers(
    folder: Path,
    checkout: Path,
    device: str,
    blocks: int,
    steps_per_block: int,
    material: Callable[[str, str], Path],
    names: Sequence[str] = tuple(PEERS),
) -> Iterator[Comparison]:
    """Each script as it comes, then with what it encodes kept.

    material: gives the folder of model and images for a family and a device.
    Raises UserError where `checkout` has no such scripts, or their environment can't be made.
    """
    for name in names:
        if not (checkout / PEERS[name].path).is_file():
            raise UserError(
                f"--scripts {checkout}: it has no {PEERS[name].path}; name the root of a diffusers checkout."
            )
    python = peer_python(folder / "environment of peers", DIFFUSERS_SCRIPTS)
    for name in names:
        peer = PEERS[name]
        place = material(peer.family, device)
        for how in (AS_IT_COMES, KEPT):
            yield from _compare(place, python, checkout, name, device, blocks, steps_per_block, how)


def _compare(
    folder: Path, python: Path, checkout: Path, name: str, device: str, blocks: int, steps_per_block: int, how: str
) -> list[Comparison]:
    peer = PEERS[name]
    images = len(list(pictures_folder(folder).glob("*.png")))
    # what is kept is there once each image has had its turn
    warm_up = math.ceil(images / BATCH_SIZE / steps_per_block) if how == KEPT else 1
    precision = ("model.mixed_precision=bf16", "model.weight_dtype=bfloat16") if is_cuda(device) else ()
    settings = (f"family={peer.family}", *precision, *peer.settings)
    ours = WorkerArguments(folder, "lora", steps_per_block, blocks + warm_up, settings=settings)
    with contextlib.ExitStack() as stack:
        run_folder = stack.enter_context(new_run_folder(folder))
        command = command_of(python, checkout, peer, folder, run_folder, device, ours, how)
        environment = {"HF_HOME": str(run_folder / "hub"), "HF_HUB_OFFLINE": "1"}
        chorus = stack.enter_context(start_worker(CHORUS, ours, device))
        script = stack.enter_context(start_program(Path(peer.path).name, command, device, environment=environment))
        for _ in range(warm_up):
            chorus.turn(), script.turn()
        answers = alternated(blocks, chorus.turn, script.turn)
    what = f"step beside diffusers' {name}, {how}, {device}"
    target = TARGET if how == AS_IT_COMES else None
    return of_turns(what, answers, steps_per_block, target, ("Chorus", "the script"))


def command_of(
    python: Path,
    checkout: Path,
    peer: Peer,
    folder: Path,
    run_folder: Path,
    device: str,
    ours: WorkerArguments,
    how: str,
) -> list[str]:
    """What starts the script on the work of Chorus: same model, images, batch, rank, rate, precision and steps."""
    data = "--train_data_dir" if "text_to_image" in peer.path else "--dataset_name"
    options: dict[str, object] = {
        "--pretrained_model_name_or_path": model_folder(folder),
        data: listed_images(folder),
        "--output_dir": run_folder / "output",
        "--cache_dir": run_folder / "datasets",
        "--resolution": picture_size(folder),
        "--train_batch_size": BATCH_SIZE,
        "--rank": LORA_RANK,
        "--learning_rate": LEARNING_RATE,
        "--max_grad_norm": MAX_GRAD_NORM,
        "--lr_scheduler": "constant",
        "--lr_warmup_steps": 0,
        "--max_train_steps": ours.total_steps,
        "--checkpointing_steps": ours.total_steps + 1,
        "--mixed_precision": "bf16" if is_cuda(device) else "no",
        "--seed": 0,
    }
    start = [str(python), "-m", "scripts.benchmarks.peer_script", "--device", device]
    start += ["--steps", str(ours.steps), "--turns", str(ours.turns), *(["--keep-encoded"] if how == KEPT else [])]
    given = [str(part) for option in options.items() for part in option]
    return [*start, str(checkout.resolve() / peer.path), *given, *peer.options]


def listed_images(folder: Path) -> Path:
    """The images in a folder of their own, with the file of captions that the scripts' datasets read."""
    listed = folder / "listed images"
    if not listed.exists():
        with new_folder(listed) as temporary:
            lines = []
            for path in sorted(pictures_folder(folder).glob("*.png")):
                shutil.copy(path, temporary)
                text = path.with_suffix(".txt").read_text(encoding="utf-8")
                lines.append(json.dumps({"file_name": path.name, "text": text}))
            (temporary / "metadata.jsonl").write_text("\n".join(lines), encoding="utf-8")
    return listed
