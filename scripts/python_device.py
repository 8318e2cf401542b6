"""A device that is written in Python: its tensors are wrappers of others, and every operation on them is seen.

It takes torch's private backend, of which a process has one. torch's autocast has no rules for it; it gets those of
CUDA. A process must make it before its first backward pass, after which autograd
knows no further device.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
import torch._decomp
import torch.utils._device
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map
from torch.utils.backend_registration import _setup_privateuseone_for_python_backend

_aten = torch.ops.aten

# CUDA has a kernel of its own for each, and devices without one the steps that it consists of, each with a tensor.
_FUSED = "silu_backward mish_backward _fused_rms_norm"

_AUTOCAST_RULES = Path(torch.__file__).parent / "include" / "ATen" / "autocast_mode.h"

_DATA: Any = Tensor.data  # the descriptor behind the attribute
_AUTOCAST = torch._C.DispatchKeySet(torch._C._dispatch_key_parse("AutocastPrivateUse1"))

_libraries: list[torch.library.Library] = []  # of which torch forgets what they register when they are gone
_lowered: dict[int, tuple[Tensor, Tensor]] = {}  # id of a weight -> itself, and what autocast has cast it to


class DeviceTensor(Tensor):
    """A tensor on the device. held: what stands for it elsewhere, which only this one refers to."""

    held: Tensor
    DEVICE: torch.device
    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment] # as torch's own classes do

    @staticmethod
    def __new__(cls, held: Tensor) -> DeviceTensor:
        return Tensor._make_wrapper_subclass(
            cls,
            held.shape,
            strides=held.stride(),
            storage_offset=held.storage_offset(),
            dtype=held.dtype,
            device=cls.DEVICE,
        )

    def __init__(self, held: Tensor):
        self.held = held

    @classmethod
    def run(cls, function: Any, args: tuple, kwargs: dict[str, Any]) -> Any:
        """The result of an operation that has such a tensor among its arguments, or the device."""
        raise NotImplementedError

    @classmethod
    def __torch_dispatch__(  # type: ignore[override] # torch declares what turns it off
        cls, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        return cls.run(function, args, kwargs or {})

    @property
    def data(self) -> Tensor:
        return self.detach()

    @data.setter
    def data(self, value: Tensor) -> None:
        assert isinstance(value, DeviceTensor)  # as with CUDA's: a tensor stays on its device
        _DATA.__set__(self, value)
        self.held = value.held

    def __getitem__(self, index: Any) -> Tensor:
        parts = index if isinstance(index, tuple) else (index,)
        return super().__getitem__(tuple(torch.tensor(part) if isinstance(part, list) else part for part in parts))

    def new_tensor(  # type: ignore[override] # without the options that no model passes
        self, data: Any, dtype: torch.dtype | None = None
    ) -> Tensor:
        return torch.tensor(data, dtype=dtype or self.dtype, device=self.DEVICE)

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
    aten = torch.library.Library("aten", "IMPL")
    for operation in _FUSED.split():
        aten.impl(operation, functools.partial(_run_whole, tensor_class, operation), "PrivateUse1")
    aten.impl("_fused_rms_norm_backward", _rms_norm_backward, "CPU")  # which only GPUs have
    for operation, run in _autocast_kernels(name):
        aten.impl(operation, run, "AutocastPrivateUse1")
    _libraries.extend([everything, aten])
    clear = torch.clear_autocast_cache

    def clear_autocast_cache() -> None:  # called where the outermost context ends
        _lowered.clear()
        clear()

    torch.clear_autocast_cache = clear_autocast_cache
    torch.utils._device._device_constructors()  # remembered, so that torch.device as a context knows the own functions
    torch.tensor = _made_on_host(torch.tensor, device.type)
    torch.as_tensor = _made_on_host(torch.as_tensor, device.type)
    return device


def _run_whole(tensor_class: type[DeviceTensor], operation: str, *args: Any, **kwargs: Any) -> Any:
    return tensor_class.run(getattr(_aten, operation).default, args, kwargs)


def _rms_norm_backward(*args: Any, **kwargs: Any) -> Any:
    return torch._decomp.decomposition_table[_aten._fused_rms_norm_backward.default](*args, **kwargs)


# --- autocast ---------------------------------------------------------------------------------------------------------


def cuda_rules(group: str) -> list[str]:
    """The operations that autocast treats alike on CUDA, as the installed torch declares them.

    group: LOWER_PRECISION_FP, FP32, FP32_SET_OPT_DTYPE or PROMOTE.
    """
    header = _AUTOCAST_RULES.read_text(encoding="utf-8")
    (rows,) = re.findall(rf"#define AT_FORALL_{group}\(_\)((?:.*\\\n)*.*)", header)
    found = [name.replace(", ", ".") for name in re.findall(r"\b_\(([^)]*)\)", rows)]
    assert found, f"{_AUTOCAST_RULES} is not written as expected"
    return found


def _autocast_kernels(device: str) -> Iterator[tuple[str, Callable[..., Any]]]:
    """(operation, what runs in its place under autocast)."""

    def low(_: Any) -> torch.dtype:
        return torch.get_autocast_dtype(device)

    def whole(_: Any) -> torch.dtype:
        return torch.float32

    def widest(values: Any) -> torch.dtype:
        return torch.float32 if any(_is_cast(value) and value.dtype == torch.float32 for value in values) else low(())

    for group, dtype in (("LOWER_PRECISION_FP", low), ("FP32", whole), ("PROMOTE", widest)):
        yield from ((name, _cast_as(_operation(name), dtype)) for name in cuda_rules(group))
    yield from ((name, _with_result_in_float32(_operation(name))) for name in cuda_rules("FP32_SET_OPT_DTYPE"))
    for name in ("norm.Scalar", "norm.ScalarOpt_dim"):
        yield name, _cast_as(_operation(name), whole)


def _operation(name: str) -> Any:
    base, _, overload = name.partition(".")
    return getattr(getattr(_aten, base), overload or "default")


def _is_cast(value: Any) -> bool:
    return isinstance(value, DeviceTensor) and value.is_floating_point() and value.dtype != torch.float64


def _cast_as(operation: Any, dtype: Callable[[Any], torch.dtype]) -> Callable[..., Any]:
    """dtype: what tensors are cast to, of all arguments."""

    def cast(value: Any, target: torch.dtype) -> Any:
        if not _is_cast(value) or value.dtype == target:
            return value
        is_weight = value.requires_grad and value.is_leaf and target != torch.float32 and torch.is_grad_enabled()
        if not is_weight or not torch.is_autocast_cache_enabled():
            return value.to(target)
        if id(value) not in _lowered:
            _lowered[id(value)] = value, value.to(target)
        return _lowered[id(value)][1]

    def run(*args: Any, **kwargs: Any) -> Any:
        target = dtype(tree_leaves((args, kwargs)))
        args, kwargs = tree_map(lambda value: cast(value, target), (args, kwargs))
        with _without_autocast():
            return operation(*args, **kwargs)

    return run


def _with_result_in_float32(operation: Any) -> Callable[..., Any]:
    """As `dtype`, unless the caller chose one: the operands need no copy."""
    place = [argument.name for argument in operation._schema.arguments].index("dtype")

    def run(*args: Any, **kwargs: Any) -> Any:
        is_chosen = kwargs.get("dtype") is not None or (len(args) > place and args[place] is not None)
        if _is_cast(args[0]) and not is_chosen:
            args, kwargs = args[:place], {**kwargs, "dtype": torch.float32}
        with _without_autocast():
            return operation(*args, **kwargs)

    return run


def _without_autocast() -> Any:
    return torch._C._ExcludeDispatchKeyGuard(_AUTOCAST)


def _made_on_host(make: Callable[..., Tensor], name: str) -> Callable[..., Tensor]:
    """torch.tensor, whose own copy to a device written in Python fails an assertion."""

    @functools.wraps(make)
    def made(*args: Any, device: torch.device | str | int | None = None, **kwargs: Any) -> Tensor:
        args = tree_map(lambda value: value.item() if isinstance(value, DeviceTensor) else value, args)
        if device is None or torch.device(device).type != name:
            return make(*args, device=device, **kwargs)
        return make(*args, **kwargs).to(device)

    return made
