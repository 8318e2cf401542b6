"""What is shown of a batch beside its loss: sums over its samples, by name.

A sum named "x" is divided by the number of samples, or by the sum named "x/count" where there is one.
"""

from __future__ import annotations

import torch
from torch import Tensor

NUM_PARTS = 4


def loss_by_quarter(losses: Tensor, u: Tensor, real: float) -> dict[str, Tensor]:
    """The losses [B] of each quarter of the timesteps, "loss_t0" (least noise) to "loss_t3".

    u: [B], where between data and noise each sample is. real: 0 for samples that count nowhere, else 1.
    """
    part = (u * NUM_PARTS).long().clamp(max=NUM_PARTS - 1)
    # by comparison: adding by index has no fixed order on a GPU, and no run would give the same sums twice
    is_in_BP = (part[:, None] == torch.arange(NUM_PARTS, device=u.device)) & bool(real)
    # where(), not a product: a loss that is not finite would make all quarters so
    sums = torch.where(is_in_BP, losses.detach()[:, None], 0.0).sum(0)
    counts = is_in_BP.to(losses.dtype).sum(0)
    names = [f"loss_t{number}" for number in range(NUM_PARTS)]
    return dict(zip(names, sums, strict=True)) | dict(zip((f"{name}/count" for name in names), counts, strict=True))


def agreement(prediction: Tensor, target: Tensor) -> dict[str, Tensor]:
    """The angle between prediction and target as its cosine, and the length of both; summed over the samples."""
    dtype = torch.promote_types(prediction.dtype, torch.float32)
    prediction, target = prediction.detach().to(dtype).flatten(1), target.to(dtype).flatten(1)
    return {
        "cosine": torch.cosine_similarity(prediction, target, dim=1).sum(),
        "prediction_norm": prediction.norm(dim=1).sum(),
        "target_norm": target.norm(dim=1).sum(),
    }
