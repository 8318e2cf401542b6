"""Learns what is normal with a convolutional autoencoder, and finds what is not: handwritten digits without the zeros.

    python scripts/examples/train_anomaly_detector.py
    accelerate launch --config_file resources/accelerate_config.yaml scripts/examples/train_anomaly_detector.py

The autoencoder squeezes an image into a few numbers and draws it again from them. It is trained on normal images alone,
so an image of another kind comes back changed: the mean squared error of its pixels is its anomaly score. A compressed
variant with a 15th of the weights is trained beside it, to compare: zeros are found with an AUC of 0.99 by either.
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
from PIL import Image
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

from modules.config.errors import UserError
from modules.launch.accelerate import accelerate_option
from modules.sampling.image_grid import image_grid
from modules.session.printing import print_line, print_text
from modules.trainer import TrainingEngine, launch_distributed_training
from scripts.examples.image_data import load_digits
from scripts.number_options import positive, positive_real

AMP_DTYPES = {"no": None, "bf16": torch.bfloat16, "fp16": torch.float16}
WIDTHS = {"full": 32, "compressed": 8}  # channels of the first layer
NUM_SHOWN = 8  # normal images in the grid, and as many anomalies


def main(argv: list[str] | None = None) -> int:
    args = parse(argv)
    try:
        # One rank trains in this process. Under accelerate it is a rank already, which the launch finds out.
        launch_distributed_training(train_both, world_size=args.world_size if args.distributed else 1, args=args)
    except UserError as error:
        # the arguments of the engine, as the options here are called
        text = str(error).replace("pass resume=True", "use --resume")
        print_text(text.replace("another experiment_name", "another --output-dir"), sys.stderr)
        return 2
    return 0


def parse(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Train an anomaly detector on one device or several.")
    parser.add_argument("--anomaly", type=int, default=0, choices=range(10), help="the digit never trained on (0)")
    parser.add_argument("--distributed", action="store_true", help="train on several GPUs, or CPU processes")
    parser.add_argument("--world-size", type=positive, metavar="N", help="how many of them; all GPUs by default")
    parser.add_argument("--epochs", type=int, default=100, metavar="N", help="passes over the normal images (100)")
    parser.add_argument("--batch-size", type=positive, default=128, metavar="N", help="images per GPU at a time (128)")
    parser.add_argument("--lr", type=positive_real, default=3e-3, help="learning rate, on any number of ranks (3e-3)")
    parser.add_argument(
        "--gradient-accumulation-steps", type=positive, metavar="N", help="batches per step (accelerate's, else 1)"
    )
    parser.add_argument("--mixed-precision", choices=AMP_DTYPES, help="precision of the layers (accelerate's, else no)")
    parser.add_argument(
        "--resume", action="store_true", help="continue from the last checkpoints, of a run on any number of GPUs"
    )
    parser.add_argument("--output-dir", type=Path, default=Path("workspace/examples"), metavar="DIR")
    args = parser.parse_args(argv)
    if args.world_size and not args.distributed:
        parser.error("--world-size is the number of ranks of --distributed: add that, or leave it out")
    args.mixed_precision = args.mixed_precision or accelerate_option("mixed_precision") or "no"
    if args.mixed_precision not in AMP_DTYPES:
        parser.error(f"accelerate was given mixed_precision {args.mixed_precision}: use no, bf16 or fp16.")
    if args.gradient_accumulation_steps is None:
        args.gradient_accumulation_steps = int(accelerate_option("gradient_accumulation_steps") or 1)
    return args


def train_both(rank: int, world_size: int, args: argparse.Namespace) -> dict[str, float]:
    """What every rank runs: trains the two variants. Returns the AUC of each."""
    (images, labels), (test_images, test_labels) = (part.tensors for part in load_digits())
    normal, is_anomaly = images[labels != args.anomaly], test_labels == args.anomaly
    drawings: dict[str, Tensor] = {}
    aucs: dict[str, float] = {}
    for name, width in WIDTHS.items():
        engine = train_autoencoder(name, width, normal, world_size, args)
        drawings[name] = engine.predict(DataLoader(TensorDataset(test_images), args.batch_size)).float()
        aucs[name] = area_under_roc((drawings[name] - test_images).square().mean((1, 2, 3)), is_anomaly)
        if engine.is_main_process:
            num_weights = sum(param.numel() for param in engine.model.parameters())
            print_line(f"{name}: AUC {aucs[name]:.4f} for the digit {args.anomaly}, {num_weights:,} weights")
    if engine.is_main_process:
        chosen = torch.cat([(~is_anomaly).nonzero()[:NUM_SHOWN, 0], is_anomaly.nonzero()[:NUM_SHOWN, 0]])
        path = args.output_dir / "reconstructions.png"
        save_grid({"input": test_images[chosen]} | {name: part[chosen] for name, part in drawings.items()}, path)
        print_line(f"Reconstructions, normal digits left and anomalies right: {path}")
    return aucs


def train_autoencoder(
    name: str, width: int, normal: Tensor, world_size: int, args: argparse.Namespace
) -> TrainingEngine:
    torch.manual_seed(42)  # the same first weights on one rank and on many
    engine = TrainingEngine(
        Autoencoder(width),
        distributed=world_size > 1,
        use_amp=args.mixed_precision != "no",
        amp_dtype=AMP_DTYPES[args.mixed_precision],
        experiment_name=f"anomaly_{args.anomaly}_{name}",
        output_dir=args.output_dir,
    )
    optimizer = torch.optim.Adam(engine.model.parameters(), args.lr)
    engine.train(
        DataLoader(TensorDataset(normal), args.batch_size, shuffle=True),
        optimizer=optimizer,
        step_fn=lambda model, batch: F.mse_loss(model(batch[0]).float(), batch[0]),
        scheduler=torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, args.epochs),
        num_epochs=args.epochs,
        gradient_accumulation_steps=args.gradient_accumulation_steps,
        save_best=False,  # anomalies are not there to choose by, and the training loss falls to the end
        resume=args.resume,
    )
    return engine


class Autoencoder(nn.Sequential):
    """Draws images, shape (B, 1, 8, 8), again from `bottleneck` numbers each.

    bottleneck: with more, digits that it has never seen come back well, too.
    """

    def __init__(self, width: int, bottleneck: int = 4):
        super().__init__(
            nn.Conv2d(1, width, kernel_size=3, padding=1),
            nn.ReLU(),
            nn.Conv2d(width, 2 * width, kernel_size=3, stride=2, padding=1),
            nn.ReLU(),
            nn.Conv2d(2 * width, 2 * width, kernel_size=3, stride=2, padding=1),
            nn.ReLU(),
            nn.Flatten(),
            nn.Linear(2 * width * 2 * 2, bottleneck),
            nn.Linear(bottleneck, 2 * width * 2 * 2),
            nn.ReLU(),
            nn.Unflatten(1, (2 * width, 2, 2)),
            nn.ConvTranspose2d(2 * width, 2 * width, kernel_size=4, stride=2, padding=1),
            nn.ReLU(),
            nn.ConvTranspose2d(2 * width, width, kernel_size=4, stride=2, padding=1),
            nn.ReLU(),
            nn.Conv2d(width, 1, kernel_size=3, padding=1),
        )


def area_under_roc(scores: Tensor, is_anomaly: Tensor) -> float:
    """How often an anomaly has a higher score than a normal image, a tie counting half: the area under the ROC curve.

    scores: (N,). is_anomaly: (N,), bool, both kinds in it.
    """
    anomalous, normal = scores[is_anomaly].double()[:, None], scores[~is_anomaly].double()
    return ((anomalous > normal).double() + (anomalous == normal).double() / 2).mean().item()


def save_grid(rows: dict[str, Tensor], path: Path) -> None:
    """Writes a PNG: a named row for each batch of images (B, 1, H, W), dark ink on white paper."""

    def pictures(images_B1HW: Tensor) -> list[Image.Image]:
        gray = (255 * (1 - images_B1HW[:, 0].clamp(0, 1))).round().byte().numpy()
        return [Image.fromarray(one) for one in gray]

    image_grid([pictures(images) for images in rows.values()], row_names=list(rows), scale=4).save(path)


if __name__ == "__main__":
    sys.exit(main())
