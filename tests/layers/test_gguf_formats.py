"""The quantized formats of GGUF files, as the package gguf by the makers of the format reads them."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from modules.layers.gguf_formats import GGUF_FORMATS, dequantize_blocks, gguf_constants
from modules.layers.quantized_formats import GGUF
from modules.layers.QuantizedLinear import QuantizedLinear

gguf = pytest.importorskip("gguf", reason="an optional package")


class MadeOfPythonValues(TorchDispatchMode):
    """Counts tensors that are made of Python values: on a GPU, the host waits until they have been copied there."""

    def __init__(self):
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.count += function is torch.ops.aten.lift_fresh.default
        return function(*args, **(kwargs or {}))


@pytest.mark.parametrize("name", GGUF_FORMATS)
def test_every_block_has_the_values_that_the_makers_of_the_format_read(name):
    kind = gguf.GGMLQuantizationType[name]
    generator = torch.Generator().manual_seed(0)
    blocks = torch.randint(0, 256, (2000, gguf.GGML_QUANT_SIZES[kind][1]), dtype=torch.uint8, generator=generator)
    with np.errstate(all="ignore"):  # some scales are not finite
        expected = torch.from_numpy(gguf.quants.dequantize(blocks.numpy(), kind).copy())
    values = dequantize_blocks(blocks.view(torch.int8), name, gguf_constants()).flatten(1)
    torch.testing.assert_close(values, expected, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("name", GGUF_FORMATS)
def test_no_pass_of_a_layer_copies_constants_to_the_device(name):
    kind = gguf.GGMLQuantizationType[name]
    block, block_bytes = gguf.GGML_QUANT_SIZES[kind]
    width = 256 // block
    data = torch.zeros(3, width * block_bytes, dtype=torch.int8)
    layer = QuantizedLinear((3, 256), GGUF + name, data, gguf_constants(), None, torch.bfloat16)
    with MadeOfPythonValues() as made:
        layer(torch.ones(2, 256, dtype=torch.bfloat16, requires_grad=True)).sum().backward()
    assert made.count == 0


def test_all_formats_that_diffusers_reads_are_known():
    from diffusers.quantizers.gguf.utils import SUPPORTED_GGUF_QUANT_TYPES

    assert {kind.name for kind in SUPPORTED_GGUF_QUANT_TYPES} == {*GGUF_FORMATS}
