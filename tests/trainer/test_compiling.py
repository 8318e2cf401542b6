"""Which blocks are compiled, counted by a compiler that returns its input unchanged; and what the real one gives."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import nn
from torch._inductor import metrics

from modules.layers.evaluation_mode import evaluation_mode
from modules.trainer.compiling import compile_blocks


class Block(nn.Module):
    def __init__(self, width: int):
        super().__init__()
        self.layer = nn.Linear(width, width)

    def forward(self, values):
        return self.layer(values) + values


class Denoiser(nn.Module):
    """Has one block of each width."""

    _repeated_blocks = ("Block",)

    def __init__(self, widths):
        super().__init__()
        self.blocks = nn.ModuleList(Block(width) for width in widths)

    def compile_repeated_blocks(self):
        for block in self.blocks:
            block.compile()

    def forward(self, batch: int = 2):
        return sum(block(torch.ones(batch, block.layer.in_features)).sum() for block in self.blocks)


@pytest.fixture
def graphs() -> Iterator[list]:
    """The graphs that were compiled."""
    found = []

    def passed_on(graph, inputs):
        found.append(graph)
        return graph.forward

    torch._dynamo.reset()
    with torch.compiler.set_stance(force_backend=passed_on):
        yield found
    torch._dynamo.reset()


def test_every_width_of_a_block_is_compiled(graphs):
    denoiser = Denoiser(widths=range(2, 14))
    compile_blocks(denoiser)
    denoiser().backward()
    assert len(graphs) == 12


def test_samples_and_validation_run_eagerly_and_training_stays_compiled(graphs):
    denoiser = Denoiser(widths=(2, 3)).train()
    compile_blocks(denoiser)
    expected = denoiser()
    expected.backward()
    assert len(graphs) == 2
    with evaluation_mode(denoiser), torch.no_grad():
        assert denoiser(batch=2) == expected
        denoiser(batch=7)
    assert len(graphs) == 2
    denoiser().backward()
    assert len(graphs) == 2


def test_a_compiled_block_gives_the_values_and_gradients_of_a_plain_one():
    torch.manual_seed(0)
    plain, compiled = Denoiser(widths=(4,)), Denoiser(widths=(4,))
    compiled.load_state_dict(plain.state_dict())
    torch._dynamo.reset()
    compile_blocks(compiled)
    before = metrics.generated_kernel_count
    values = [denoiser() for denoiser in (plain, compiled)]
    torch.testing.assert_close(values[1], values[0])
    for value in values:
        value.backward()
    assert metrics.generated_kernel_count > before
    for (name, parameter), other in zip(compiled.named_parameters(), plain.parameters(), strict=True):
        assert "_orig_mod" not in name
        torch.testing.assert_close(parameter.grad, other.grad)
    torch._dynamo.reset()
