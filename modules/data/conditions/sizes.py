"""The original size, crop and bucket of each image, which SDXL's U-Net sees."""

from __future__ import annotations

from typing import TYPE_CHECKING

from modules.data.conditions.ConditionData import ConditionData
from modules.data.image_views import crop_of
from modules.families.conditions import Sizes

if TYPE_CHECKING:
    from torch import Tensor

    from modules.data.conditions.ConditionData import Rows


class _Sizes(ConditionData[Sizes]):
    def given(self, rows: Rows) -> dict[str, Tensor | list[list[Tensor]]]:
        import torch

        return {"sizes": torch.tensor([_sizes(rows, draw[2]) for draw in rows.draws]).float()}


def _sizes(rows: Rows, sample: int) -> tuple[int, ...]:
    """A row of the `sizes` in `Batch.given`."""
    left, top, right, bottom = crop_of(rows.dataset, rows.buckets, sample).box
    height, width = int(rows.dataset.heights[sample]), int(rows.dataset.widths[sample])
    return height, width, top, left, bottom - top, right - left


CONDITION = _Sizes
