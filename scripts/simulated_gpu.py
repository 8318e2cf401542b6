"""A GPU of any size: its tensors have shapes and dtypes and no values, and their bytes are added up.

Memory counts like that of CUDA's caching allocator: each storage once, in units of 512 bytes, from when it is made to
when nothing refers to it. Attention is fused and keeps what FlashAttention does (Dao 2023, arXiv 2307.08691). While it
convolves, cuDNN has a workspace. Tensors of a few elements, such as timesteps and masks, keep their values, because
models read them; all others read as 1.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.utils._pytree import tree_flatten, tree_leaves, tree_map, tree_unflatten

from scripts.python_device import DeviceTensor, make_device

MOST_WITH_VALUES = 2**14  # elements
_UNIT = 512  # bytes
# cuDNN copies what it convolves into the layout of tensor cores, with channels last. How much of it at a time, its
# documentation does not say; with this share, the samples of SDXL take what they took on a GPU.
_CONVOLVED_SHARE = 3 / 4

_aten = torch.ops.aten
_GROUPS = {_aten.convolution.default: 8, _aten.convolution_backward.default: 9}  # their argument "groups"
_INDEXED = (_aten.index.Tensor, _aten.index_put.default, _aten.index_put_.default, _aten._index_put_impl_.default)


class Memory:
    """Bytes of the storages on the GPU, now and at most since `restart`."""

    def __init__(self) -> None:
        self.now = self.peak = 0
        self._storages: dict[int, list[int]] = {}  # storage -> [its tensors, its bytes]

    def restart(self) -> None:
        self.peak = self.now

    def forget(self) -> None:
        """Start anew; what is still held no longer counts."""
        self._storages.clear()
        self.now = self.peak = 0

    def take(self, storage: int, num_bytes: int) -> None:
        """A further tensor has the storage, which may have grown."""
        entry = self._storages.setdefault(storage, [0, 0])
        self.now += max(0, num_bytes - entry[1])
        self.peak = max(self.peak, self.now)
        entry[:] = entry[0] + 1, max(num_bytes, entry[1])

    def give(self, storage: int) -> None:
        entry = self._storages.get(storage)
        if entry is None:  # forgotten
            return
        entry[0] -= 1
        if not entry[0]:
            self.now -= entry[1]
            del self._storages[storage]


MEMORY = Memory()


class _Lease:
    """The share of one tensor in a storage, for as long as it has it."""

    def __init__(self, held: Tensor):
        storage = held.untyped_storage()
        self._storage = storage._cdata
        MEMORY.take(self._storage, -(-storage.nbytes() // _UNIT) * _UNIT)

    def __del__(self) -> None:
        MEMORY.give(self._storage)


class Simulated(DeviceTensor):
    """held: a tensor on torch's meta device, or a small one on the CPU."""

    def __setattr__(self, name: str, value: Any) -> None:
        super().__setattr__(name, value)
        if name == "held":
            super().__setattr__("_lease", _Lease(value))

    def __repr__(self, *, tensor_contents: Any = None) -> str:  # type: ignore[override] # mypy leaves out the name
        return f"Simulated({self.dtype}, {list(self.shape)})"

    @classmethod
    def run(cls, function: Any, args: tuple, kwargs: dict[str, Any]) -> Any:
        return _run(function, args, kwargs)


GPU = make_device("simulated", Simulated)


def _run(function: Any, args: tuple, kwargs: dict[str, Any]) -> Any:
    workspace = _workspace(function, args)  # noqa: F841 - held until the end
    key = _key(function, args, kwargs)
    if key is not None and key in _layouts:
        return _run_again(_kind(function), args, _layouts[key])
    before = _layout(args[0].held) if key is not None and _kind(function) in ("itself", "view") else None
    result = _run_anew(function, args, kwargs)
    if key is not None and _kind(function) == "several":
        if all(part is None or part.held.is_meta for part in result):
            _layouts[key] = tuple(None if part is None else _layout(part.held) for part in result)
    elif key is not None and isinstance(result, Simulated) and result.held.is_meta:
        layout = _layout(result.held)
        is_resized = _kind(function) == "itself" and layout != before
        is_reread = _kind(function) == "view" and before is not None and layout[2] != before[2]  # as another dtype
        if not is_resized and not is_reread:
            _layouts[key] = layout
    return result


