"""TrainingEngine under comparison."""

import torch
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader

from modules.session.TrainCallbacks import TrainCallbacks
from modules.trainer import TrainingEngine
from scripts.benchmarks.engine_task import BATCH, CLIP, LEARNING_RATE, epochs, make_data, make_model
from scripts.benchmarks.worker import Turns, WorkerArguments, num_ranks


class TakeTurns(TrainCallbacks):
    def __init__(self, turns: Turns):
        self.turns = turns

    def on_step(self, info):
        self.turns.after_step(info.step)


def train(arguments: WorkerArguments, turns: Turns) -> None:
    # the others can't synchronize BatchNorm on CPUs
    engine = TrainingEngine(
        make_model(),
        distributed=num_ranks() > 1,
        sync_batchnorm=torch.cuda.is_available(),
        output_dir=arguments.run_folder,
    )
    loader = DataLoader(make_data(arguments, num_ranks()), batch_size=BATCH, shuffle=True)
    engine.train(
        loader,
        optimizer=torch.optim.AdamW(engine.model.parameters(), lr=LEARNING_RATE, fused=True),
        criterion=cross_entropy,
        clip_grad_norm=CLIP,
        num_epochs=epochs(arguments),
        callbacks=TakeTurns(turns),
        save_best=False,
        save_last=False,
    )


if __name__ == "__main__":
    arguments = WorkerArguments.parse()
    turns = Turns(arguments, "cuda" if torch.cuda.is_available() else "cpu", num_ranks())
    turns.wait()
    train(arguments, turns)
