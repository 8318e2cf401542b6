"""TrainingEngine under comparison."""

import os

import torch
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader

from modules.session.StepInfo import StepInfo
from modules.session.TrainCallbacks import TrainCallbacks
from modules.trainer import TrainingEngine
from scripts.benchmarks.engine_task import (
    CLIP,
    LEARNING_RATE,
    batch_size,
    device_type,
    epochs,
    make_data,
    make_model,
    run,
)
from scripts.benchmarks.worker import Turns, WorkerArguments, num_ranks


class TakeTurns(TrainCallbacks):
    """Hears of a step when the next one is done: the last turn, too, has as many steps as the others."""

    def __init__(self, turns: Turns, total_steps: int):
        self.turns, self.total_steps = turns, total_steps

    def on_step(self, info: StepInfo) -> None:
        self.turns.after_step(info.step)
        if info.step == self.total_steps:
            os._exit(0)


def train(arguments: WorkerArguments, turns: Turns) -> None:
    # the others can't synchronize BatchNorm on CPUs
    engine = TrainingEngine(
        make_model(arguments),
        distributed=num_ranks() > 1,
        sync_batchnorm=device_type() == "cuda",
        output_dir=arguments.run_folder,
    )
    loader = DataLoader(make_data(arguments, num_ranks()), batch_size=batch_size(arguments), shuffle=True)
    engine.train(
        loader,
        optimizer=torch.optim.AdamW(engine.model.parameters(), lr=LEARNING_RATE, fused=True),
        criterion=cross_entropy,
        clip_grad_norm=CLIP,
        num_epochs=epochs(arguments) + 1,
        callbacks=TakeTurns(turns, arguments.total_steps),
        save_best=False,
        save_last=False,
    )


if __name__ == "__main__":
    run(train)
