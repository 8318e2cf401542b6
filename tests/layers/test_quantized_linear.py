"""Quantized layers: what they compute, and what they keep for the backward pass."""

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from modules.config.quantizations import EIGHT_BITS, QUANTIZATIONS
from modules.layers import QuantizedLinear as quantized_linear
from modules.layers.QuantizedLinear import QuantizedLinear

CPU = torch.device("cpu")
# The largest error of a layer's weight, relative to the weight, for normally distributed weights.
ERRORS = {"int8": 0.01, "float8": 0.04, "nf4": 0.11}


@pytest.fixture(params=QUANTIZATIONS)
def quantization(request) -> str:
    if package := QUANTIZATIONS[request.param].package:
        pytest.importorskip(package, reason="an optional package")
    return request.param


def linear(dtype: torch.dtype = torch.float32, width: int = 128) -> nn.Linear:
    torch.manual_seed(0)
    return nn.Linear(width, 96, dtype=dtype).requires_grad_(False)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_a_layer_computes_as_with_its_dequantized_weight_which_is_close_to_the_original(quantization, dtype):
    layer = linear(dtype)
    quantized = QuantizedLinear.of(layer, quantization, CPU)
    weight = quantized.dequantize()
    assert weight.dtype == dtype
    assert (weight - layer.weight).float().norm() <= ERRORS[quantization] * layer.weight.float().norm()
    values, plain_values = (torch.randn(3, 5, 128, dtype=dtype, requires_grad=True) for _ in range(2))
    plain_values.data.copy_(values.data)
    output, expected = quantized(values), nn.functional.linear(plain_values, weight, layer.bias)
    torch.testing.assert_close(output, expected)  # kernels may depend on where a weight lies
    output.square().sum().backward()
    expected.square().sum().backward()
    torch.testing.assert_close(values.grad, plain_values.grad)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("kind", EIGHT_BITS)
def test_a_rotated_layer_gives_the_weight_and_the_products_of_one_that_is_not(kind, dtype):
    layer = linear(dtype)
    held = QuantizedLinear.of(layer, kind, CPU, 16)
    with torch.autocast("cpu", torch.bfloat16):  # as adapters that need the weight ask for it
        weight = held.dequantize()
    assert weight.dtype == dtype
    assert (weight - layer.weight).float().norm() <= ERRORS[kind] * layer.weight.float().norm()
    assert not torch.equal(held.weight, QuantizedLinear.of(layer, kind, CPU).weight)
    values = torch.randn(3, 5, 128, dtype=dtype, requires_grad=True)
    output, expected = held(values), nn.functional.linear(values, weight, layer.bias)
    for found, wanted in ((output, expected), (_gradient(output, values), _gradient(expected, values))):
        assert (found - wanted).float().norm() <= 4 * torch.finfo(dtype).eps * wanted.float().norm()


def _gradient(output, values):
    return torch.autograd.grad(output.float().square().sum(), values)[0]


@pytest.mark.parametrize("width", [96, 128])  # of rows with a part of a block of nf4, and with whole ones
def test_a_weight_is_quantized_some_rows_at_a_time_as_it_is_at_once(quantization, width, monkeypatch):
    weight = linear(torch.bfloat16, width).weight
    at_once = quantized_linear.quantize(weight, quantization, 16)
    for most in ("_MOST_VALUES", "_MOST_VALUES_NF4"):
        monkeypatch.setattr(quantized_linear, most, 5 * width)
    in_parts = quantized_linear.quantize(weight, quantization, 16)
    assert all(map(torch.equal, in_parts, at_once))


def test_nf4_takes_little_memory_on_the_cpu_beside_its_result():
    pytest.importorskip("bitsandbytes", reason="an optional package")
    with QuantizedAtOnce() as seen:
        quantized_linear.quantize(torch.ones(2**9, 2**11, dtype=torch.bfloat16), "nf4")
    assert seen.counts == [2**19, 2**19]  # of which bitsandbytes makes several copies in float32


class QuantizedAtOnce(TorchDispatchMode):
    """How many values bitsandbytes gets in each call."""

    def __init__(self):
        super().__init__()
        self.counts = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        if "quantize_4bit" in function._schema.name:
            self.counts.append(args[0].numel())
        return function(*args, **(kwargs or {}))


def test_zero_weights_stay_zero(quantization):
    layer = linear()
    layer.weight[:] = 0
    assert not QuantizedLinear.of(layer, quantization, CPU).dequantize().any()


def test_autocast_lowers_the_precision_of_a_quantized_layer(quantization):
    with torch.autocast("cpu", torch.bfloat16):
        assert QuantizedLinear.of(linear(), quantization, CPU)(torch.randn(2, 128)).dtype == torch.bfloat16


def test_nothing_but_the_quantized_weight_is_kept_for_the_backward_pass(quantization):
    layer = QuantizedLinear.of(linear(torch.bfloat16), quantization, CPU)
    own = {parameter.untyped_storage()._cdata for parameter in layer.parameters()}
    kept = []
    values = torch.randn(2, 128, dtype=torch.bfloat16, requires_grad=True)
    with torch.autograd.graph.saved_tensors_hooks(kept.append, lambda tensor: tensor):
        layer(values)
    assert [tensor.shape for tensor in kept if tensor.untyped_storage()._cdata not in own] == []


def test_a_cast_of_the_model_leaves_quantized_weights_alone(quantization):
    layer = QuantizedLinear.of(linear(torch.bfloat16), quantization, CPU)
    before = layer.weight.clone()
    assert torch.equal(layer.half().weight, before)


@pytest.mark.parametrize(("in_8_bits", "rotation"), [(False, 0), (True, 0), (True, 64)])
def test_a_quantized_layer_compiles_into_one_graph_for_both_passes(quantization, in_8_bits, rotation):
    if in_8_bits and quantization not in EIGHT_BITS:
        pytest.skip("has no products of its own")
    layer = QuantizedLinear.of(linear(), quantization, CPU, rotation)
    layer.in_8_bits = in_8_bits
    torch._dynamo.reset()
    compiled = torch.compile(layer, backend="aot_eager", fullgraph=True)
    values = torch.randn(3, 128, requires_grad=True)
    (gradient,) = torch.autograd.grad(compiled(values).square().sum(), values)
    (expected,) = torch.autograd.grad(layer(values).square().sum(), values)
    torch.testing.assert_close(gradient, expected)
    torch._dynamo.reset()
