"""Runs a training script that is not ours, in turns with another program, and counts its optimizer steps.

    python -m scripts.benchmarks.peer_script --steps 5 --turns 21 --device cpu --checkout DIR SCRIPT [ITS ARGUMENTS]

PyTorch itself tells of each step of any optimizer, so nothing is read from what the script prints, and the script stays
as it is. It runs in its own environment: of Chorus, only worker.py is imported here.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import re
import runpy
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from scripts.benchmarks.worker import Turns

# What encodes images and captions in diffusers' scripts: module, class, method
ENCODERS = (
    ("diffusers", "AutoencoderKL", "encode"),
    ("transformers", "CLIPTextModel", "forward"),
    ("transformers", "CLIPTextModelWithProjection", "forward"),
    ("transformers", "T5EncoderModel", "forward"),
)
MOST_OPERATORS = 10  # of torchvision that are described without its compiled part


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--turns", type=int, required=True)
    parser.add_argument("--device", required=True)
    parser.add_argument("--keep-encoded", action="store_true", help="each image and caption is encoded once")
    parser.add_argument("--checkout", type=Path, required=True, help="the folder in which the script runs")
    parser.add_argument("script", type=Path)
    parser.add_argument("arguments", nargs=argparse.REMAINDER)
    args = parser.parse_args()
    turns = Turns(args.steps, args.steps * args.turns, args.device, world_size=1)
    turns.wait()
    _kept = make_torchvision_importable()
    count_steps(turns, args.steps, args.device)
    if args.keep_encoded:
        keep_what_is_encoded()
    sys.argv = [str(args.script), *args.arguments]
    forget_own_packages()
    os.chdir(args.checkout)
    sys.path.insert(0, str(args.script.parent))
    runpy.run_path(str(args.script), run_name="__main__")


def forget_own_packages() -> None:
    """`scripts` and `modules` are packages of other programs, too."""
    own = Path(__file__).resolve().parents[2]
    sys.path[:] = [place for place in sys.path if Path(place).resolve() != own]
    for name in [name for name in sys.modules if name.partition(".")[0] in ("scripts", "modules")]:
        del sys.modules[name]


def count_steps(turns: Turns, steps: int, device: str) -> None:
    import torch
    from torch.optim.optimizer import register_optimizer_step_post_hook

    number = 0

    def after_step(optimizer: object, arguments: object, options: object) -> None:
        nonlocal number
        number += 1
        if device != "cpu" and number % steps == 0:
            torch.accelerator.synchronize()
        turns.after_step(number)

    register_optimizer_step_post_hook(after_step)


def make_torchvision_importable() -> list[Any]:
    """Also where its compiled part fits another build of PyTorch: the scripts use its transforms alone, in Python.

    Returns what has to live as long as torchvision.
    """
    if importlib.util.find_spec("torchvision") is None:  # the script says so itself, if it needs it
        return []
    import torch

    library = torch.library.Library("torchvision", "FRAGMENT")
    for _ in range(MOST_OPERATORS):
        try:
            importlib.import_module("torchvision")
            break
        except RuntimeError as error:  # it describes an operator that its compiled part would have defined
            missing = re.search(r"operator torchvision::(\w+) does not exist", str(error))
            if missing is None:
                raise
            library.define(f"{missing[1]}(Tensor boxes, Tensor scores, float threshold) -> Tensor")
    return [library]


def keep_what_is_encoded() -> None:
    """Each row of a batch is encoded once, as by trainers with a cache; the scripts have none, or for latents alone."""
    for module, name, method in ENCODERS:
        kind = getattr(importlib.import_module(module), name)
        setattr(kind, method, remembering(getattr(kind, method)))


def remembering(encode: Callable[..., Any]) -> Callable[..., Any]:
    """`encode`, which remembers the rows of its first argument and what they gave."""
    import torch

    rows: dict[tuple[int, tuple[int, ...], float], Any] = {}
    weights: dict[Any, Any] = {}

    def keys(module: object, values: Any) -> list[tuple[int, tuple[int, ...], float]]:
        flat = values.reshape(len(values), -1)
        place = (flat.shape[1], flat.device)
        if place not in weights:
            generator = torch.Generator().manual_seed(0)
            weights[place] = torch.rand(flat.shape[1], dtype=torch.float64, generator=generator).to(flat.device)
        return [(id(module), tuple(values.shape[1:]), key) for key in (flat.double() @ weights[place]).tolist()]

    def remembered(module: Any, values: Any = None, *arguments: Any, **options: Any) -> Any:
        named = values is None and "input_ids" in options
        values = options.pop("input_ids") if named else values
        wanted = keys(module, values)
        if any(key not in rows for key in wanted):
            with torch.no_grad():
                found = encode(module, values, *arguments, **options)
            for number, key in enumerate(wanted):
                rows[key] = pick(found, number)
        return join([rows[key] for key in wanted])

    return remembered


def pick(found: Any, number: int) -> Any:
    """A row of what an encoder gave: tensors, tuples of such, and objects with such."""
    import torch

    if isinstance(found, torch.Tensor):
        return found[number : number + 1].clone()
    if isinstance(found, tuple):
        return tuple(pick(one, number) for one in found)
    if isinstance(found, dict):
        return type(found)(**{name: pick(one, number) for name, one in found.items()})
    if hasattr(found, "parameters") and hasattr(found, "sample"):  # diffusers' distribution of latents
        return type(found)(pick(found.parameters, number))
    return found


def join(rows: list[Any]) -> Any:
    import torch

    first = rows[0]
    if isinstance(first, torch.Tensor):
        return torch.cat(rows)
    if isinstance(first, tuple):
        return tuple(join(list(column)) for column in zip(*rows, strict=True))
    if isinstance(first, dict):
        return type(first)(**{name: join([row[name] for row in rows]) for name in first})
    if hasattr(first, "parameters") and hasattr(first, "sample"):
        return type(first)(torch.cat([row.parameters for row in rows]))
    return first


if __name__ == "__main__":
    main()
