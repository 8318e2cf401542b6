"""The same training by a loop written by hand, as PyTorch's tutorials have it."""

import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler

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
    ranks = num_ranks()
    is_cuda = device_type() == "cuda"
    device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0"))) if is_cuda else torch.device("cpu")
    model = make_model(arguments).to(device)
    data = make_data(arguments, ranks)
    sampler: DistributedSampler[tuple[torch.Tensor, ...]] | None = None
    if ranks > 1:
        dist.init_process_group("nccl" if is_cuda else "gloo")
        if is_cuda:  # torch's SyncBatchNorm refuses CPU tensors
            model = nn.SyncBatchNorm.convert_sync_batchnorm(model)
        model = DistributedDataParallel(model, device_ids=[device.index] if is_cuda else None)
        sampler = DistributedSampler(data)
    loader = DataLoader(data, batch_size=batch_size(arguments), shuffle=sampler is None, sampler=sampler)
    optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE, fused=True)
    step = 0
    for epoch in range(epochs(arguments)):
        if sampler is not None:
            sampler.set_epoch(epoch)
        total = torch.zeros((), device=device)
        for inputs, target in loader:
            inputs, target = inputs.to(device, non_blocking=True), target.to(device, non_blocking=True)
            loss = cross_entropy(model(inputs), target)
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), CLIP)
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            total += loss.detach()
            step += 1
            turns.after_step(step)
        if ranks > 1:
            dist.all_reduce(total)
        print(epoch, total.item() / (len(loader) * ranks))
    if ranks > 1:
        del model  # before the group: freeing the group of gloo, torch's wrapper can wait for threads that wait for it
        dist.destroy_process_group()


if __name__ == "__main__":
    run(train)
