"""Blocks are computed again with the same random numbers, whose state is left alone while a graph is captured."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional

from modules.layers.checkpoints import checkpoint

VALUES = torch.arange(1.0, 9.0)


def gradient(run) -> torch.Tensor:
    torch.manual_seed(0)
    values = VALUES.clone().requires_grad_()
    run(values).sum().backward()
    return values.grad


def drop(values: torch.Tensor) -> torch.Tensor:
    return functional.dropout(values.sin(), 0.5)


def test_a_block_draws_the_same_numbers_when_it_is_computed_again():
    assert torch.equal(gradient(lambda values: checkpoint(drop, values)), gradient(drop))


def test_while_a_graph_is_captured_no_state_of_a_generator_is_read(monkeypatch):
    expected = gradient(torch.sin)
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    monkeypatch.setattr(torch, "get_rng_state", lambda: pytest.fail("read"))
    assert torch.equal(gradient(lambda values: checkpoint(torch.sin, values)), expected)
