"""Saves the state of a program's own objects in checkpoints, as safetensors and JSON, and restores it."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Mapping
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from modules.config.errors import UserError
from modules.distributed.Runtime import Runtime
from modules.distributed.shards import Saved
from modules.weights.checksum import checksum

EXTRA = "extra"  # the file of the tensors, and the entry of the plain data

_KINDS = "tensors, NumPy arrays, numbers, strings, None, and lists, tuples and dictionaries of them"


class Stateful(Protocol):
    """What torch's modules, optimizers and stateful data loaders have in common."""

    def state_dict(self) -> Any: ...

    def load_state_dict(self, state_dict: Any) -> Any: ...


def check_extra_state(extra: Any) -> None:
    if not isinstance(extra, Mapping):
        raise UserError(f"extra_state: {type(extra).__name__} has no names; pass a dictionary, name -> object.")
    for name, value in extra.items():
        if not isinstance(name, str):
            raise UserError(f"extra_state: {name!r} is not a string; use names as keys.")
        missing = [method for method in ("state_dict", "load_state_dict") if not callable(getattr(value, method, None))]
        if missing:
            raise UserError(
                f"extra_state {name!r}: {type(value).__name__} has no {missing[0]}; pass an object with state_dict() "
                "and load_state_dict(state)."
            )


class ExtraState:
    """The `objects` by name. warn(text): on rank 0."""

    def __init__(self, objects: Mapping[str, Stateful], runtime: Runtime, warn: Callable[[str], None]):
        self._objects = objects
        self._runtime = runtime
        self._warn = warn
        self._has_warned = False

    def packed(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """The states as (tensors by name, plain data for JSON). The tensors are live, not copies.

        All ranks must call it. Raises UserError for what can't be saved without pickle.
        """
        tensors: dict[str, Tensor] = {}
        data = {name: _packed(value.state_dict(), name, tensors) for name, value in self._objects.items()}
        if self._objects and self._runtime.world_size > 1 and not self._has_warned:
            self._compare_ranks(tensors, data)
        return tensors, data

    def check_names(self, data: Mapping[str, Any]) -> None:
        """Raises UserError if `data`, of a checkpoint, is of other objects."""
        if self._objects.keys() != data.keys():
            raise UserError(
                f"extra_state: the checkpoint has {_listed(data)}, but the argument has {_listed(self._objects)}; pass "
                "the objects of the earlier training under the same names."
            )

    def restore(self, tensors: Mapping[str, Saved], data: Mapping[str, Any]) -> None:
        """Loads what `packed` returned."""
        for name, value in self._objects.items():
            value.load_state_dict(_unpacked(data[name], tensors))

    def _compare_ranks(self, tensors: Mapping[str, Tensor], data: Mapping[str, Any]) -> None:
        """Warns, once, if the states of the ranks differ. It waits for the device."""
        plain = {name: torch.view_as_real(value) if value.is_complex() else value for name, value in tensors.items()}
        own = [checksum(plain), hashlib.sha256(json.dumps(data).encode()).hexdigest()]
        if any(other != own for other in self._runtime.gather(own, "comparing extra_state")):
            self._has_warned = True
            if self._runtime.is_main:
                self._warn(
                    f"extra_state: {_listed(self._objects)} differ between the ranks; checkpoints have rank 0's state, "
                    "which a resume gives to all."
                )


def _listed(names: Mapping[str, Any]) -> str:
    return ", ".join(map(repr, sorted(names))) or "none"


def _packed(value: Any, place: str, tensors: dict[str, Tensor]) -> Any:
    """JSON of `value`: plain values as they are, all others as {kind: content}."""
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else {"float": str(value)}
    if isinstance(value, Tensor) and value.layout == torch.strided:
        tensors[place] = value.detach()
        return {"tensor": place}
    if isinstance(value, np.ndarray | np.generic) and value.dtype.kind in "biuf":
        tensors[place] = torch.from_numpy(np.array(value, value.dtype.newbyteorder("=")))
        return {"array": place, "dtype": value.dtype.str, "is_scalar": isinstance(value, np.generic)}
    if isinstance(value, Mapping):
        return {
            "dict": [
                [_packed(key, f"{place}: {key!r}", tensors), _packed(part, f"{place}.{key}", tensors)]
                for key, part in value.items()
            ]
        }
    if isinstance(value, list | tuple):
        parts = [_packed(part, f"{place}.{index}", tensors) for index, part in enumerate(value)]
        return {"tuple": parts} if isinstance(value, tuple) else {"list": parts}
    raise UserError(f"extra_state {place}: {type(value).__name__} can't be saved; a state may have {_KINDS}.")


def _unpacked(data: Any, tensors: Mapping[str, Saved]) -> Any:
    if not isinstance(data, dict):
        return data
    kind, content = next(iter(data.items()))
    match kind:
        case "float":
            return float(content)
        case "tensor":
            return _own(tensors[content])
        case "array":
            array = _own(tensors[content]).numpy().astype(data["dtype"])
            return array[()] if data["is_scalar"] else array
        case "dict":
            return {_unpacked(key, tensors): _unpacked(part, tensors) for key, part in content}
    parts = [_unpacked(part, tensors) for part in content]
    return tuple(parts) if kind == "tuple" else parts


def _own(tensor: Saved) -> Tensor:
    assert isinstance(tensor, Tensor)  # only rank 0 writes these, whole
    return tensor.cpu().clone()  # not the memory of the file, nor the object that it was taken from
