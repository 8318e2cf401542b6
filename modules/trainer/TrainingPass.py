"""What one forward and backward pass leaves behind beside gradients."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor


class TrainingPass(NamedTuple):
    """sums: float64[1 + metrics], of the loss and of each metric over the samples, on the device.
    num_samples: that count in the mean. metrics: the names of the metrics, in the order of `sums`.
    """

    sums: Tensor
    num_samples: int
    metrics: tuple[str, ...]