def _workspace(function: Any, args: tuple) -> Tensor | None:
    """What cuDNN takes while it convolves; what has a group for each channel is not convolved by it."""
    if function not in _GROUPS or args[_GROUPS[function]] > 1:
        return None
    values = args[0].held  # of a backward pass, the gradient of the output
    return Simulated(torch.empty(int(_CONVOLVED_SHARE * values.nbytes), dtype=torch.uint8, device="meta"))


# --- operations that were run before, on tensors of the same layouts -------------------------------------------------

# Most of a model is the same block again and again, and torch takes long to find out the layout of a result.
_layouts: dict[tuple, tuple] = {}  # what is run -> the layout of its result, or those of several
_kinds: dict[Any, str] = {}


def _layout(held: Tensor) -> tuple:
    return held.shape, held.stride(), held.dtype, held.storage_offset()


def _kind(function: Any) -> str:
    """Whether the one result of an operation is "new", a "view" of the first argument, or that "itself", changed in
    place, or "several" are new; "" if it is none of these."""
    if function not in _kinds:
        arguments, results = function._schema.arguments, function._schema.returns
        aliased = [number for number, argument in enumerate(arguments) if argument.alias_info is not None]
        kind = ""
        if len(results) == 1 and str(results[0].type) == "Tensor" and aliased in ([], [0]):
            writes = bool(aliased) and arguments[0].alias_info.is_write
            kind = "itself" if writes else "view" if aliased else "new"
        elif not aliased and len(results) > 1 and all(str(each.type) == "Tensor" for each in results):
            kind = "several"
        _kinds[function] = kind
    return _kinds[function]


def _key(function: Any, args: tuple, kwargs: dict[str, Any]) -> tuple | None:
    """All that the result's layout depends on; None if values or another device matter."""
    kind, target = _kind(function), kwargs.get("device")
    if not kind or (target is not None and torch.device(target).type != GPU.type):
        return None
    seen: list[Any] = [function, len(args), *kwargs]
    num_tensors = num_without_values = 0
    for value in (*args, *kwargs.values()):
        seen.append(type(value))
        for part in value if isinstance(value, (list, tuple)) else (value,):
            if isinstance(part, Simulated):
                if function in _INDEXED and part.dtype == torch.bool:  # the number of rows depends on its values
                    return None
                num_tensors += 1
                num_without_values += part.held.is_meta
                seen += _layout(part.held)
            elif isinstance(part, Tensor):
                return None
            else:
                seen += (type(part), part)
    has_values = num_tensors > 0 and not num_without_values
    if has_values or (kind == "itself" and not (isinstance(args[0], Simulated) and args[0].held.is_meta)):
        return None
    return tuple(seen)


def _run_again(kind: str, args: tuple, layout: tuple) -> Any:
    if kind == "itself":
        return args[0]
    if kind == "several":
        return tuple(None if each is None else _new(each) for each in layout)
    if kind == "view":
        size, stride, _, offset = layout
        return Simulated(args[0].held.as_strided(size, stride, offset))
    return _new(layout)


def _new(layout: tuple) -> Simulated:
    size, stride, dtype, _ = layout
    return Simulated(torch.empty_strided(size, stride, dtype=dtype, device="meta"))


