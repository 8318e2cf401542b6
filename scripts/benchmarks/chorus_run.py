"""Chorus under comparison: the trainer as a run has it, with its events, terminal lines and TensorBoard.

    python -m scripts.benchmarks.chorus_run --folder DIR --method lora --steps 5 --turns 20
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

from scripts.benchmarks.material import model_folder, picture_size, pictures_folder
from scripts.benchmarks.worker import (
    BATCH_SIZE,
    LEARNING_RATE,
    LORA_RANK,
    MAX_GRAD_NORM,
    Turns,
    WorkerArguments,
)


def train(arguments: WorkerArguments, run_folder: Path) -> None:
    from modules.config.files import config_from_values
    from modules.session.EventCallbacks import EventCallbacks
    from modules.session.events import EventWriter
    from modules.session.RunFolder import RunFolder
    from modules.session.TerminalCallbacks import TerminalCallbacks
    from modules.session.TrainCallbacks import CallbackList
    from modules.trainer.GenericTrainer import GenericTrainer
    from modules.trainer.heap import keep_freed_memory
    from modules.trainer.TensorBoardCallbacks import TensorBoardCallbacks
    from modules.trainer.TrainingEngine import Action
    from modules.trainer.Trigger import Trigger

    config = config_from_values(run_values(arguments, run_folder))
    folder = RunFolder(config.workspace_dir)
    folder.create()
    with EventWriter(folder.event_path(0), rank=0) as writer:
        tensorboard = TensorBoardCallbacks(folder.tensorboard_dir)
        trainer = GenericTrainer(config, CallbackList([TerminalCallbacks(), EventCallbacks(writer), tensorboard]))
        if trainer.runtime.device.type == "cpu":
            keep_freed_memory()
        turns = Turns(arguments, trainer.runtime.device.type)
        trainer.start()
        # the engine has read the step's figures from the device before it runs an action
        trainer.actions["turn"] = Action(Trigger(arguments.steps, "steps"), lambda: turns.after_step(trainer.step))
        turns.wait()
        trainer.train()
        tensorboard.close()


def run_values(arguments: WorkerArguments, run_folder: Path) -> dict[str, Any]:
    """The settings under which Chorus does what the loop written by hand does."""
    size = picture_size(arguments.folder)
    return {
        "method": arguments.method,
        "workspace_dir": str(run_folder / "run"),
        "cache_dir": str((run_folder if arguments.cold else arguments.folder) / "cache"),
        "epochs": arguments.total_steps,
        "max_steps": arguments.total_steps,
        "batch_size": BATCH_SIZE,
        "model": {"base": str(model_folder(arguments.folder))},
        "lora": {"rank": LORA_RANK, "alpha": float(LORA_RANK)},
        "data": {"resolution": size, "bucket_step": 8},
        "concepts": [{"path": str(pictures_folder(arguments.folder))}],
        "optimizer": {"learning_rate": LEARNING_RATE, "max_grad_norm": MAX_GRAD_NORM},
    }


def main() -> None:
    arguments = WorkerArguments.parse()
    with tempfile.TemporaryDirectory(prefix="run-", dir=arguments.folder) as run_folder:
        train(arguments, Path(run_folder))


if __name__ == "__main__":
    main()
