"""Rotary embeddings in few operations, beside diffusers' own functions."""

from __future__ import annotations

import inspect
import sys
import types
from unittest import mock

import pytest
import torch
from diffusers.models import embeddings
from diffusers.models.transformers import transformer_ltx, transformer_ltx2, transformer_wan
from torch import nn

from modules.layers import rotary
from modules.layers.training_passes import compared_prediction
from tests.support.OperationCounter import OperationCounter

BATCH, HEADS, TOKENS, WIDTH = 2, 3, 5, 8


def original(function):
    """diffusers' own, also where a run in this process has replaced it."""
    return getattr(function, "__wrapped__", function)


def within(method):
    """The function that a method of diffusers defines for itself, also where a run has replaced it."""
    (code,) = [one for one in method.__code__.co_consts if getattr(one, "co_name", "") == "apply_rotary_emb"]
    if code.co_names[0].startswith("_turned_in"):
        return original(method.__globals__[code.co_names[0]])
    return types.FunctionType(code, method.__globals__)


HEADWISE, TOKENWISE = original(embeddings.apply_rotary_emb), original(transformer_ltx.apply_rotary_emb)
# (diffusers' function, its arguments, the shape of its values, how many operations in bfloat16 and in float32)
FORMS = {
    "pairs, heads first": (HEADWISE, {}, (BATCH, HEADS, TOKENS, WIDTH), (3, 1)),
    "pairs, tokens first": (HEADWISE, {"sequence_dim": 1}, (BATCH, TOKENS, HEADS, WIDTH), (3, 1)),
    "halves, heads first": (HEADWISE, {"use_real_unbind_dim": -2}, (BATCH, HEADS, TOKENS, WIDTH), (3, 3)),
    "halves, tokens first": (
        HEADWISE,
        {"use_real_unbind_dim": -2, "sequence_dim": 1},
        (BATCH, TOKENS, HEADS, WIDTH),
        (3, 3),
    ),
    "LTX": (TOKENWISE, {}, (BATCH, TOKENS, HEADS * WIDTH), (3, 1)),
    "LTX-2": (original(transformer_ltx2.apply_interleaved_rotary_emb), {}, (BATCH, TOKENS, HEADS * WIDTH), (3, 1)),
    "LTX-2, split": (original(transformer_ltx2.apply_split_rotary_emb), {}, (BATCH, TOKENS, HEADS * WIDTH), (3, 3)),
    "Wan": (within(transformer_wan.WanAttnProcessor.__call__), {}, (BATCH, TOKENS, HEADS, WIDTH), (3, 1)),
}


