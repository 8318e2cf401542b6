"""Reads denoisers in GGUF files, whose linear layers stay quantized as they are in the file."""

from __future__ import annotations

import math
import os
import struct
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from modules.config.regular_file import open_regular
from modules.weights.errors import WeightsError

if TYPE_CHECKING:
    import torch
    from gguf import GGUFReader
    from gguf.gguf_reader import ReaderTensor
    from torch import Tensor, nn

SUFFIX = ".gguf"
_MAX_ENTRIES = 100_000  # of each kind; the largest denoisers have a few thousand tensors
_MAX_DIMS = 5  # the format has 4, but published files of video models have convolutions in three dimensions
# Sizes of the values in the metadata, by the number of their type; strings and lists are read by their length.
_VALUE_BYTES = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}
_STRING, _LIST = 8, 9
_ORIGINAL_SHAPE = "comfy.gguf.orig_shape."  # before the name of a tensor
_PLAIN = ("F32", "F16")  # that torch has, too


def is_gguf(path: Path) -> bool:
    return path.suffix.lower() == SUFFIX


def check_gguf(path: Path, setting: str) -> list[str]:
    """Checks the whole header of a file, without reading tensors. Returns their names.

    Raises WeightsError, starting with the setting, if the package is missing, or the file is damaged or has tensors in
    a format that can't be read.
    Source: the description of the format, https://github.com/ggml-org/ggml/blob/master/docs/gguf.md.
    """
    if find_spec("gguf") is None:
        raise WeightsError.at(
            setting,
            f"'{path}': is a GGUF file, which needs the package gguf; run `pip install gguf`, or choose a "
            ".safetensors file.",
        )
    try:
        with open_regular(path) as file:
            return _check_header(file, os.path.getsize(path))
    except OSError as error:
        raise WeightsError.at(setting, f"'{path}': can't be read ({error.strerror}); choose another file.") from error
    except ValueError as error:
        raise WeightsError.at(setting, f"'{path}': can't be read as GGUF, {error}; download it again.") from error


