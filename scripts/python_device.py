"""A device that is written in Python: its tensors are wrappers of others, and every operation on them is seen.

It takes torch's private backend, of which a process has one. torch's autocast has no rules for it; it gets those of
CUDA for the operations that our models use. A process must make it before its first backward pass, after which autograd
knows no further device.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
import torch.utils._device
from torch import Tensor
from torch.utils._pytree import tree_map
from torch.utils.backend_registration import _setup_privateuseone_for_python_backend

_aten = torch.ops.aten

# https://docs.pytorch.org/docs/stable/amp.html#cuda-op-specific-behavior
_IN_LOW_PRECISION = (
    "linear addmm mm bmm matmul baddbmm einsum conv1d conv2d conv3d conv_transpose1d conv_transpose2d.input "
    "conv_transpose3d.input convolution scaled_dot_product_attention"
)
_IN_FLOAT32 = "layer_norm group_norm rms_norm softmax.int log_softmax.int exp log pow.Tensor_Scalar rsqrt sum mean.dim "
_IN_FLOAT32 += "mse_loss l1_loss smooth_l1_loss huber_loss norm.ScalarOpt_dim cumsum prod"

_libraries: list[torch.library.Library] = []  # of which torch forgets what they register when they are gone
_lowered: dict[int, tuple[Tensor, Tensor]] = {}  # id of a weight -> itself, and what autocast has cast it to


class DeviceTensor(Tensor):
    """A tensor on the device. held: what stands for it elsewhere, which only this one refers to."""

    held: Tensor
    DEVICE: torch.device
    __torch_function__ = torch._C._disabled_torch_function_impl

    @staticmethod
    def __new__(cls, held: Tensor) -> DeviceTensor:
        layout = {"strides": held.stride(), "storage_offset": held.storage_offset()}
        return Tensor._make_wrapper_subclass(cls, held.shape, dtype=held.dtype, device=cls.DEVICE, **layout)

    def __init__(self, held: Tensor):
        self.held = held

    @classmethod
    def run(cls, function: Any, args: tuple, kwargs: dict[str, Any]) -> Any:
        """The result of an operation that has such a tensor among its arguments, or the device."""
        raise NotImplementedError

    @classmethod
    def __torch_dispatch__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return cls.run(function, args, kwargs or {})

    @property
    def data(self) -> Tensor:
        return self.detach()

    @data.setter
    def data(self, value: DeviceTensor) -> None:
        Tensor.data.__set__(self, value)
        self.held = value.held

    def __getitem__(self, index: Any) -> Tensor:
        parts = index if isinstance(index, tuple) else (index,)
        return super().__getitem__(tuple(torch.tensor(part) if isinstance(part, list) else part for part in parts))

    def new_tensor(self, values: Any, dtype: torch.dtype | None = None) -> Tensor:
        return torch.tensor(values, dtype=dtype or self.dtype, device=self.DEVICE)

    def tolist(self) -> Any:
        return self.cpu().tolist()


def make_device(name: str, tensor_class: type[DeviceTensor]) -> torch.device:
    """Registers the device `name` with tensors of that class, for this process."""
    _setup_privateuseone_for_python_backend(name)
    device = tensor_class.DEVICE = torch.device(name, 0)
    # without it, checkpointing ends the process in autograd's thread of the device
    getattr(torch, name).get_amp_supported_dtype = lambda: [torch.bfloat16, torch.float16]
    everything = torch.library.Library("_", "IMPL")
    everything.fallback(lambda function, *args, **kwargs: tensor_class.run(function, args, kwargs), "PrivateUse1")
    everything.fallback(torch.library.fallthrough_kernel, "AutocastPrivateUse1")
    autocast = torch.library.Library("aten", "IMPL")
    for names, dtype in (
        (_IN_LOW_PRECISION, lambda: torch.get_autocast_dtype(name)),
        (_IN_FLOAT32, lambda: torch.float32),
    ):
        for operation in names.split():
            base, _, overload = operation.partition(".")
            function = getattr(getattr(_aten, base), overload or "default")
            autocast.impl(operation, _cast_as(function, dtype), "AutocastPrivateUse1")
    _libraries.extend([everything, autocast])
    clear = torch.clear_autocast_cache

    def clear_autocast_cache() -> None:  # called where the outermost context ends
        _lowered.clear()
        clear()

    torch.clear_autocast_cache = clear_autocast_cache
    torch.utils._device._device_constructors()  # remembered, so that torch.device as a context knows the own functions
    torch.tensor = _made_on_host(torch.tensor, device.type)
    torch.as_tensor = _made_on_host(torch.as_tensor, device.type)
    return device


def _cast_as(operation: Any, dtype: Callable[[], torch.dtype]) -> Callable[..., Any]:
    def cast(value: Any) -> Any:
        if not isinstance(value, DeviceTensor) or not value.is_floating_point() or value.dtype == torch.float64:
            return value
        target = dtype()
        if value.dtype == target:
            return value
        is_weight = value.requires_grad and value.is_leaf and target != torch.float32 and torch.is_grad_enabled()
        if not is_weight or not torch.is_autocast_cache_enabled():
            return value.to(target)
        if id(value) not in _lowered:
            _lowered[id(value)] = value, value.to(target)
        return _lowered[id(value)][1]

    def run(*args: Any, **kwargs: Any) -> Any:
        args, kwargs = tree_map(cast, (args, kwargs))
        with torch._C._ExcludeDispatchKeyGuard(torch._C.DispatchKeySet(torch._C.DispatchKey.AutocastPrivateUse1)):
            return operation(*args, **kwargs)

    return run


def _made_on_host(make: Callable[..., Tensor], name: str) -> Callable[..., Tensor]:
    """torch.tensor, whose own copy to a device written in Python fails an assertion."""

    @functools.wraps(make)
    def made(*args: Any, device: torch.device | str | int | None = None, **kwargs: Any) -> Tensor:
        args = tree_map(lambda value: value.item() if isinstance(value, DeviceTensor) else value, args)
        if device is None or torch.device(device).type != name:
            return make(*args, device=device, **kwargs)
        return make(*args, **kwargs).to(device)

    return made
