"""Products in 8 bits: close to those of the unquantized numbers, and of each row by itself."""

import pytest
import torch
from torch import nn

from modules.config.quantizations import EIGHT_BITS
from modules.layers import quantized_matmul
from modules.layers.quantized_matmul import matmul_problem, multiply_back, multiply_rows, quantize_rows, scale_sums
from modules.layers.QuantizedLinear import QuantizedLinear, quantize

CPU, GPU = torch.device("cpu"), torch.device("cuda", 0)
# relative, of products with both factors in 8 bits; as in docs/memory.md
ERRORS = {"int8": 0.013, "float8": 0.04}


@pytest.fixture(params=EIGHT_BITS)
def quantization(request) -> str:
    return request.param


def held(quantization, rotation=0, width=128):
    """(a layer that multiplies in 8 bits, the one that it is made of)."""
    torch.manual_seed(0)
    layer = nn.Linear(width, 96).requires_grad_(False)
    quantized = QuantizedLinear.of(layer, quantization, CPU, rotation)
    quantized.in_8_bits = True
    return quantized, layer


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize(("num_rows", "rotation"), [(2, 0), (60, 0), (60, 64)])  # kernels of GPUs take no few
def test_output_and_gradient_are_those_of_the_layer_but_for_the_rounding(quantization, dtype, num_rows, rotation):
    quantized, layer = held(quantization, rotation)
    values = torch.randn(num_rows, 2, 128).to(dtype).requires_grad_()
    exact = values.detach().float().requires_grad_()
    output, expected = quantized(values), layer(exact)
    assert (output.dtype, output.shape) == (dtype, expected.shape)
    gradient = torch.randn(expected.shape)
    output.backward(gradient.to(dtype))
    expected.backward(gradient)
    for found, wanted in ((output, expected), (values.grad, exact.grad)):
        assert 0 < (found.float() - wanted).norm() <= ERRORS[quantization] * wanted.norm()


def test_rotated_inputs_in_int8_are_as_exact_with_outliers_as_without():
    torch.manual_seed(0)
    values = torch.randn(60, 1024)
    values[:, [100, 700]] *= 20
    errors = []
    for rotation in (0, 256):
        quantized, layer = held("int8", rotation, 1024)
        exact = layer(values)
        errors.append((quantized(values) - exact).norm() / exact.norm())
    assert errors[1] <= ERRORS["int8"] < 0.5 * errors[0]


def test_a_row_gives_the_same_whatever_is_in_its_batch():
    quantized, _ = held("int8")
    values = torch.randn(40, 128)
    together = quantized(values)
    values[1:] *= 1000
    assert torch.equal(quantized(values)[0], together[0])
    assert torch.equal(quantized(values[:1])[0], together[0])


@pytest.mark.parametrize("product", [multiply_rows, multiply_back])
def test_large_products_are_computed_some_rows_at_a_time_with_the_same_result(product, monkeypatch):
    weight, scale = quantize(torch.randn(96, 96), "int8")
    options = {"bias": torch.randn(96)} if product is multiply_rows else {}
    rows = torch.randn(100, 96)
    at_once = product(rows, weight, scale, quantization="int8", **options)
    monkeypatch.setattr(quantized_matmul, "_MOST_SUMS", 40 * 96)
    assert torch.equal(product(rows, weight, scale, quantization="int8", **options), at_once)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_what_is_not_finite_stays_so_in_its_row_alone(quantization, value):
    quantized, _ = held(quantization)
    values = torch.randn(3, 128)
    values[1, 5] = value
    finite = quantized(values).isfinite()
    assert finite[[0, 2]].all()
    assert not finite[1].any()


def test_rows_of_zeros_give_the_bias(quantization):
    quantized, layer = held(quantization)
    assert torch.equal(quantized(torch.zeros(2, 128)), layer.bias.expand(2, -1))


def test_what_is_around_the_products_compiles_into_one_kernel_for_any_number_of_rows(quantization, monkeypatch):
    torch._dynamo.reset()
    with monkeypatch.context() as patch:
        patch.setattr("torch.utils._triton.has_triton", lambda: True)
        quantizing, scaling = (quantized_matmul._fused.__wrapped__(CPU, each) for each in (quantize_rows, scale_sums))
    with torch.compiler.set_stance(force_backend="aot_eager"):
        for num_rows in (2, 40, 70):
            rows, columns = torch.randn(num_rows, 96).bfloat16(), torch.rand(1, 96)
            for factors in (None, columns):
                found, expected = (make(rows, factors, quantization) for make in (quantizing, quantize_rows))
                assert all(torch.equal(own.float(), other.float()) for own, other in zip(found, expected, strict=True))
            sums = torch.randint(-(2**20), 2**20, (num_rows, 96), dtype=torch.int32)
            finished = (make(sums, expected[1], columns, None, rows.dtype) for make in (scaling, scale_sums))
            assert torch.equal(*finished)
    torch._dynamo.reset()


# --- whether a device has them ----------------------------------------------------------------------------------------


@pytest.fixture
def on_gpu(monkeypatch):
    """Returns a function that says what a GPU of some compute capability is told, whose products are the CPU's."""
    own = quantized_matmul._errors_of_trial

    def ask(capability, quantization):
        matmul_problem.cache_clear()
        monkeypatch.setattr("torch.cuda.get_device_capability", lambda device: capability)
        monkeypatch.setattr("torch.cuda.get_device_name", lambda device: "A GPU")
        monkeypatch.setattr(quantized_matmul, "_errors_of_trial", lambda device, name: own(CPU, name))
        return matmul_problem(GPU, quantization)

    yield ask
    matmul_problem.cache_clear()


@pytest.mark.parametrize(("quantization", "too_old", "least"), [("int8", (7, 5), (8, 0)), ("float8", (8, 6), (8, 9))])
def test_a_gpu_needs_the_compute_capability_of_the_format(quantization, too_old, least, on_gpu):
    expected = f"needs compute capability {least[0]}.{least[1]} and newer, and A GPU has {too_old[0]}.{too_old[1]}"
    assert on_gpu(too_old, quantization) == expected
    assert on_gpu(least, quantization) == ""


def test_a_device_whose_products_fail_or_are_wrong_is_told_so(quantization, monkeypatch):
    assert matmul_problem(CPU, quantization) == ""
    matmul_problem.cache_clear()
    own = quantized_matmul.multiply_back
    monkeypatch.setattr(quantized_matmul, "multiply_back", lambda *args, **options: own(*args, **options) * 1.1)
    assert matmul_problem(CPU, quantization) == "gives wrong results here"
    matmul_problem.cache_clear()

    def fail(*args, **options):
        raise RuntimeError("CUBLAS_STATUS_NOT_SUPPORTED when calling\nmore")

    monkeypatch.setattr(torch, "_int_mm" if quantization == "int8" else "_scaled_mm", fail)
    assert matmul_problem(CPU, quantization) == "fails here (RuntimeError: CUBLAS_STATUS_NOT_SUPPORTED when calling)"
    matmul_problem.cache_clear()
