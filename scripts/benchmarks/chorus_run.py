"""Chorus under comparison: the trainer as a run has it, with its events, terminal lines and TensorBoard.

    python -m scripts.benchmarks.chorus_run --folder DIR --run-folder DIR --method lora --steps 5 --turns 20

Under torchrun it is one of several ranks.
"""

from __future__ import annotations

import os
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

from scripts.benchmarks.material import model_folder, picture_size, pictures_folder
from scripts.benchmarks.worker import (
    BATCH_SIZE,
    BF16,
    COMPILED,
    LEARNING_RATE,
    LORA_RANK,
    MAX_GRAD_NORM,
    SHARDED,
    Turns,
    WorkerArguments,
    num_ranks,
)

if TYPE_CHECKING:
    from modules.config.TrainConfig import TrainConfig
    from modules.session.RunFolder import RunFolder
    from modules.session.TrainCallbacks import TrainCallbacks
    from modules.trainer.GenericTrainer import GenericTrainer


def train(arguments: WorkerArguments) -> None:
    from modules.config.files import apply_overrides, config_from_values
    from modules.session.RunFolder import RunFolder
    from modules.trainer.Action import Action
    from modules.trainer.DistributedTrainer import DistributedTrainer
    from modules.trainer.heap import keep_freed_memory
    from modules.trainer.Trigger import Trigger

    switched = [setting for switch in arguments.switches for setting in settings_of(switch, arguments.method)]
    config = config_from_values(apply_overrides(run_values(arguments), (*switched, *arguments.settings)))
    folder = RunFolder(config.workspace_dir)
    folder.create()
    with ExitStack() as stack:
        trainer = make_trainer(config, make_callbacks(folder, stack))
        if trainer.runtime.device.type == "cpu":
            keep_freed_memory()
        turns = Turns(arguments.steps, arguments.total_steps, trainer.runtime.device.type, trainer.runtime.world_size)
        trainer.start()
        # the loop has read the step's figures from the device before it runs an action
        trainer.loop.actions["turn"] = Action(Trigger(arguments.steps, "steps"), lambda: turns.after_step(trainer.step))
        turns.wait()
        trainer.train()
        if isinstance(trainer, DistributedTrainer):
            trainer.leave()


def settings_of(switch: str, method: str) -> tuple[str, ...]:
    if switch == BF16:
        frozen = ("model.weight_dtype=bfloat16",) if method == "lora" else ()
        return ("model.mixed_precision=bf16", *frozen)
    return {COMPILED: ("model.compile=blocks",), SHARDED: ("distributed_strategy=fsdp",)}[switch]


def make_trainer(config: TrainConfig, callbacks: TrainCallbacks) -> GenericTrainer:
    if num_ranks() > 1:
        from modules.trainer.DistributedTrainer import DistributedTrainer

        return DistributedTrainer(config, callbacks, local_rank=int(os.environ["LOCAL_RANK"]))
    from modules.trainer.GenericTrainer import GenericTrainer

    return GenericTrainer(config, callbacks)


def make_callbacks(folder: RunFolder, stack: ExitStack) -> TrainCallbacks:
    """What is told of a run, as a run has it; `stack` closes it."""
    from modules.loggers.TensorBoardLogger import TensorBoardLogger
    from modules.session.EventCallbacks import EventCallbacks
    from modules.session.events import EventWriter
    from modules.session.TerminalCallbacks import TerminalCallbacks
    from modules.session.TrainCallbacks import CallbackList

    rank = int(os.environ.get("RANK", "0"))
    events = EventCallbacks(stack.enter_context(EventWriter(folder.event_path(rank), rank=rank)))
    if rank > 0:
        return events
    tensorboard = TensorBoardLogger(folder.tensorboard_dir)
    stack.callback(tensorboard.close)
    return CallbackList([TerminalCallbacks(), events, tensorboard])


def run_values(arguments: WorkerArguments) -> dict[str, Any]:
    """The settings under which Chorus does what the loop written by hand does."""
    size = picture_size(arguments.folder)
    return {
        "method": arguments.method,
        "workspace_dir": str(arguments.run_folder / "run"),
        "cache_dir": str((arguments.run_folder if arguments.cold else arguments.folder) / "cache"),
        "epochs": arguments.total_steps,
        "max_steps": arguments.total_steps,
        "batch_size": BATCH_SIZE,
        "enable_multi_gpu": num_ranks() > 1,
        "distributed_backend": "auto",
        "lr_scaling": "none",
        "model": {"base": str(model_folder(arguments.folder))},
        "lora": {"rank": LORA_RANK, "alpha": float(LORA_RANK)},
        "data": {"resolution": size, "bucket_step": 8},
        "concepts": [{"path": str(pictures_folder(arguments.folder))}],
        "optimizer": {"learning_rate": LEARNING_RATE, "max_grad_norm": MAX_GRAD_NORM},
    }


if __name__ == "__main__":
    train(WorkerArguments.parse())
