"""PyTorch's own example loops, with their arguments kept: TrainingEngine gives the losses that they give.

Sources: pytorch/examples, mnist/main.py and imagenet/main.py (BSD 3-clause), in their essentials. Dropout is seeded in
these loops as the engine seeds it, and everything is in float64, so that only the arithmetic is compared.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.optim.lr_scheduler import StepLR
from torch.utils.data import DataLoader, TensorDataset

from modules.data.draws import torch_seed
from modules.session.TrainCallbacks import TrainCallbacks
from modules.trainer import TrainingEngine

STEPS = 100
SEED = 1


class Losses(TrainCallbacks):
    def __init__(self):
        self.losses = []

    def on_step(self, info):
        self.losses.append(info.loss)


def seed_dropout(step: int) -> None:
    torch.manual_seed(torch_seed(SEED, step, 0, 0, "dropout"))


def engine_losses(model, data, tmp_path, make_optimizer, make_scheduler, criterion, num_epochs, batch_size):
    engine = TrainingEngine(model, device="cpu", output_dir=tmp_path, seed=SEED)
    optimizer, told = make_optimizer(engine.model.parameters()), Losses()
    engine.train(
        DataLoader(data, batch_size=batch_size),
        optimizer=optimizer,
        scheduler=make_scheduler(optimizer),
        criterion=criterion,
        num_epochs=num_epochs,
        callbacks=told,
    )
    return told.losses


class Net(nn.Module):
    """That of mnist/main.py, for images of 8 x 8."""

    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(1, 32, 3, 1)
        self.conv2 = nn.Conv2d(32, 64, 3, 1)
        self.dropout1 = nn.Dropout(0.25)
        self.dropout2 = nn.Dropout(0.5)
        self.fc1 = nn.Linear(256, 128)
        self.fc2 = nn.Linear(128, 10)

    def forward(self, x):
        x = functional.relu(self.conv1(x))
        x = functional.relu(self.conv2(x))
        x = functional.max_pool2d(x, 2)
        x = torch.flatten(self.dropout1(x), 1)
        x = functional.relu(self.fc1(x))
        return functional.log_softmax(self.fc2(self.dropout2(x)), dim=1)


def test_the_mnist_example(tmp_path):
    datasets = pytest.importorskip("sklearn.datasets")
    digits = datasets.load_digits()
    images = torch.from_numpy(digits.images.astype(np.float64))[:640, None]
    data = TensorDataset((images / 16 - 0.1307) / 0.3081, torch.from_numpy(digits.target)[:640])

    def make_optimizer(params):
        return torch.optim.Adadelta(params, lr=1.0)

    def make_scheduler(optimizer):
        return StepLR(optimizer, step_size=1, gamma=0.7)

    def make_model():
        torch.manual_seed(SEED)
        return Net().double()

    model = make_model()
    optimizer = make_optimizer(model.parameters())
    scheduler = make_scheduler(optimizer)
    losses = []
    model.train()
    for _ in range(STEPS // 10):
        for inputs, target in DataLoader(data, batch_size=64):
            seed_dropout(len(losses))
            optimizer.zero_grad()
            loss = functional.nll_loss(model(inputs), target)
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        scheduler.step()
    found = engine_losses(
        make_model(), data, tmp_path, make_optimizer, make_scheduler, functional.nll_loss, STEPS // 10, 64
    )
    assert len(found) == STEPS
    assert losses[-1] < losses[0] / 3
    assert found == pytest.approx(losses, rel=1e-5)


def residual_net() -> nn.Module:
    """Two residual blocks with BatchNorm: what matters of ResNet-18."""

    class Block(nn.Module):
        def __init__(self, channels: int):
            super().__init__()
            self.conv1 = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
            self.bn1 = nn.BatchNorm2d(channels)
            self.conv2 = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
            self.bn2 = nn.BatchNorm2d(channels)

        def forward(self, x):
            out = functional.relu(self.bn1(self.conv1(x)))
            return functional.relu(x + self.bn2(self.conv2(out)))

    torch.manual_seed(SEED)
    stem = [nn.Conv2d(3, 8, 3, stride=2, bias=False), nn.BatchNorm2d(8), nn.ReLU()]
    return nn.Sequential(*stem, Block(8), Block(8), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 10)).double()


def test_the_imagenet_example_on_random_images(tmp_path):
    generator = torch.Generator().manual_seed(SEED)
    images = torch.randn(STEPS // 4 * 8, 3, 16, 16, generator=generator, dtype=torch.float64)
    data = TensorDataset(images, torch.arange(len(images)) % 10)
    criterion = nn.CrossEntropyLoss()

    def make_optimizer(params):
        return torch.optim.SGD(params, 0.1, momentum=0.9, weight_decay=1e-4)

    def make_scheduler(optimizer):
        return StepLR(optimizer, step_size=2, gamma=0.1)

    model = residual_net()
    optimizer = make_optimizer(model.parameters())
    scheduler = make_scheduler(optimizer)
    losses = []
    for _ in range(4):
        model.train()
        for inputs, target in DataLoader(data, batch_size=8):
            loss = criterion(model(inputs), target)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        scheduler.step()
    found = engine_losses(residual_net(), data, tmp_path, make_optimizer, make_scheduler, criterion, 4, 8)
    assert len(found) == STEPS
    assert found == pytest.approx(losses, rel=1e-5)
