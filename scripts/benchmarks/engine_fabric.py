"""The same training by Lightning Fabric; needs `pip install lightning-fabric`."""

import torch
from lightning_fabric import Fabric
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
    fabric = Fabric(accelerator=device_type(), devices=num_ranks(), strategy="ddp" if num_ranks() > 1 else "auto")
    fabric.launch()
    model = make_model(arguments)
    optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE, fused=True)
    model, optimizer = fabric.setup(model, optimizer)
    loader = DataLoader(make_data(arguments, num_ranks()), batch_size=batch_size(arguments), shuffle=True)
    loader = fabric.setup_dataloaders(loader)
    step = 0
    for epoch in range(epochs(arguments)):
        if num_ranks() > 1:
            loader.sampler.set_epoch(epoch)
        total = torch.zeros((), device=fabric.device)
        for inputs, target in loader:
            loss = cross_entropy(model(inputs), target)
            fabric.backward(loss)
            torch.nn.utils.clip_grad_norm_(model.parameters(), CLIP)
            optimizer.step()
            optimizer.zero_grad()
            total += loss.detach()
            step += 1
            turns.after_step(step)
        fabric.print(epoch, fabric.all_reduce(total).item() / len(loader))


if __name__ == "__main__":
    run(train)
