"""Counts the attentions of a family's published denoiser, for resources/families.json.

They are counted where the denoiser calls torch.nn.functional.scaled_dot_product_attention, as all of diffusers' do,
for two images whose texts differ in length, so that those have masks that hide the padding of a text.
"""

from __future__ import annotations

from collections import Counter
from typing import Any
from unittest import mock

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from modules.families.Family import Family
from scripts.model_counts import mixed_precision
from scripts.published_models import build_denoiser, denoiser_call

SIDE = 256  # of the images, in pixels: the number of attentions does not depend on it, and masks of pairs do


def count_attentions(family: Family) -> dict[str, Any]:
    """FamilyInfo.attention says what it is."""
    denoiser = build_denoiser(family).float().eval()
    kinds: Counter[tuple[int, bool]] = Counter()
    linear = 0
    calls_before: list[int] = []  # of the modules that compute an attention, of which some hold others

    def enter(module: nn.Module, args: Any) -> None:
        calls_before.append(kinds.total())

    def leave(module: nn.Module, args: Any, output: Any) -> None:
        nonlocal linear
        linear += calls_before.pop() == kinds.total()

    for module in denoiser.modules():
        if hasattr(module, "processor"):
            module.register_forward_pre_hook(enter)
            module.register_forward_hook(leave)
    with torch.no_grad(), mixed_precision():
        attend = F.scaled_dot_product_attention

        def attend_counted(
            query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None, *args: Any, **_: Any
        ) -> Tensor:
            kinds[query.shape[-1], attn_mask is not None] += 1
            return attend(query, key, value)

        with mock.patch.object(F, "scaled_dot_product_attention", attend_counted):
            denoiser_call(family, SIDE, with_padding=True)(denoiser)
    listed = [{"width": width, "masked": masked, "count": count} for (width, masked), count in sorted(kinds.items())]
    return {"kinds": listed, "linear": linear}
