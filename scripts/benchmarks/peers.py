"""Chorus beside the training scripts of others, from checkouts that the user names, on the same work.

The scripts (peer_programs.py) run in environments of their own (peer_environment.py), unchanged, and take turns with
Chorus as the loop written by hand does: PyTorch tells of their optimizer steps (peer_script.py). Those of diffusers and
sd-scripts are compared twice: as they come, encoding images and captions in every step, and with what is encoded kept,
as Chorus keeps it. OneTrainer keeps it by default.
"""

from __future__ import annotations

import contextlib
import math
import re
from collections.abc import Callable, Sequence
from pathlib import Path

from modules.config.errors import UserError
from scripts.benchmarks.compare import CHORUS, of_turns
from scripts.benchmarks.material import pictures_folder
from scripts.benchmarks.peer_environment import peer_python
from scripts.benchmarks.peer_programs import AS_IT_COMES, KEPT, PEERS, Program, Work, program_of
from scripts.benchmarks.results import Comparison, Target
from scripts.benchmarks.worker import BATCH_SIZE, WorkerArguments
from scripts.benchmarks.workers import alternated, new_run_folder, start_program, start_worker
from scripts.gpu.cases import is_cuda

TARGET = Target(0.60)  # of a script of diffusers as it comes

Material = Callable[[str, str], Path]


def chosen_peers(checkouts: Sequence[Path], names: Sequence[str], device: str) -> list[tuple[Path, str]]:
    """(checkout, name) of each script to run; without names, of all that can run on the device.

    Raises UserError where a folder is no checkout of a program, lacks a script, or a script can't run.
    """
    found = []
    programs = {checkout: program_of(checkout) for checkout in checkouts}
    for name in names:
        program, peer = PEERS[name]
        if program not in programs.values():
            raise UserError(f"--peers {name}: it is a script of {program.title}; name a checkout of it by --scripts.")
        if peer.needs_cuda and not is_cuda(device):
            raise UserError(f"--peers {name}: it only trains models of published size; add --device cuda.")
    for checkout, program in programs.items():
        for name, peer in program.peers.items():
            if name in names or not (names or (peer.needs_cuda and not is_cuda(device))):
                if not (checkout / peer.path).is_file():
                    raise UserError(f"--scripts {checkout}: it has no {peer.path}; use another version of it.")
                found.append((checkout, name))
    return found


def compare_peer(
    folder: Path,
    checkout: Path,
    name: str,
    how: str,
    device: str,
    blocks: int,
    steps_per_block: int,
    material: Material,
) -> list[Comparison]:
    """One script, in one of its `hows`.

    material: gives the folder of model and images for a family and a device.
    Raises UserError where its environment can't be made, with the reason of pip.
    """
    program, peer = PEERS[name]
    python = python_of(folder, program, checkout)
    place = material(peer.family, device)
    images = len(list(pictures_folder(place).glob("*.png")))
    # what is kept is there once each image has had its turn
    warm_up = math.ceil(images / BATCH_SIZE / steps_per_block) if how == KEPT else 1
    precision = ("model.mixed_precision=bf16", "model.weight_dtype=bfloat16") if is_cuda(device) else ()
    settings = (f"family={peer.family}", *precision, *peer.settings)
    ours = WorkerArguments(place, "lora", steps_per_block, blocks + warm_up, settings=settings)
    with contextlib.ExitStack() as stack:
        run_folder = stack.enter_context(new_run_folder(place))
        command = command_of(python, checkout, name, run_folder, device, ours, how)
        environment = {"HF_HOME": str(run_folder / "hub"), "HF_HUB_OFFLINE": "1"}
        chorus = stack.enter_context(start_worker(CHORUS, ours, device))
        script = stack.enter_context(start_program(Path(peer.path).name, command, device, environment=environment))
        for _ in range(warm_up):
            chorus.turn(), script.turn()
        answers = alternated(blocks, chorus.turn, script.turn)
    what = f"step beside {program.title}' {name}" if program.title.endswith("s") else f"step beside {name}"
    target = TARGET if program.title == "diffusers" and how == AS_IT_COMES else None
    return of_turns(f"{what}, {how}, {device}", answers, steps_per_block, target, ("Chorus", "the script"))


def python_of(folder: Path, program: Program, checkout: Path) -> Path:
    """The interpreter of the program's environment."""
    listed: tuple[str, ...] = ()
    if program.requirements:
        listed = own_requirements((checkout / program.requirements).read_text(encoding="utf-8"))
    return peer_python(folder / f"environment of {program.title}", program.packages, listed)


def own_requirements(text: str) -> tuple[str, ...]:
    """The lines of a file of requirements, without PyTorch and the program itself, which runs from its checkout."""
    lines = [line.partition(" #")[0].strip() for line in text.splitlines()]
    return tuple(line for line in lines if line and not re.match(r"#|-e \.|torch(vision|audio)?\b(?!-)", line))


def command_of(
    python: Path, checkout: Path, name: str, run_folder: Path, device: str, ours: WorkerArguments, how: str
) -> list[str]:
    """What starts the script on the work of Chorus, in whose folder the script itself is told to run."""
    program, peer = PEERS[name]
    work = Work(ours.folder, run_folder, device, ours.total_steps, how)
    checkout = checkout.resolve()
    keeps_for_it = how == KEPT and program.title == "diffusers"  # others have options for it
    start = [str(python), "-m", "scripts.benchmarks.peer_script", "--device", device, "--checkout", str(checkout)]
    start += ["--steps", str(ours.steps), "--turns", str(ours.turns), *(["--keep-encoded"] if keeps_for_it else [])]
    return [*start, str(checkout / peer.path), *map(str, peer.arguments(work))]
