"""Which blocks are compiled, counted by a compiler that returns its input unchanged; and what the real one gives."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn
from torch._inductor import metrics

from modules.config.adapters import ADAPTERS
from modules.config.LoraConfig import LoraConfig
from modules.layers.evaluation_mode import evaluation_mode
from modules.trainer import compiling
from modules.trainer.compiling import compile_blocks, compile_with
from modules.weights.adapters.kinds import adapter_kind
from tests.support.fitted_kernels import fitted
from tests.support.make_loop import ADAMW, make_loop


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

    def compile_repeated_blocks(self, dynamic):
        for block in self.blocks:
            block.compile(dynamic=dynamic)

    def forward(self, batch: int = 2):
        return sum(block(torch.ones(batch, block.layer.in_features)).sum() for block in self.blocks)


def loss_of(model, size: int) -> tuple[Tensor, int, dict[str, Tensor]]:
    return model(size), 1, {}


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
    compile_blocks(denoiser, all_sizes=False)
    denoiser().backward()
    assert len(graphs) == 12


@pytest.mark.parametrize("all_sizes", [False, True])
def test_results_do_not_depend_on_which_size_came_first(all_sizes):
    def values(order: tuple[int, ...]) -> dict[int, float]:
        torch._dynamo.reset()
        torch.manual_seed(0)
        denoiser = Denoiser(widths=(4,))
        compile_blocks(denoiser, all_sizes)
        with torch.compiler.set_stance(force_backend=fitted):
            if all_sizes:
                compile_with(make_loop(denoiser, loss_of), [6])
            return {size: denoiser(size).item() for size in (*order, *order)}

    assert values((2, 3, 4)) == values((4, 3, 2))


def test_one_graph_is_for_all_sizes(graphs):
    denoiser = Denoiser(widths=(4,))
    compile_blocks(denoiser, all_sizes=True)
    for size in (4, 7, 4, 9):  # 4: as large as the width
        denoiser(size)
    assert len(graphs) == 1


def test_in_a_graph_for_all_sizes_numbers_of_the_layers_stay_constants(graphs):
    class Scaled(Block):
        def forward(self, values):
            return super().forward(values) * self.scaling["default"]

    block = Scaled(4)
    block.scaling = {"default": 0.3}  # as that of PEFT's layers
    compile_blocks(block, all_sizes=True)
    block(torch.ones(3, 4))
    (graph,) = graphs
    inputs = [node.meta["example_value"] for node in graph.graph.find_nodes(op="placeholder")]
    assert not any(isinstance(value, Tensor) and value.dim() == 0 for value in inputs)


def test_blocks_to_compile_are_those_given_where_the_model_names_none(graphs):
    layers = nn.Sequential(Block(2), Block(2))
    compile_blocks(layers, all_sizes=False, blocks=[layers[1]])
    layers(torch.ones(3, 2))
    assert [part for part in layers.modules() if part._compiled_call_impl] == [layers[1]]
    assert len(graphs) == 1


@pytest.mark.parametrize("fused", [False, True])
def test_compiling_first_leaves_weights_gradients_and_buffers_as_they_are(fused):
    model = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3))
    unclipped = replace(ADAMW, max_grad_norm=0.0)
    loop = make_loop(
        model, lambda model, batch: (model(batch).square().sum(), 1, {}), optimizer=unclipped, fused_backward=fused
    )
    before = {name: value.clone() for name, value in model.state_dict().items()}
    compile_with(loop, [torch.ones(4, 2)])
    assert all(value.equal(before[name]) for name, value in model.state_dict().items())
    assert all(parameter.grad is None for parameter in model.parameters())


def test_a_limit_of_graphs_is_told_once(graphs, monkeypatch):
    monkeypatch.setattr(compiling, "MAX_GRAPHS", 2)
    warnings: list[str] = []
    denoiser = Denoiser(widths=(4,))
    with torch._dynamo.config.patch(recompile_limit=1):
        compile_blocks(denoiser, all_sizes=False, warn=warnings.append)
        for size in range(2, 8):
            denoiser(size)
    assert len(graphs) == 2
    (text,) = warnings
    assert text.startswith("model.compile blocks: torch has reached its limit of graphs")


def test_samples_and_validation_run_eagerly_and_training_stays_compiled(graphs):
    denoiser = Denoiser(widths=(2, 3)).train()
    compile_blocks(denoiser, all_sizes=False)
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
    compile_blocks(compiled, all_sizes=False)
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


@pytest.mark.parametrize("name", [name for name, facts in ADAPTERS.items() if facts.can_compile and name != "lora"])
def test_adapters_that_can_be_compiled_are_part_of_one_graph(name, graphs):
    layers = nn.Sequential(nn.Linear(8, 8), nn.GELU(), nn.Linear(8, 8))
    adapter_kind(name).add_new(layers, ["0", "2"], LoraConfig(adapter=name, rank=2), {})
    values = torch.randn(3, 8, generator=torch.Generator().manual_seed(0))
    expected = layers(values)
    torch.testing.assert_close(torch.compile(layers, fullgraph=True, dynamic=True)(values), expected)
    assert len(graphs) == 1
