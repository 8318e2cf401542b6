"""Writes small ONNX files, encoded by hand, so that the tests need no package that makes them.

Source: the messages of https://github.com/onnx/onnx/blob/main/onnx/onnx.proto, of which the field numbers are.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from pathlib import Path

FLOAT, INTS, INT = 1, 7, 2  # of TensorProto.DataType and AttributeProto.AttributeType
OPSET = 13  # where ReduceMean still has its axes as an attribute

Shape = Sequence[int | str]


def write_channel_means(path: Path, side: int, scale: float = 1 / 255) -> Path:
    """A model of `float32[N, side, side, 3]` that gives `scale` times the mean of each channel: a tagger of 3 tags."""
    nodes = [
        _node("ReduceMean", ["images"], ["means"], {"axes": [1, 2], "keepdims": 0}),
        _node("Mul", ["means", "scale"], ["tags"]),
    ]
    return _write(path, nodes, {"scale": scale}, ("images", ("N", side, side, 3)), ("tags", ("N", 3)))


def write_brightness(path: Path, side: int) -> Path:
    """A model of `float32[1, 3, side, side]` that gives the mean of the channels, as U2-Net gives its mask."""
    nodes = [
        _node("ReduceMean", ["images"], ["means"], {"axes": [1], "keepdims": 1}),
        _node("Sigmoid", ["means"], ["mask"]),
    ]
    return _write(path, nodes, {}, ("images", (1, 3, side, side)), ("mask", (1, 1, side, side)))


def _write(
    path: Path,
    nodes: Sequence[bytes],
    scalars: Mapping[str, float],
    given: tuple[str, Shape],
    result: tuple[str, Shape],
) -> Path:
    initializers = [
        _number(2, FLOAT) + _bytes(8, name.encode()) + _bytes(9, struct.pack("<f", value))
        for name, value in scalars.items()
    ]
    graph = b"".join(_bytes(1, node) for node in nodes) + _bytes(2, b"graph")
    graph += b"".join(_bytes(5, one) for one in initializers)
    graph += _bytes(11, _value(*given)) + _bytes(12, _value(*result))
    path.write_bytes(_number(1, 8) + _bytes(7, graph) + _bytes(8, _number(2, OPSET)))
    return path


def _node(kind: str, inputs: Sequence[str], outputs: Sequence[str], attributes: Mapping[str, object] = {}) -> bytes:
    names = b"".join(_bytes(1, name.encode()) for name in inputs)
    names += b"".join(_bytes(2, name.encode()) for name in outputs)
    return names + _bytes(4, kind.encode()) + b"".join(_bytes(5, _attribute(*one)) for one in attributes.items())


def _attribute(name: str, value: object) -> bytes:
    if isinstance(value, list):
        return _bytes(1, name.encode()) + b"".join(_number(8, one) for one in value) + _number(20, INTS)
    assert isinstance(value, int)
    return _bytes(1, name.encode()) + _number(3, value) + _number(20, INT)


def _value(name: str, shape: Shape) -> bytes:
    sides = (_number(1, side) if isinstance(side, int) else _bytes(2, side.encode()) for side in shape)
    dimensions = b"".join(_bytes(1, side) for side in sides)
    tensor = _number(1, FLOAT) + _bytes(2, dimensions)
    return _bytes(1, name.encode()) + _bytes(2, _bytes(1, tensor))


def _number(field: int, value: int) -> bytes:
    return _varint(field << 3) + _varint(value)


def _bytes(field: int, value: bytes) -> bytes:
    return _varint(field << 3 | 2) + _varint(len(value)) + value


def _varint(value: int) -> bytes:
    groups = []
    while True:
        groups.append(value & 127)
        value >>= 7
        if not value:
            return bytes([*(group | 128 for group in groups[:-1]), groups[-1]])
