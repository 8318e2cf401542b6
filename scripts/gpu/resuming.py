"""Whether a run that was interrupted goes on as if it had not been, with every optimizer that is installed."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from importlib.util import find_spec
from typing import Any

from scripts.gpu.cases import Case, NotHere
from scripts.gpu.tiny_runs import config_of, furthest, train

IN_RAM = ("adamw", "sgd")
MOST = 1e-3  # kernels of a GPU may sum in a different order each time


def resuming(device: str) -> Iterator[Case]:
    from modules.config.optimizers import OPTIMIZERS

    for name in OPTIMIZERS:
        if name == "other":
            continue
        for in_ram in (False, True) if name in IN_RAM else (False,):
            case = f"{name}, state in RAM" if in_ram else name
            yield case, partial(resumed, name, in_ram, device)


def resumed(name: str, in_ram: bool, device: str) -> dict[str, Any]:
    """The losses of three steps and, after a new start, three more are those of six."""
    from modules.config.optimizers import OPTIMIZERS

    facts = OPTIMIZERS[name]
    package = facts.maker.partition(".")[0]
    if facts.package and find_spec(package) is None:
        raise NotHere(f"needs the package {package}")
    rate = 1 if facts.finds_own_step else 1e-4
    settings = [f"optimizer.name={name}", f"optimizer.learning_rate={rate}", "optimizer.max_grad_norm=1"]
    settings += ["method=full", "batch_size=2", f"optimizer.state_in_ram={str(in_ram).lower()}"]
    folder = f"resuming {name} {in_ram}"
    whole = train(config_of(f"{folder}, whole", *settings, "max_steps=6"), device).callbacks.losses
    train(config_of(folder, *settings, "max_steps=3"), device)
    rest = train(config_of(folder, *settings, "max_steps=6"), device, resume=True).callbacks.losses
    off = furthest(rest, whole[3:])
    return {"ok": off < MOST, "difference": off}
