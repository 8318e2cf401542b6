"""Frozen linear layers whose weights are held in 8 or 4 bits.

int8 and float8 need PyTorch only. The layers of torchao are not used for them: they keep a dequantized copy of each
weight for the backward pass, so that without gradient checkpointing a LoRA would take more memory than without
quantization. bitsandbytes supplies the kernels of nf4.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from modules.layers.dequantize import dequantize
from modules.layers.hadamard import rotate
from modules.layers.quantized_formats import BLOCK, FLOAT8
from modules.layers.quantized_matmul import multiply_back, multiply_rows

_INT8_MAX = 127
_MOST_VALUES = 2**22  # that are quantized at a time
_MOST_VALUES_NF4 = 2**19  # on the CPU, where bitsandbytes takes 20 bytes more for each of them


class Form(NamedTuple):
    """How a quantized weight is held and used.

    quantization, shape: as of QuantizedLinear. in_8_bits: whether the products of an int8 or a float8 weight are
        computed in 8 bits, with quantized inputs and gradients, or with the dequantized weight. rotation: the size of
        the groups in which the rows of the weight and the inputs are rotated; 0 if they are not. See `hadamard`.
    """

    quantization: str
    shape: tuple[int, int]
    in_8_bits: bool = False
    rotation: int = 0


class QuantizedLinear(nn.Linear):
    """A frozen linear layer that dequantizes its weight in each pass and computes in the precision of its input.

    With `in_8_bits`, products are computed in 8 bits instead: see `quantized_matmul`. With a rotation, as in `Form`,
    the inputs are rotated first.

    quantization: "int8" (symmetric) or "float8" (e4m3), with a scale per output, or "nf4" (Dettmers et al. 2023, arXiv
        2305.14314, section 3), with a scale per 64 weights; or a format of GGUF files, as "GGUF Q4_0".
    weight: int8[out, in], also for the bits of float8; int8[out * in / 2, 1] for nf4, with two values per byte; the
        bytes in a GGUF file. No cast of the model changes it, and T5 does not cast the input of a layer to the dtype of
        its weight if that is int8.
    scale: float32[out, 1]; for nf4 float32[blocks]; for GGUF, which has its scales among the bytes, what
        `gguf_constants` gives.
    compute_dtype: of the original weight. PEFT reads it to create adapters.
    """

    def __init__(
        self,
        shape: tuple[int, int],
        quantization: str,
        weight: Tensor,
        scale: Tensor,
        bias: Tensor | None,
        compute_dtype: torch.dtype,
        rotation: int = 0,
    ):
        """shape: (out, in). rotation: of the weight, as in Form."""
        nn.Module.__init__(self)  # the one of Linear would allocate a weight
        self.out_features, self.in_features = shape
        self.quantization = quantization
        self.in_8_bits = False
        self.rotation = rotation
        self.compute_dtype = compute_dtype
        self.weight = nn.Parameter(weight, requires_grad=False)
        self.scale = nn.Parameter(scale, requires_grad=False)
        self.register_parameter("bias", None if bias is None else nn.Parameter(bias, requires_grad=False))

    @classmethod
    def of(cls, layer: nn.Linear, quantization: str, device: torch.device, rotation: int = 0) -> QuantizedLinear:
        """A copy of `layer` on `device`, where its weight is rotated, as Form says, and quantized."""
        weight, scale = quantize(layer.weight.detach().to(device), quantization, rotation)
        bias = None if layer.bias is None else layer.bias.detach().to(device)
        shape = layer.out_features, layer.in_features
        return cls(shape, quantization, weight, scale, bias, layer.weight.dtype, rotation)

    @property
    def W_q(self) -> Tensor:
        """The name by which PEFT recognizes layers whose weight it has to `dequantize`, which DoRA needs."""
        return self.weight

    def dequantize(self, dtype: torch.dtype | None = None) -> Tensor:
        """[out, in], for inputs that are not rotated; in the precision of the original weight by default."""
        dtype = dtype or self.compute_dtype
        weight = dequantize(self.weight, self.scale, self.quantization, self.form.shape, dtype)
        with torch.autocast(weight.device.type, enabled=False):  # which would lower the precision
            return rotate(weight, self.rotation)

    def forward(self, values: Tensor) -> Tensor:
        device = values.device.type
        if torch.is_autocast_enabled(device):
            values = values.to(torch.get_autocast_dtype(device))
        bias = None if self.bias is None else self.bias.to(values.dtype)
        return _Multiply.apply(values, self.weight, self.scale, bias, self.form)

    def extra_repr(self) -> str:
        rotation = f", rotation={self.rotation}" if self.rotation else ""
        return f"{super().extra_repr()}, quantization={self.quantization}{rotation}"

    @property
    def form(self) -> Form:
        return Form(self.quantization, (self.out_features, self.in_features), self.in_8_bits, self.rotation)


class _Multiply(torch.autograd.Function):
    """values @ weight.T + bias. Keeps the quantized weight for the backward pass, not the dequantized one."""

    @staticmethod
    def forward(ctx: Any, values: Tensor, weight: Tensor, scale: Tensor, bias: Tensor | None, form: Form) -> Tensor:
        ctx.save_for_backward(weight, scale)
        ctx.form = form
        return multiply(values, weight, scale, bias, form)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        weight, scale = ctx.saved_tensors
        return gradient_of_inputs(gradient, weight, scale, ctx.form), None, None, None, None


def multiply(values: Tensor, weight: Tensor, scale: Tensor, bias: Tensor | None, form: Form) -> Tensor:
    """values [..., in] @ weight.T + bias, without gradients."""
    values = rotate(values, form.rotation)
    if not form.in_8_bits:
        return F.linear(values, dequantize(weight, scale, form.quantization, form.shape, values.dtype), bias)
    rows = values.reshape(-1, values.shape[-1])
    return multiply_rows(rows, weight, scale, bias, form.quantization).view(*values.shape[:-1], -1)


def gradient_of_inputs(gradient: Tensor, weight: Tensor, scale: Tensor, form: Form) -> Tensor:
    """gradient [..., out] @ weight, without gradients of its own."""
    if form.in_8_bits:
        rows = gradient.reshape(-1, gradient.shape[-1])
        result = multiply_back(rows, weight, scale, form.quantization).view(*gradient.shape[:-1], -1)
    else:
        result = gradient @ dequantize(weight, scale, form.quantization, form.shape, gradient.dtype)
    return rotate(result, form.rotation)  # its matrix is its own inverse


def quantize(weight: Tensor, quantization: str, rotation: int = 0) -> tuple[Tensor, Tensor]:
    """(quantized weight, scale), as in QuantizedLinear, of a weight [out, in].

    Some rows are quantized after others, so that little memory is needed beside the result. rotation: as in Form, of
    weights in 8 bits.
    """
    is_large_beside = quantization == "nf4" and weight.device.type == "cpu"
    num_rows = max(1, (_MOST_VALUES_NF4 if is_large_beside else _MOST_VALUES) // weight.shape[1])
    if quantization == "nf4":
        has_whole_blocks = weight.shape[1] % BLOCK == 0  # in each row
        return _quantize_nf4(weight, num_rows if has_whole_blocks else len(weight))
    packed = torch.empty_like(weight, dtype=torch.int8, memory_format=torch.contiguous_format)
    scale = weight.new_empty(len(weight), 1, dtype=torch.float32)
    for rows, part, scales in zip(*(one.split(num_rows) for one in (weight, packed, scale)), strict=True):
        _quantize_rows(rows, quantization, rotation, part, scales)
    return packed, scale


def _quantize_nf4(weight: Tensor, num_rows: int) -> tuple[Tensor, Tensor]:
    import bitsandbytes  # noqa: F401 - registers the operators

    num_values = weight.numel()
    packed = torch.empty(-(-num_values // 2), 1, dtype=torch.uint8, device=weight.device)
    scale = weight.new_empty(-(-num_values // BLOCK), dtype=torch.float32)
    at_once = num_rows * weight.shape[1]
    parts = weight.split(num_rows), packed.split(-(-at_once // 2)), scale.split(-(-at_once // BLOCK))
    for rows, part, scales in zip(*parts, strict=True):
        values, largest = torch.ops.bitsandbytes.quantize_4bit(rows.contiguous(), BLOCK, "nf4", torch.uint8)
        part.copy_(values)
        scales.copy_(largest)
    return packed.view(torch.int8), scale


def _quantize_rows(weight: Tensor, quantization: str, rotation: int, packed: Tensor, scale: Tensor) -> None:
    """Writes to `packed` and `scale`."""
    values = rotate(weight.to(torch.float32, copy=True), rotation)
    most = _INT8_MAX if quantization == "int8" else torch.finfo(FLOAT8).max
    largest = torch.maximum(values.amax(1, keepdim=True), -values.amin(1, keepdim=True))
    scale.copy_((largest / most).clamp_(min=torch.finfo(torch.float32).tiny))
    values.div_(scale)
    if quantization == "int8":
        packed.copy_(values.round_())
    else:
        packed.view(FLOAT8).copy_(values)
