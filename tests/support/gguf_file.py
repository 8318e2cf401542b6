"""Writes a denoiser as a GGUF file, as people offer them for download."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor


def write_gguf(
    path: Path, tensors: Mapping[str, Tensor], quantization: str, in_rows: bool = False
) -> dict[str, Tensor]:
    """Quantizes the matrices whose rows fit, in layers of blocks; returns the values that the file then stands for.

    in_rows: stores other matrices and convolutions in rows of 256, and their shapes in the metadata, as city96's
    converter does for U-Nets.
    """
    import gguf

    kind = gguf.GGMLQuantizationType[quantization]
    block = gguf.GGML_QUANT_SIZES[kind][0]
    writer = gguf.GGUFWriter(path, "diffusion")
    meant = {}
    for name, value in tensors.items():
        value, shape = value.float(), value.shape
        if in_rows and value.dim() > 1 and value.numel() >= 512 and value.numel() % 256 == 0 and shape[-1] % 256:
            writer.add_array(f"comfy.gguf.orig_shape.{name}", tuple(shape))
            value = value.reshape(-1, 256)
        if "blocks." in name and value.dim() == 2 and value.shape[1] % block == 0:
            packed = gguf.quants.quantize(value.numpy(), kind)
            writer.add_tensor(name, packed, raw_dtype=kind)
            meant[name] = torch.from_numpy(gguf.quants.dequantize(packed, kind).copy()).reshape(shape)
        else:
            writer.add_tensor(name, value.numpy())
            meant[name] = value.reshape(shape)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return meant
