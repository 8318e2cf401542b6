"""Tokens of a mixture of experts, where a model of diffusers routes them in a way that can't be trained."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor, nn


def route_tokens(experts: nn.ModuleList, tokens: Tensor, expert_of: Tensor, weights: Tensor) -> Tensor:
    """The weighted sum of each token's experts; all of them run, even without a token, so that all get gradients.

    tokens: [tokens, width]. expert_of [tokens * K], weights [tokens * K, 1]: of the first token's K experts, then of
    the second's and so on. Waits for the device once, because the number of tokens of each expert depends on values.
    """
    import torch

    result, count = tokens.new_zeros(tokens.shape), len(expert_of) // len(tokens)
    numbers = torch.arange(len(experts), device=expert_of.device)
    sizes = (expert_of.unsqueeze(-1) == numbers).sum(0).tolist()
    for expert, places in zip(experts, expert_of.argsort(stable=True).split(sizes), strict=True):
        rows = places // count
        result = result.index_add(0, rows, (expert(tokens[rows]) * weights[places]).to(result.dtype))
    return result
