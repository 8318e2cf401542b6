"""Several ranks on one GPU, by gloo, whose ranks may share it, and one rank by NCCL.

What NCCL does between GPUs is not checked by this. The ranks run the scenarios of the tests.
"""

from __future__ import annotations

import atexit
import functools
import json
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

from scripts.gpu.cases import Case, is_cuda
from scripts.gpu.programs import run_program
from scripts.gpu.tiny_runs import config_of, furthest, work_folder

RUN = (
    "batch_size=8",
    "batch_size_mode=global",
    "gradient_accumulation_steps=2",
    "optimizer.max_grad_norm=0.05",
    "backup.at_end=false",
    "enable_multi_gpu=true",
    "max_steps=4",
    "data.caption_dropout=0.1",
)
MIXED = ("model.mixed_precision=bf16", "model.weight_dtype=bfloat16", "model.gradient_checkpointing=true")
SAVING = ("model.denoiser_quantization=int8", "model.blocks_to_swap=3", "model.activation_offloading=true")
FSDP = "distributed_strategy=fsdp"
# Name -> (settings of the runtime, of the run). Chorus refuses to divide a model by gloo on GPUs; here it is a way to
# run the code that does it with CUDA tensors.
KINDS: dict[str, tuple[dict[str, Any], tuple[str, ...]]] = {
    "DDP": ({}, ()),
    "DDP, gradients in bf16": ({"reduce_precision": "bf16"}, ()),
    "DDP, divided updates": ({"divides_updates": True}, ("method=full", "ddp_shard_optimizer=true")),
    "DDP, int8, swapped, offloaded": ({}, (*MIXED, *SAVING)),
    "FSDP": ({"strategy": "fsdp"}, (FSDP,)),
    "FSDP, full": (
        {"strategy": "fsdp", "compute_precision": "bf16"},
        (FSDP, "method=full", "model.mixed_precision=bf16", "model.gradient_checkpointing=true"),
    ),
}
OF_RANKS_ALONE = ("distributed_strategy", "ddp_")
MOST = 2e-3  # ranks sum in another order, and some gradients are rounded to bfloat16
SCENARIO_SECONDS, PROGRAM_SECONDS = 240.0, 240.0


def two_ranks(device: str) -> Iterator[Case]:
    for name in KINDS:
        yield name, partial(compared, name, device)


def compared(name: str, device: str) -> dict[str, Any]:
    """Two ranks have the same losses, which are those of one rank on the same device."""
    from tests.support import rank_scenarios

    sync, settings = KINDS[name]
    config = settings_file(f"two ranks, {name}", *settings)
    ranks = _two_ranks(device).run(rank_scenarios.train, seconds=SCENARIO_SECONDS, config=config, sync=sync)
    losses = [rank["losses"] for rank in ranks]
    alone = _alone(device, tuple(each for each in settings if not each.startswith(OF_RANKS_ALONE)))
    off = furthest(losses[0], alone)
    return {"ok": losses[0] == losses[1] and off < MOST, "difference": off}


@functools.cache
def _two_ranks(device: str) -> Any:
    """They stay, as it takes longest to start them."""
    from tests.support.RankPool import RankPool

    folder = work_folder() / "ranks"
    folder.mkdir()
    pool = RankPool(2, folder, device)
    atexit.register(pool.close)
    return pool


@functools.cache
def _alone(device: str, settings: tuple[str, ...]) -> list[float | None]:
    import torch

    from modules.distributed.Runtime import Runtime
    from tests.support import rank_scenarios

    config = settings_file(f"one rank {len(settings)}", *settings)
    return rank_scenarios.train(lambda **_: Runtime(torch.device(device)), config)["losses"]


def settings_file(name: str, *overrides: str) -> str:
    from modules.config.files import save_config

    path = work_folder() / "settings" / f"{name}.yaml"
    path.parent.mkdir(exist_ok=True)
    save_config(config_of(name, *RUN, *overrides), path)
    return str(path)


# --- NCCL -------------------------------------------------------------------------------------------------------------


def lone_rank(device: str) -> Iterator[Case]:
    yield "DDP, divided updates, CUDA graphs, FSDP", partial(beside_plain, device)


def beside_plain(device: str) -> dict[str, Any]:
    """One rank has the losses of a plain run, by NCCL on a GPU, and gloo works beside it."""
    from tests.support.ports import free_port

    plain = settings_file("plain")
    kinds = {"DDP": (), "divided": (), "graphs": ("model.cuda_graphs=on",), "FSDP": (FSDP,)}
    files = [settings_file(f"lone {name}", *own) for name, own in kinds.items()]
    program = [sys.executable, "-m", "scripts.gpu.lone_rank", device, str(free_port()), plain, *files]
    done = run_program(program, PROGRAM_SECONDS)
    if done.returncode:
        return {"ok": False, "error": done.stderr[-1500:]}
    found = json.loads(done.stdout.splitlines()[-1])
    return {"ok": all(value < MOST for value in found.values()), **found}


# --- train.py ---------------------------------------------------------------------------------------------------------


def ranks_of_train_py(device: str) -> Iterator[Case]:
    yield "two ranks", partial(trained_by_program, device)


def trained_by_program(device: str) -> dict[str, Any]:
    """scripts/train.py starts two ranks on one device, as a user would; their losses are those of one."""
    losses = []
    own = ("distributed_backend=gloo", "device_indexes=[0]") if is_cuda(device) else ()
    for num_ranks in (1, 2):
        name = f"train.py, {num_ranks}"
        options = ["--multi_gpu", "--no_torchrun", "--world_size", str(num_ranks)]
        command = [sys.executable, "scripts/train.py", "--config", settings_file(name, *own), *options]
        done = run_program(command, PROGRAM_SECONDS)
        if done.returncode:
            return {"ok": False, "ranks": num_ranks, "error": done.stderr[-1500:]}
        losses.append(_losses(Path(config_of(name).workspace_dir)))
    off = furthest(losses[1], losses[0])
    return {"ok": off < MOST, "difference": off}


def _losses(folder: Path) -> list[float | None]:
    lines = (folder / "events" / "rank-0.jsonl").read_text(encoding="utf-8").splitlines()
    return [event["loss"] for event in map(json.loads, lines) if event["type"] == "step"]
