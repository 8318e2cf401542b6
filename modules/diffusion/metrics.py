"""Metrics of a batch besides its loss, as named sums over samples.

For display, the sum "x" is divided by the number of samples, or by the sum "x/count" if it exists.
"""

from __future__ import annotations

import torch
from torch import Tensor

NUM_QUARTERS = 4


def loss_by_quarter(losses: Tensor, u: Tensor, real: float) -> dict[str, Tensor]:
    """Sums the losses [B] of each quarter of the timesteps, "loss_t0" (least noise) to "loss_t3".

    u: [B], the noise level of each sample, from 0 (data) to 1 (noise). real: 0 for a placeholder batch, else 1.
    """
    quarter = (u * NUM_QUARTERS).long().clamp(max=NUM_QUARTERS - 1)
    # comparison instead of index_add, which is not deterministic on GPUs
    is_in_BQ = (quarter[:, None] == torch.arange(NUM_QUARTERS, device=u.device)) & bool(real)
    # where() instead of a product, so that a non-finite loss affects only its own quarter
    sums = torch.where(is_in_BQ, losses.detach()[:, None], 0.0).sum(0)
    counts = is_in_BQ.to(losses.dtype).sum(0)
    names = [f"loss_t{number}" for number in range(NUM_QUARTERS)]
    return dict(zip(names, sums, strict=True)) | dict(zip((f"{name}/count" for name in names), counts, strict=True))


def agreement(prediction: Tensor, target: Tensor) -> dict[str, Tensor]:
    """The cosine similarity of prediction and target and the norms of both, summed over the samples."""
    dtype = torch.promote_types(prediction.dtype, torch.float32)
    prediction, target = prediction.detach().to(dtype).flatten(1), target.to(dtype).flatten(1)
    return {
        "cosine": torch.cosine_similarity(prediction, target, dim=1).sum(),
        "prediction_norm": prediction.norm(dim=1).sum(),
        "target_norm": target.norm(dim=1).sum(),
    }