def frequencies(form):
    """Cosines and sines as diffusers makes them: of one angle for both values of a pair."""
    _, arguments, shape, _ = FORMS[form]
    if form == "LTX-2, split":
        angles = torch.rand(BATCH, HEADS, TOKENS, WIDTH // 2, generator=torch.Generator().manual_seed(1)) * 6
        return angles.cos(), angles.sin()
    rows = (TOKENS,) if len(shape) == 4 else shape[:2]
    angles = torch.rand(*rows, shape[-1] // 2, generator=torch.Generator().manual_seed(1)) * 6
    halves = arguments.get("use_real_unbind_dim") == -2
    angles = torch.cat([angles, angles], -1) if halves else angles.repeat_interleave(2, -1)
    if form == "Wan":
        angles = angles[None, :, None]
    return angles.cos(), angles.sin()


def turned(function, x, pair, arguments):
    takes_two = "freqs_cos" in inspect.signature(function).parameters
    return function(x, *pair) if takes_two else function(x, pair, **arguments)


def values(shape, dtype=torch.float32):
    return torch.randn(shape, generator=torch.Generator().manual_seed(0)).to(dtype)


def results(function, x, pair, arguments):
    """The turned values and the gradient of those given, for unlike gradients that need no rounding."""
    x = x.detach().requires_grad_()
    out = turned(function, x, pair, arguments)
    assert out.dtype == x.dtype
    (out.double() * values(out.shape, torch.bfloat16).double()).sum().backward()
    return out.detach(), x.grad


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("layout", ["plain", "transposed", "odd"])
def test_in_float32_it_computes_what_diffusers_does(form, layout):
    function, arguments, shape, _ = FORMS[form]
    x = values(shape)
    if layout == "transposed":
        x = x.transpose(1, 2).contiguous().transpose(1, 2)
    if layout == "odd":  # neither where it starts nor its rows are a multiple of two values apart
        x = values((*shape[:-1], shape[-1] + 1))[..., 1:]
    pair = frequencies(form)
    expected, found = (results(each, x, pair, arguments) for each in (function, rotary.turning(function)))
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("form", FORMS)
def test_in_bfloat16_it_rounds_once_and_no_worse_than_diffusers(form):
    function, arguments, shape, _ = FORMS[form]
    pair, x = frequencies(form), values(shape, torch.bfloat16)
    exact = results(function, x.float(), pair, arguments)
    of_diffusers, found = (results(each, x, pair, arguments) for each in (function, rotary.turning(function)))
    for one, other, right in zip(found, of_diffusers, exact, strict=True):
        errors = [(each.double() - right.double()).norm() for each in (one, other)]
        assert errors[0] <= 1.01 * errors[1]
        torch.testing.assert_close(one.float(), right, rtol=2**-8, atol=1e-6)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_it_asks_for_fewer_operations(form, dtype):
    function, arguments, shape, numbers = FORMS[form]
    pair, x, turn = frequencies(form), values(shape, dtype), rotary.turning(function)
    turned(turn, x, pair, arguments)  # makes what all layers share

    def launched(function):
        with Launches() as launches:
            turned(function, x, pair, arguments)
        return launches.count

    assert launched(turn) == numbers[dtype == torch.float32] < launched(function)


class Launches(OperationCounter):
    """Views and memory that nothing is written to are no kernels."""

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        if function.is_view or "empty" in function._schema.name or "_unsafe_view" in function._schema.name:
            return function(*args, **(kwargs or {}))
        return super().__torch_dispatch__(function, types, args, kwargs)


def test_samples_are_computed_as_diffusers_does_and_compared_predictions_as_steps():
    form = "pairs, heads first"
    function, _, shape, _ = FORMS[form]
    asked = mock.Mock(wraps=function, __module__=function.__module__, __name__=function.__name__)
    turn, pair, x = rotary.turning(asked), frequencies(form), values(shape)
    in_step = turn(x, pair)
    assert not asked.called
    with compared_prediction():
        assert not torch.is_grad_enabled()
        assert torch.equal(turn(x, pair), in_step)
    assert not asked.called
    with torch.no_grad():
        turn(x, pair)
    assert asked.called


CASES = {
    "float64 values": lambda x, pair: (x.double(), pair),
    "float64 frequencies": lambda x, pair: (x, tuple(each.double() for each in pair)),
    "frequencies that train": lambda x, pair: (x, tuple(each.requires_grad_() for each in pair)),
    "frequencies of each sample": lambda x, pair: (x, tuple(each.expand(1, 1, *each.shape)[0] for each in pair)),
    "three dimensions": lambda x, pair: (x[0], pair),
}


@pytest.mark.parametrize("case", CASES)
def test_what_it_can_not_compute_is_left_to_diffusers(case):
    form = "pairs, heads first"
    function, _, shape, _ = FORMS[form]
    x, pair = CASES[case](values(shape), frequencies(form))
    asked = mock.Mock(return_value="diffusers'", __module__=function.__module__, __name__=function.__name__)
    assert rotary.turning(asked)(x, pair) == "diffusers'"


@pytest.mark.parametrize("form", ["pairs, heads first", "halves, heads first", "LTX", "LTX-2, split", "Wan"])
def test_compiled_code_is_one_graph_without_complex_numbers(form):
    function, arguments, shape, _ = FORMS[form]
    pair, graphs = frequencies(form), []

    def backend(graph, _):
        graphs.append(str(graph.graph))
        return graph

    turn = rotary.turning(function)
    compiled = torch.compile(lambda x: turned(turn, x, pair, arguments), backend=backend, fullgraph=True)
    x = values(shape).requires_grad_()
    assert torch.equal(compiled(x), turned(function, x, pair, arguments))
    assert len(graphs) == 1
    assert "complex" not in graphs[0]


def test_factors_are_made_once_for_all_layers_and_anew_for_other_frequencies():
    form = "pairs, heads first"
    function, _, shape, _ = FORMS[form]
    turn, pair, x = rotary.turning(function), frequencies(form), values(shape)
    with mock.patch.object(torch, "complex", wraps=torch.complex) as made:
        turn(x, pair)
        turn(x, tuple(pair))
        assert made.call_count == 1
        with torch.no_grad():
            pair[1].neg_()  # changed in place
        torch.testing.assert_close(turn(x, pair), function(x, pair))
        other = pair[0], pair[1].neg()  # the same cosines
        torch.testing.assert_close(turn(x, other), function(x, other))
        assert made.call_count == 3


def test_functions_are_replaced_once_where_layers_look_them_up(monkeypatch):
    file = types.ModuleType("made_up_transformer")
    file.apply_rotary_emb, file.apply_rotary_emb_qwen = HEADWISE, "left"
    monkeypatch.setitem(sys.modules, file.__name__, file)
    monkeypatch.setattr(embeddings, "apply_rotary_emb", HEADWISE)
    layer = type("Layer", (nn.Module,), {"__module__": file.__name__})()
    for _ in range(2):
        rotary.fuse_rotary(nn.Sequential(layer))
    assert file.apply_rotary_emb.__wrapped__ is HEADWISE
    assert embeddings.apply_rotary_emb.__wrapped__ is HEADWISE
    assert file.apply_rotary_emb_qwen == "left"


METHOD = """
def __call__(self, x, frequencies):
    def apply_rotary_emb(hidden_states, freqs_cos, freqs_sin):
        x1, x2 = hidden_states.unflatten(-1, (-1, 2)).unbind(-1)
        out = torch.empty_like(hidden_states)
        out[..., 0::2], out[..., 1::2] = x1, {second}
        return out.type_as(hidden_states)
    return apply_rotary_emb(x, *frequencies)
"""


def test_a_function_within_a_method_is_replaced_once_and_its_own_code_computes_the_rest(monkeypatch):
    file = types.ModuleType("diffusers.made_up_transformer")
    exec(METHOD.format(second="7 * x2"), {**vars(file), "torch": torch}, vars(file))
    method = types.FunctionType(vars(file)["__call__"].__code__, vars(file) | {"torch": torch}, "__call__")
    file.Processor = type("Processor", (), {"__module__": file.__name__, "__call__": method})
    monkeypatch.setitem(sys.modules, file.__name__, file)
    layer = type("Layer", (nn.Module,), {"__module__": file.__name__})()
    processor, x, pair = file.Processor(), values((BATCH, TOKENS, HEADS, WIDTH)), frequencies("Wan")
    before = processor(x, pair)
    for _ in range(2):
        rotary.fuse_rotary(nn.Sequential(layer))
    torch.testing.assert_close(processor(x, pair), within(transformer_wan.WanAttnProcessor.__call__)(x, *pair))
    with torch.no_grad():
        assert torch.equal(processor(x, pair), before)
