"""The same training by accelerate."""

import torch
from accelerate import Accelerator
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader

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


def train(arguments: WorkerArguments, turns: Turns) -> None:
    accelerator = Accelerator(cpu=device_type() == "cpu")
    model = make_model(arguments)
    loader = DataLoader(make_data(arguments, num_ranks()), batch_size=batch_size(arguments), shuffle=True)
    optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE, fused=True)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    step = 0
    for epoch in range(epochs(arguments)):
        total = torch.zeros((), device=accelerator.device)
        for inputs, target in loader:
            loss = cross_entropy(model(inputs), target)
            accelerator.backward(loss)
            accelerator.clip_grad_norm_(model.parameters(), CLIP)
            optimizer.step()
            optimizer.zero_grad()
            total += loss.detach()
            step += 1
            turns.after_step(step)
        accelerator.print(epoch, accelerator.reduce(total, "mean").item() / len(loader))


if __name__ == "__main__":
    run(train)
