"""Trains a ResNet to recognize handwritten digits, or with --data the images of CIFAR-10, on one device or several.

python scripts/examples/distributed_training_example.py                                 # on one device
python scripts/examples/distributed_training_example.py --distributed --world-size 2    # on two
python scripts/elastic_agent.py --nproc-per-node=2 scripts/examples/distributed_training_example.py
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

if __name__ == "__main__":  # before the imports that take long
    from scripts.terminal import prepare_terminal

    prepare_terminal()

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset, TensorDataset

from modules.config.errors import UserError
from modules.session.printing import print_line, print_text
from modules.trainer import TrainingEngine, launch_distributed_training
from scripts.examples.image_data import load_cifar10, load_digits
from scripts.number_options import positive, positive_real


def main(argv: list[str] | None = None) -> int:
    args = parse(argv)
    try:
        # One rank trains in this process. Under torchrun this process is a rank already, which the launch finds out.
        launch_distributed_training(train, world_size=args.world_size if args.distributed else 1, args=args)
    except UserError as error:
        # the arguments of the engine, as the options here are called
        text = str(error).replace("pass resume=True", "use --resume")
        print_text(text.replace("another experiment_name", "another --output-dir"), sys.stderr)
        return 2
    return 0


def parse(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Train a ResNet on one device or several.")
    parser.add_argument("--data", type=Path, metavar="DIR", help="cifar-10-batches-bin; without it: handwritten digits")
    parser.add_argument("--distributed", action="store_true", help="train on several GPUs, or CPU processes")
    parser.add_argument("--world-size", type=positive, metavar="N", help="how many of them; all GPUs by default")
    parser.add_argument("--epochs", type=int, default=15, metavar="N", help="passes over the training set (15)")
    parser.add_argument("--batch-size", type=positive, default=64, metavar="N", help="images per rank and step (64)")
    parser.add_argument("--lr", type=positive_real, default=0.05, help="learning rate, on any number of ranks (0.05)")
    parser.add_argument("--use-amp", action="store_true", help="mixed precision")
    parser.add_argument("--use-ema", action="store_true", help="test an average of the weights")
    parser.add_argument("--resume", action="store_true", help="continue from the last checkpoint in the output folder")
    parser.add_argument("--output-dir", default="workspace/examples", metavar="DIR", help="(workspace/examples)")
    args = parser.parse_args(argv)
    if args.world_size and not args.distributed:
        parser.error("--world-size is the number of ranks of --distributed: add that, or leave it out")
    return args


def train(rank: int, world_size: int, args: argparse.Namespace) -> float:
    """What every rank runs. Returns the test accuracy, from 0 to 1."""
    torch.manual_seed(42)  # the same first weights on one rank and on many
    if args.data:
        name, (images, test_set) = "cifar10", load_cifar10(args.data)
        train_set = Augmented(images, padding=4, flips=True)
        model = resnet(in_channels=3, width=32, blocks_per_stage=3)
    else:
        name, (images, test_set) = "digits", load_digits()
        train_set = Augmented(images, padding=1, flips=False)  # a mirrored digit is another digit, or none
        model = resnet(in_channels=1, width=16, blocks_per_stage=1)
    engine = TrainingEngine(
        model,
        distributed=world_size > 1,
        use_amp=args.use_amp,
        use_ema=args.use_ema,
        ema_decay=0.99,  # averages over about 100 steps: the default would need far longer trainings
        experiment_name=name,
        output_dir=args.output_dir,
    )
    loader_options = {"batch_size": args.batch_size, "pin_memory": engine.device.type != "cpu"}
    optimizer = torch.optim.SGD(engine.model.parameters(), args.lr, momentum=0.9, weight_decay=5e-4, nesterov=True)
    history = engine.train(
        DataLoader(train_set, shuffle=True, **loader_options),  # of all samples: the engine shares them out
        DataLoader(test_set, **loader_options),
        optimizer=optimizer,
        criterion=nn.CrossEntropyLoss(),
        scheduler=torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, args.epochs),
        num_epochs=args.epochs,
        metrics={"accuracy": lambda output, target: (output.argmax(1) == target).float()},
        save_best=False,  # the best epoch on the test set would be chosen by what it is tested on
        resume=args.resume,
    )
    accuracy = history["accuracy"][-1]
    if engine.is_main_process:
        print_line(f"Test accuracy: {accuracy:.2%}")
    return accuracy


class Augmented(Dataset):
    """A data set whose images are shifted by up to `padding` pixels and, with `flips`, mirrored, anew in each epoch.

    The engine seeds torch's generator for each sample: the same images on any number of ranks, and after a resume.
    """

    def __init__(self, data: TensorDataset, padding: int, flips: bool):
        self.data = data
        self.padding = padding
        self.flips = flips

    def __len__(self) -> int:
        return len(self.data)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        image_CHW, label = self.data[index]
        _, height, width = image_CHW.shape
        top, left = torch.randint(2 * self.padding + 1, (2,)).tolist()
        image_CHW = F.pad(image_CHW, [self.padding] * 4)[:, top : top + height, left : left + width]
        if self.flips and torch.rand(()) < 0.5:
            image_CHW = image_CHW.flip(-1)
        return image_CHW, label


def resnet(in_channels: int, width: int, blocks_per_stage: int, num_classes: int = 10) -> nn.Module:
    """A residual network for small images: three stages, each of twice the channels and half the resolution.

    Source: He et al. 2015, arXiv 1512.03385, section 4.2.
    """
    layers = [conv3x3(in_channels, width), nn.BatchNorm2d(width), nn.ReLU()]
    channels = width
    for stage in range(3):
        for block in range(blocks_per_stage):
            out_channels, stride = width * 2**stage, 2 if stage > 0 and block == 0 else 1
            layers.append(ResidualBlock(channels, out_channels, stride))
            channels = out_channels
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, num_classes))


class ResidualBlock(nn.Module):
    """Two convolutions, added to their input."""

    def __init__(self, in_channels: int, out_channels: int, stride: int):
        super().__init__()
        self.convolutions = nn.Sequential(
            conv3x3(in_channels, out_channels, stride),
            nn.BatchNorm2d(out_channels),
            nn.ReLU(),
            conv3x3(out_channels, out_channels),
            nn.BatchNorm2d(out_channels),
        )
        self.shortcut: nn.Module = nn.Identity()
        if in_channels != out_channels:
            convolution = nn.Conv2d(in_channels, out_channels, kernel_size=1, stride=stride, bias=False)
            self.shortcut = nn.Sequential(convolution, nn.BatchNorm2d(out_channels))

    def forward(self, features_BCHW: Tensor) -> Tensor:
        return F.relu(self.convolutions(features_BCHW) + self.shortcut(features_BCHW))


def conv3x3(in_channels: int, out_channels: int, stride: int = 1) -> nn.Conv2d:
    return nn.Conv2d(in_channels, out_channels, kernel_size=3, stride=stride, padding=1, bias=False)


if __name__ == "__main__":
    sys.exit(main())
