"""Casts of weights that wait until each weight gets to its place, so that no component is in memory in two forms.

Libraries map files into memory, which takes none of its own, but then cast all of a component before its first layer
can be quantized or moved: 24 GB of bfloat16 for what becomes 12 GB of int8, or is only to be copied to a GPU. A
deferred tensor is one without memory that computes its values when they are needed. `BaseModel` loads components with
such weights, and computes them one after the other.
"""

from __future__ import annotations

import contextlib
import os
from collections import Counter
from collections.abc import Iterator
from functools import partial
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map, tree_map_only

from modules.distributed.placeholders import placeholder

LEAST_BYTES = 2**20  # of a tensor; it would take too long to let all small ones wait
_NO_THREADS = "HF_DEACTIVATE_ASYNC_LOAD"  # of transformers, in whose threads no cast waits
_aten: Any = torch.ops.aten
# What is done with weights while files are read, and waits as well if it is done with a tensor that waits.
_WAITING = {
    _aten._to_copy, _aten._unsafe_view, _aten.cat, _aten.clone, _aten.mm, _aten.mul, _aten.permute, _aten.select,
    _aten.slice, _aten.split, _aten.split_with_sizes, _aten.squeeze, _aten.stack, _aten.t, _aten.transpose,
    _aten.unsqueeze, _aten.view,
}  # fmt: skip
_SAME_TENSOR = {_aten.alias, _aten.detach}
_set_data = cast("Any", Tensor.data).__set__  # as `__torch_function__` gets it


@contextlib.contextmanager
def deferred_casts() -> Iterator[None]:
    """Inside, casts of large tensors wait, and so does what is made of them. Use `compute` on what is loaded there."""
    before = os.environ.get(_NO_THREADS)
    os.environ[_NO_THREADS] = "1"
    try:
        with _Deferring():
            yield
    finally:
        if before is None:
            del os.environ[_NO_THREADS]
        else:
            os.environ[_NO_THREADS] = before


@torch.no_grad()
def compute(module: nn.Module, device: torch.device | str = "cpu") -> None:
    """Computes the deferred tensors of a module one after the other and puts them on `device`; others stay as they
    are."""
    done: dict[int, Tensor] = {}  # by the deferred tensor: tied weights stay tied
    for part in module.modules():
        places: tuple[dict[str, Any], ...] = part._parameters, part._buffers, vars(part)
        for tensors in places:
            for name, tensor in tensors.items():
                if isinstance(tensor, _DeferredTensor):
                    if id(tensor) not in done:
                        done[id(tensor)] = _placed(tensor, device)
                    tensors[name] = done[id(tensor)]


def _placed(tensor: _DeferredTensor, device: torch.device | str) -> Tensor:
    values = tensor.value.compute().to(device)
    if values.untyped_storage().nbytes() > values.nbytes:
        values = values.clone()  # a part of a larger tensor, all of which would stay in memory
    if isinstance(tensor, nn.Parameter):
        return nn.Parameter(values, requires_grad=tensor.requires_grad)
    return values


def is_deferred(module: nn.Module) -> bool:
    """Whether some of a module's weights are not computed yet."""
    return any(isinstance(param, _DeferredTensor) for param in module.parameters())


def leave_in_files(module: nn.Module) -> None:
    """Puts placeholders for deferred weights, for ranks of which each is to hold some rows; not for tied ones."""
    uses = Counter(id(param) for _, param in module.named_parameters(remove_duplicate=False))
    for part in module.modules():
        for name, param in part._parameters.items():
            if isinstance(param, _DeferredTensor) and param.dim() and uses[id(param)] == 1:
                part._parameters[name] = placeholder(param.shape, param.dtype, partial(_rows, param))


def _rows(tensor: _DeferredTensor, start: int, stop: int) -> Tensor:
    return tensor.value.compute()[start:stop]


class _Operation:
    """An operation whose result is needed later. Of its arguments, deferred tensors are `_Value`s."""

    def __init__(self, func: Any, args: Any, kwargs: Any):
        self._func = func
        self._args, self._kwargs = tree_map_only(_DeferredTensor, lambda tensor: tensor.value, (args, kwargs))
        self._parts: dict[int, Tensor] = {}  # of a result of several tensors, those that nobody has asked for yet

    def result(self, number: int | None) -> Tensor:
        """number: of the tensor, if there are several."""
        if number in self._parts:
            return self._parts.pop(number)
        args, kwargs = tree_map_only(_Value, _Value.compute, (self._args, self._kwargs))
        result = self._func(*args, **kwargs)
        if number is None:
            return result
        self._parts = dict(enumerate(result))
        return self._parts.pop(number)


class _Value:
    """A tensor that results from an operation."""

    def __init__(self, operation: _Operation, number: int | None = None):
        self._operation, self._number = operation, number

    def compute(self) -> Tensor:
        return self._operation.result(self._number)


class _DeferredTensor(Tensor):
    """A tensor in system memory, as far as others can tell. To change its values is an error."""

    value: _Value

    @staticmethod
    def __new__(cls, like: Tensor, value: _Value) -> _DeferredTensor:
        made = torch.Tensor._make_wrapper_subclass(
            cls, like.shape, strides=like.stride(), dtype=like.dtype, device=torch.device("cpu")
        )
        made.value = value
        return made

    def __repr__(self, **options: Any) -> str:  # type: ignore[override] # as torch declares its own
        return f"{type(self).__name__}({tuple(self.shape)}, {self.dtype})"

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func == _set_data:  # which is no operation
            tensor, data = args
            if not isinstance(data, _DeferredTensor):
                raise TypeError("a weight that is not computed yet can't have other data")
            tensor.value = data.value
        with torch._C.DisableTorchFunctionSubclass():  # results are of the class that `func` gives them
            return func(*args, **(kwargs or {}))

    @classmethod
    def __torch_dispatch__(  # type: ignore[override] # torch declares the placeholder of its C code
        cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        if func.overloadpacket in _SAME_TENSOR:
            return _DeferredTensor(args[0], args[0].value)
        if func._schema.is_mutable and isinstance(args[0], _DeferredTensor):
            raise TypeError(f"{func} would change a weight that is not computed yet")
        args, kwargs = tree_map_only(_DeferredTensor, lambda tensor: tensor.value.compute(), (args, kwargs or {}))
        return func(*args, **kwargs)


class _Deferring(TorchDispatchMode):
    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        stays_here = kwargs.get("device") in (None, torch.device("cpu"))
        is_cast = func is _aten._to_copy.default and _is_large_cast(*args, **kwargs)
        if stays_here and (is_cast or (_DeferredTensor in types and func.overloadpacket in _WAITING)):
            return _defer(func, args, kwargs)
        return func(*args, **kwargs)


def _is_large_cast(values: Tensor, dtype: torch.dtype | None = None, **others: Any) -> bool:
    if values.device.type != "cpu" or dtype is None or dtype == values.dtype:
        return False
    return dtype.is_floating_point and values.numel() * dtype.itemsize >= LEAST_BYTES


def _defer(func: Any, args: Any, kwargs: Any) -> Any:
    meta_args, meta_kwargs = tree_map(_on_meta, (args, kwargs))
    described = func(*meta_args, **meta_kwargs)
    operation = _Operation(func, args, kwargs)
    if isinstance(described, Tensor):
        return _DeferredTensor(described, _Value(operation))
    return type(described)(_DeferredTensor(one, _Value(operation, number)) for number, one in enumerate(described))


def _on_meta(value: Any) -> Any:
    if isinstance(value, Tensor):
        return torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device="meta")
    return torch.device("meta") if isinstance(value, torch.device) else value
