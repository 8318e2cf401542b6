"""Writes a denoiser as a GGUF file, as people offer them for download."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor


def write_gguf(path: Path, tensors: Mapping[str, Tensor], quantization: str) -> dict[str, Tensor]:
    """Quantizes the matrices whose rows fit, in layers of blocks; returns the values that the file then stands for."""
    import gguf

    kind = gguf.GGMLQuantizationType[quantization]
    block = gguf.GGML_QUANT_SIZES[kind][0]
    writer = gguf.GGUFWriter(path, "diffusion")
    meant = {}
    for name, value in tensors.items():
        value = value.float()
        if "blocks." in name and value.dim() == 2 and value.shape[1] % block == 0:
            packed = gguf.quants.quantize(value.numpy(), kind)
            writer.add_tensor(name, packed, raw_dtype=kind)
            meant[name] = torch.from_numpy(gguf.quants.dequantize(packed, kind).copy())
        else:
            writer.add_tensor(name, value.numpy())
            meant[name] = value
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return meant
