"""The images that the examples train on: handwritten digits, which come with Chorus, and CIFAR-10."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from torch.utils.data import TensorDataset

from modules.config.errors import UserError
from modules.config.installation import ROOT

DIGITS = ROOT / "resources" / "digits" / "digits.npz"
CIFAR10_FILES = {"train": [f"data_batch_{number}.bin" for number in range(1, 6)], "test": ["test_batch.bin"]}
CIFAR10_RECORD = 1 + 3 * 32 * 32  # bytes: the label, then the red, green and blue planes


def load_digits() -> tuple[TensorDataset, TensorDataset]:
    """Training and test set of (image, label): (1, 8, 8) float32 from 0 to 1, and 0 to 9.

    Every fifth of the 1,797 images is for the test. Writers appear in both parts.
    """
    with np.load(DIGITS) as data:
        images = torch.from_numpy(data["images"]).float().unsqueeze(1) / 16
        labels = torch.from_numpy(data["labels"]).long()
    is_test = torch.arange(len(labels)) % 5 == 0
    return TensorDataset(images[~is_test], labels[~is_test]), TensorDataset(images[is_test], labels[is_test])


def load_cifar10(folder: Path) -> tuple[TensorDataset, TensorDataset]:
    """Training and test set of (image, label): (3, 32, 32) float32 from 0 to 1, and 0 to 9.

    folder: cifar-10-batches-bin, the unpacked "binary version" of https://www.cs.toronto.edu/~kriz/cifar.html. (The
    version for Python is pickled; unpickling a downloaded file would run whatever code is in it.)
    Raises UserError where a file is missing or is none of CIFAR-10's.
    """
    return _read_cifar10(folder, "train"), _read_cifar10(folder, "test")


def _read_cifar10(folder: Path, part: str) -> TensorDataset:
    records = []
    for name in CIFAR10_FILES[part]:
        try:
            content = np.fromfile(folder / name, dtype=np.uint8)
        except OSError as error:
            raise UserError(
                f"{folder / name} can't be read ({error.strerror}): --data is the folder cifar-10-batches-bin, the "
                '"binary version" of CIFAR-10.'
            ) from error
        if not len(content) or len(content) % CIFAR10_RECORD or content[::CIFAR10_RECORD].max() > 9:
            raise UserError(f"{folder / name} is not a file of CIFAR-10's binary version: download it again.")
        records.append(content.reshape(-1, CIFAR10_RECORD))
    rows = torch.from_numpy(np.concatenate(records))
    return TensorDataset(rows[:, 1:].reshape(-1, 3, 32, 32).float() / 255, rows[:, 0].long())
