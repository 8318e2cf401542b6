"""The figure that tells the best epoch."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from typing import Literal, get_args

from modules.config.errors import UserError

Mode = Literal["min", "max"]

# Parts of names, between underscores, that say which values are better.
_LOWER = (
    "loss err error errors mse rmse mae mape smape msle nll bce ce ppl perplexity wer cer mer ter fid kid lpips ece "
    "brier distance divergence kl epe hausdorff emd nrmse bpc bpb"
)
_HIGHER = (
    "acc accuracy auc auroc auprc f1 fbeta precision recall sensitivity specificity map ap iou miou jaccard dice psnr "
    "ssim msssim r2 kappa mcc bleu rouge meteor chrf ndcg mrr hits score similarity correlation pearson spearman pck "
    "top1 top5 reward return"
)


class Monitor:
    """name: of a figure of each epoch. mode: whether lower ("min") or higher values are better; None: as its name says.

    otherwise: the mode if the name doesn't say it either.
    Raises UserError for another mode, and if nothing tells it.
    """

    def __init__(self, name: str, mode: Mode | None = None, otherwise: Mode | None = None):
        if mode not in (None, *get_args(Mode)):
            raise UserError(f"mode {mode!r}: use 'min' if lower values of monitor are better, or 'max'.")
        self.name = name
        self.mode = mode or _mode_of(name, otherwise)

    @property
    def spoken(self) -> str:
        return "lower" if self.mode == "min" else "higher"

    def check(self, figures: Iterable[str]) -> None:
        """Raises UserError if it is not among the figures of an epoch."""
        if self.name not in figures:
            raise UserError(f"monitor {self.name!r} is not among the metrics: {', '.join(figures)}.")

    def is_better(self, value: float, best: float | None) -> bool:
        """best: None if there is none yet. NaN is never better."""
        if math.isnan(value) or best is None:
            return not math.isnan(value)
        return value < best if self.mode == "min" else value > best


def _mode_of(name: str, otherwise: Mode | None) -> Mode:
    words = set(re.split(r"[^a-z0-9]+", re.sub(r"([a-z0-9])([A-Z])", r"\1_\2", name).lower()))
    lower, higher = set(_LOWER.split()), set(_HIGHER.split())
    if words & lower and not words & higher:
        return "min"
    if words & higher and not words & lower:
        return "max"
    if otherwise:
        return otherwise
    raise UserError(
        f"monitor {name!r}: the name doesn't tell whether lower or higher values are better; pass mode='min' or 'max'."
    )