def _check_header(file: BinaryIO, size: int) -> list[str]:
    """The names of the tensors. Raises ValueError if a header is not what the format says, or leads out of the file."""
    magic, version, num_tensors, num_values = struct.unpack("<4sIQQ", _read(file, 24))
    if magic != b"GGUF" or version not in (2, 3):
        raise ValueError("it is of another format or version")
    if max(num_tensors, num_values) > _MAX_ENTRIES:
        raise ValueError(f"its header claims {max(num_tensors, num_values)} entries")
    alignment = 32
    for _ in range(num_values):
        name, (kind,) = _text(file, size), struct.unpack("<I", _read(file, 4))
        if name == "general.alignment" and kind == 4:
            (alignment,) = struct.unpack("<I", _read(file, 4))
        else:
            _skip_value(file, kind, size)
    if not alignment or alignment % 8:
        raise ValueError(f"its alignment is {alignment}")
    tensors = [_tensor(file, size) for _ in range(num_tensors)]
    start = -(-file.tell() // alignment) * alignment
    position = 0
    for offset, num_bytes, name in sorted(tensors):
        if offset < position or offset % alignment or start + offset + num_bytes > size:
            raise ValueError(f"its tensor '{name}' overlaps another or leads out of the file")
        position = offset + num_bytes
    if len({name for _, _, name in tensors}) < num_tensors:
        raise ValueError("a name occurs twice in its header")
    return [name for _, _, name in tensors]


def _tensor(file: BinaryIO, size: int) -> tuple[int, int, str]:
    """(offset, bytes, name) of a tensor."""
    from gguf import GGML_QUANT_SIZES

    from modules.layers.gguf_formats import GGUF_FORMATS

    name, (num_dims,) = _text(file, size), struct.unpack("<I", _read(file, 4))
    if num_dims > _MAX_DIMS:
        raise ValueError(f"its tensor '{name}' has {num_dims} dimensions")
    *shape, kind, offset = struct.unpack(f"<{num_dims}QIQ", _read(file, 8 * num_dims + 12))
    known = {number.value: (number.name, sizes) for number, sizes in GGML_QUANT_SIZES.items()}
    if kind not in known or known[kind][0] not in (*_PLAIN, *GGUF_FORMATS):
        called = known[kind][0] if kind in known else f"the format {kind}"
        raise ValueError(f"its tensor '{name}' is in {called}, which can't be read")
    block, block_bytes = known[kind][1]
    if any(side > size for side in shape) or (shape and shape[0] % block):
        raise ValueError(f"its tensor '{name}' has the shape {shape}")
    return offset, math.prod(shape) // block * block_bytes, name


def _skip_value(file: BinaryIO, kind: int, size: int) -> None:
    if kind == _STRING:
        _text(file, size)
        return
    count = 1
    if kind == _LIST:
        kind, count = struct.unpack("<IQ", _read(file, 12))
        if kind == _STRING and count <= size:
            for _ in range(count):
                _text(file, size)
            return
    if kind not in _VALUE_BYTES or count > size:
        raise ValueError("its metadata has a value of an unknown kind")
    _read(file, _VALUE_BYTES[kind] * count)


def _text(file: BinaryIO, size: int) -> str:
    (length,) = struct.unpack("<Q", _read(file, 8))
    if length > size:
        raise ValueError("a name in its header is longer than the file")
    return _read(file, length).decode("utf-8", errors="replace")


def _read(file: BinaryIO, count: int) -> bytes:
    data = file.read(count)
    if len(data) < count:
        raise ValueError("its header is cut off")
    return data


def gguf_tensors(path: Path) -> dict[str, Tensor]:
    """The tensors of a checked file by name, without copies of it. Quantized ones are of diffusers' class
    GGUFParameter, which keeps their format through the slicing and joining of its converters.

    Raises ValueError for a shape in the metadata that is not one of the tensor's values.
    """
    from gguf import GGUFReader

    reader = GGUFReader(path, "c")  # maps the file into memory; PyTorch wants writable arrays
    tensors = {tensor.name: _mapped(tensor) for tensor in reader.tensors}
    for name, shape in _original_shapes(reader).items():
        if name not in tensors:
            continue
        tensor = tensors[name]
        if math.prod(shape) != math.prod(shape_of(tensor)):
            raise ValueError(f"its {name} has {math.prod(shape_of(tensor))} values, which the shape {shape} has not")
        if format_of(tensor):
            tensor.quant_shape = shape  # type: ignore[attr-defined] # the blocks stay as they are, row after row
        else:
            tensors[name] = tensor.reshape(shape)
    return tensors


def _mapped(tensor: ReaderTensor) -> Tensor:
    import torch
    from diffusers.quantizers.gguf.utils import GGUFParameter

    values = torch.from_numpy(tensor.data)
    kind = tensor.tensor_type
    return values if kind.name in _PLAIN else GGUFParameter(values, quant_type=kind)


def _original_shapes(reader: GGUFReader) -> dict[str, tuple[int, ...]]:
    """Name -> shape of the weights of U-Nets that city96's converter has stored in rows of 256, as its metadata say."""
    return {
        name.removeprefix(_ORIGINAL_SHAPE): tuple(int(field.parts[place][0]) for place in field.data)
        for name, field in reader.fields.items()
        if name.startswith(_ORIGINAL_SHAPE)
    }


def format_of(tensor: Tensor) -> str:
    """The name of the format of a quantized tensor; "" for others."""
    kind = getattr(tensor, "quant_type", None)
    return kind.name if kind is not None else ""


def shape_of(tensor: Tensor) -> tuple[int, ...]:
    """The shape of the values, in place of that of the bytes."""
    return tuple(tensor.quant_shape) if format_of(tensor) else tuple(tensor.shape)  # type: ignore[attr-defined]


def bytes_of(tensor: Tensor) -> Tensor:
    """The bytes of a quantized tensor, int8[rows, bytes of a row]."""
    import torch

    return tensor.as_tensor().detach().contiguous().view(torch.int8)  # type: ignore[attr-defined]


def dequantize_gguf(tensor: Tensor, dtype: torch.dtype) -> Tensor:
    """The values of a quantized tensor: computed in float32 and rounded once."""
    import torch

    from modules.layers.gguf_formats import dequantize_blocks, gguf_constants

    values = dequantize_blocks(bytes_of(tensor), format_of(tensor), gguf_constants()).reshape(shape_of(tensor))
    # not `to`, which would wait and keep these values: modules/weights/deferred_casts.py
    return torch.empty_like(values, dtype=dtype).copy_(values)


def put_quantized(component: nn.Module, tensors: dict[str, Any], dtype: torch.dtype) -> None:
    """Puts a QuantizedLinear in place of each linear layer whose weight is quantized, and takes its tensors out of
    `tensors`; dequantizes what else is quantized there."""
    from torch import nn

    from modules.layers.gguf_formats import gguf_constants
    from modules.layers.quantized_formats import GGUF
    from modules.layers.QuantizedLinear import QuantizedLinear

    for name, value in list(tensors.items()):
        if not (called := format_of(value)):
            continue
        layer_name, _, kind = name.rpartition(".")
        layer = component.get_submodule(layer_name)
        if type(layer) is not nn.Linear or kind != "weight" or called == "BF16":
            tensors[name] = dequantize_gguf(value, dtype)
            continue
        bias = tensors.pop(f"{layer_name}.bias") if layer.bias is not None else None
        if format_of(bias):
            bias = dequantize_gguf(bias, dtype)
        shape, data = (layer.out_features, layer.in_features), bytes_of(tensors.pop(name))
        bias = None if bias is None else bias.to(dtype)
        quantized = QuantizedLinear(shape, GGUF + called, data, gguf_constants(), bias, dtype)
        component.set_submodule(layer_name, quantized)
