"""Matched gradients change no value, and compile into one graph."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from functorch.compile import make_boxed_func
from torch import Tensor, nn
from torch._dynamo.backends.common import aot_autograd
from torch.nn import functional

from modules.distributed.gradient_layouts import attend_with_matched_gradient, match_gradient_layouts

WIDTH, HEADS = 32, 2


class SingleStream(nn.Module):
    """A block that joins the output of its attention with that of an MLP, as FLUX.1 does."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)
        self.mlp = nn.Linear(WIDTH, 2 * WIDTH)
        self.out = nn.Linear(3 * WIDTH, WIDTH)

    def forward(self, tokens: Tensor) -> Tensor:
        query, key, value = self.qkv(tokens).unflatten(-1, (3, HEADS, -1)).permute(2, 0, 3, 1, 4).unbind(0)
        attended = functional.scaled_dot_product_attention(query, key, value).transpose(1, 2).flatten(2)
        return tokens + self.out(torch.cat([attended, self.mlp(tokens)], 2))


@pytest.fixture(autouse=True)
def unmatched() -> Iterator[None]:
    """After each test, gradients are as they were."""
    yield
    match_gradient_layouts(False)
    torch._dynamo.reset()


def gradients(block: nn.Module, num_tokens: int) -> list[Tensor]:
    tokens = torch.randn(2, num_tokens, WIDTH, generator=torch.Generator().manual_seed(num_tokens))
    loss = block(tokens.requires_grad_()).square().sum()
    return list(torch.autograd.grad(loss, [tokens, *block.parameters()]))


def test_matched_gradients_are_the_same_bit_for_bit():
    expected = gradients(SingleStream(), 10)
    match_gradient_layouts(True)
    assert all(map(torch.equal, gradients(SingleStream(), 10), expected))


def test_an_output_without_a_gradient_is_left_alone():
    match_gradient_layouts(True)
    query = torch.ones(1, 2, 3, 4)
    assert functional.scaled_dot_product_attention(query, query, query).grad_fn is None


def test_what_another_library_has_put_in_place_of_attention_stays_in_use(monkeypatch):
    def other(*args):
        return args[0]

    query = torch.ones(1)
    monkeypatch.setattr(functional, "scaled_dot_product_attention", other)
    match_gradient_layouts(False)
    assert functional.scaled_dot_product_attention is other
    match_gradient_layouts(True)
    match_gradient_layouts(True)
    assert functional.scaled_dot_product_attention is attend_with_matched_gradient
    assert functional.scaled_dot_product_attention(query) is query
    match_gradient_layouts(False)
    assert functional.scaled_dot_product_attention is other


@pytest.mark.parametrize(("matched", "row"), [(False, 3 * WIDTH), (True, WIDTH)])
def test_compiled_blocks_match_them_too_without_a_graph_break(matched, row):
    """Also for a second size, for which the compiler takes sizes and strides as unknown. row: stride of a token."""
    rows = []

    def backward(graph, inputs):
        attentions = [node for node in graph.graph.nodes if "attention" in str(node.target)]
        rows.extend(int(node.args[0].meta["val"].stride(2)) for node in attentions)
        return make_boxed_func(graph.forward)

    match_gradient_layouts(matched)
    block = SingleStream()
    compiler = aot_autograd(fw_compiler=lambda graph, inputs: make_boxed_func(graph.forward), bw_compiler=backward)
    compiled = torch.compile(block, backend=compiler, fullgraph=True)
    for num_tokens in (10, 12, 14):
        expected = gradients(block, num_tokens)
        assert all(map(torch.allclose, gradients(compiled, num_tokens), expected))
    assert rows == [row] * 2
