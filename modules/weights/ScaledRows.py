"""Weights of a file that are quantized row by row, on their way through what renames and divides a file's tensors."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_map_only

from modules.layers.hadamard import rotate

_aten: Any = torch.ops.aten
_SAME = {_aten.alias, _aten.detach}
_OF_ROWS = {_aten.slice, _aten.split, _aten.split_with_sizes}  # their third argument, or second of `slice`, is an axis


class ScaledRows(Tensor):
    """A matrix whose rows are codes times a scale: to others a tensor of `dtype`.

    Whole rows stay quantized when they are divided and joined; everything else is done with the values.
    codes: int8 or float8[out, in]. scale: float32[out, 1]. rotation: of the codes, as in `QuantizedLinear.Form`.
    """

    codes: Tensor
    scale: Tensor
    rotation: int

    @staticmethod
    def __new__(cls, codes: Tensor, scale: Tensor, dtype: torch.dtype, rotation: int = 0) -> ScaledRows:
        made = torch.Tensor._make_wrapper_subclass(
            cls, codes.shape, strides=codes.stride(), dtype=dtype, device=codes.device
        )
        made.codes, made.scale, made.rotation = codes, scale, rotation
        return made

    # results are of the class that operations give them
    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment] # a function of C

    def __repr__(self, **options: Any) -> str:  # type: ignore[override] # as torch declares its own
        return f"{type(self).__name__}({tuple(self.shape)}, {self.codes.dtype})"

    def values(self) -> Tensor:
        """[out, in], computed in float32 and rounded once."""
        return rotate(self.codes.float() * self.scale, self.rotation).to(self.dtype)

    @classmethod
    def __torch_dispatch__(  # type: ignore[override] # torch declares the placeholder of its C code
        cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        operation = func.overloadpacket
        if operation in _SAME or (operation in _OF_ROWS and _axis(operation, args, kwargs) == 0):
            own = args[0]
            codes, scale = (func(one, *args[1:], **kwargs) for one in (own.codes, own.scale))
            if isinstance(codes, Tensor):
                return cls(codes, scale, own.dtype, own.rotation)
            return type(codes)(cls(*pair, own.dtype, own.rotation) for pair in zip(codes, scale, strict=True))
        if operation is _aten.cat and _can_join(args[0]) and _axis(operation, args, kwargs) == 0:
            codes, scale = (torch.cat([getattr(one, name) for one in args[0]]) for name in ("codes", "scale"))
            return cls(codes, scale, args[0][0].dtype, args[0][0].rotation)
        args, kwargs = tree_map_only(cls, cls.values, (args, kwargs))
        return func(*args, **kwargs)


def _axis(operation: Any, args: Any, kwargs: Any) -> int:
    """The axis of an operation on matrices."""
    place = 2 if operation in (_aten.split, _aten.split_with_sizes) else 1
    axis = args[place] if len(args) > place else kwargs.get("dim", 0)
    return axis % 2


def _can_join(tensors: Any) -> bool:
    if not all(isinstance(one, ScaledRows) for one in tensors):
        return False
    return len({(one.codes.dtype, one.rotation) for one in tensors}) == 1
