"""Tokens of a mixture of experts, where a model of diffusers routes them in a way that can't be trained."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor, nn


def route_tokens(experts: nn.ModuleList, tokens: Tensor, expert_of: Tensor, weights: Tensor) -> Tensor:
    """The weighted sum of each token's experts; all of them run, even without a token, so that all get gradients.

    tokens: [tokens, width]. expert_of [tokens * K], weights [tokens * K, 1]: of the first token's K experts, then of
    the second's and so on. Waits for the device once per expert, whose number of tokens depends on values.
    """
    result, count = tokens.new_zeros(tokens.shape), len(expert_of) // len(tokens)
    for number, expert in enumerate(experts):
        places = (expert_of == number).nonzero().flatten()
        rows = places // count
        result = result.index_add(0, rows, (expert(tokens[rows]) * weights[places]).to(result.dtype))
    return result