def _run_anew(function: Any, args: tuple, kwargs: dict[str, Any]) -> Any:
    target = kwargs.get("device")
    if function is _aten._local_scalar_dense.default:
        return function(_values(args[0]))
    if function is _aten.copy_.default and not isinstance(args[0], Simulated):
        return args[0].copy_(_values(args[1]).to(args[0].device))
    if target is not None and torch.device(target).type == "cpu":
        return function(*tree_map(_values, args), **kwargs)
    if target is not None:
        kwargs = {**kwargs, "device": "meta"}
    if function in _INDEXED:
        args = args[0], [row for index in args[1] for row in _rows(index)], *args[2:]
    leaves, spec = tree_flatten((args, kwargs))
    own = [value for value in leaves if isinstance(value, Simulated)]
    held = [value.held if isinstance(value, Simulated) else value for value in leaves]
    has_values = not any(isinstance(value, Tensor) and value.is_meta for value in held)
    if has_values:
        is_known = target is None and own and "out" not in function._overloadname
        made = own if is_known else tree_leaves(_call(function, _on_meta(held), spec))
        has_values = all(value.numel() <= MOST_WITH_VALUES for value in made if isinstance(value, Tensor))
        if target is not None and has_values:
            held = ["cpu" if value == "meta" and isinstance(value, str) else value for value in held]
    if not has_values:
        for value in _changed(function, args, kwargs):
            if isinstance(value, Simulated) and not value.held.is_meta:  # it gets values that are not known
                value.held = value.held.to("meta")
        held = _on_meta([value.held if isinstance(value, Simulated) else value for value in leaves])
    known = {id(value.held): value for value in own}

    def on_gpu(value: Any) -> Any:
        if not isinstance(value, Tensor):
            return value
        argument = known.get(id(value))  # of an operation in place
        if argument is not None and argument.shape != value.shape:
            argument.data = Simulated(value)
        return Simulated(value) if argument is None else argument

    result = _call(function, held, spec)
    return on_gpu(result) if isinstance(result, Tensor) else tree_map(on_gpu, result)


def _call(function: Any, leaves: list[Any], spec: Any) -> Any:
    args, kwargs = tree_unflatten(leaves, spec)
    return function(*args, **kwargs)


def _on_meta(leaves: list[Any]) -> list[Any]:
    return [value.to("meta") if isinstance(value, Tensor) and not value.is_meta else value for value in leaves]


def _values(value: Any) -> Any:
    """What is read of a tensor: ones, where it has no values."""
    held = value.held if isinstance(value, Simulated) else value
    return torch.ones(held.shape, dtype=held.dtype) if isinstance(held, Tensor) and held.is_meta else held


def _rows(index: Any) -> list[Any]:
    """An index, or the rows that a mask with values selects, which a tensor without values can be indexed by, too."""
    held = index.held if isinstance(index, Simulated) else index
    is_mask = isinstance(held, Tensor) and held.dtype == torch.bool and not held.is_meta
    return list(held.nonzero().unbind(1)) if is_mask else [index]


def _changed(function: Any, args: tuple, kwargs: dict[str, Any]) -> list[Any]:
    """The arguments that an operation writes to."""
    changed = []
    for number, argument in enumerate(function._schema.arguments):
        if argument.alias_info is not None and argument.alias_info.is_write:
            given = args[number] if number < len(args) else kwargs.get(argument.name)
            changed += tree_leaves(given)
    return changed


class _Attention(torch.autograd.Function):
    """Fused attention: keeps its inputs and output and a sum for each query, not the matrix."""

    @staticmethod
    def forward(ctx: Any, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None) -> Tensor:
        *batch, heads, length, _ = query.shape
        output = query.new_empty(*batch, length, heads, value.shape[-1]).transpose(-2, -3)
        sums = query.new_empty(*batch, heads, length, dtype=torch.float32)
        ctx.save_for_backward(query, key, value, output, sums, mask)
        return output

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        query, key, value, _, sums, _ = ctx.saved_tensors
        work = torch.empty_like(query, dtype=torch.float32), torch.empty_like(sums)  # the gradient is summed in float32
        gradients = torch.empty_like(query), torch.empty_like(key), torch.empty_like(value)
        del work
        return *gradients, None


def _attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    if not isinstance(query, Simulated):
        return _attend_elsewhere(query, key, value, attn_mask, dropout_p, is_causal, scale, enable_gqa)
    if torch.is_autocast_enabled(GPU.type):
        query, key, value = (each.to(torch.get_autocast_dtype(GPU.type)) for each in (query, key, value))
    return _Attention.apply(query, key, value, attn_mask)


_attend_elsewhere = F.scaled_dot_product_attention
F.scaled_dot_product_attention = _attend
