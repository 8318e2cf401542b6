"""A GPU that is not there: tensors claim to be on it and are held by the CPU, with their values.

What a GPU would refuse or wait for raises an AssertionError with the line of our code: an operation on tensors of two
devices, one that does not take their dtypes, and inside of `no_waits` everything for which the host waits until the GPU
has computed. Where a library's own code or a family waits, `waits_elsewhere` has its file instead. A copy to the CPU
with `non_blocking` arrives when its event has been waited for, and is NaN until then; so does any copy on a stream of
its own, if what it copies has not been freed meanwhile. Code that asks `is_gpu` is told that it is one.
scripts/simulated_gpu.py measures memory.

A process must import this before its first backward pass, after which autograd knows no further device, and is then no
longer as it was for other tests. So it runs in a process of its own, see tests/trainer/test_pretended_gpu.py.
"""

from __future__ import annotations

import functools
import linecache
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._pytree import tree_leaves, tree_map

from modules.machine import devices
from scripts import python_device
from scripts.python_device import DeviceTensor, make_device
from tests.support.LateCopies import LateCopies, spoil

ROOT = Path(__file__).resolve().parents[2]

_aten = torch.ops.aten
# The host needs a value of the result, or its size.
_WAITING = {
    _aten._local_scalar_dense.default,
    _aten.equal.default,
    _aten.is_nonzero.default,
    _aten.nonzero.default,
    _aten.masked_select.default,
    _aten.bincount.default,
    _aten._unique2.default,
    _aten.unique_dim.default,
    _aten.unique_consecutive.default,
}
_INDEXING = {_aten.index.Tensor, _aten.index_put.default, _aten.index_put_.default, _aten._index_put_impl_.default}
_TORCH = str(Path(torch.__file__).parent)
_COPIES = {_aten.copy_.default, _aten._to_copy.default}
# CUDA takes up to 64 KiB with the command, without waiting. Here all is tiny, so that a tiny limit finds a batch.
_LEAST_BYTES_WAITED_FOR = 256

_waits_forbidden = False  # of all threads: autograd has its own
_step = 0  # the number of the last one in this run
waits_elsewhere: set[str] = set()  # files, as "diffusers/models/embeddings.py", that waited in `no_waits`
may_wait: set[str] = set()  # functions of ours that are known to wait
_arriving: list[tuple[Tensor, Tensor]] = []  # (on the CPU, on the GPU) of copies that no event has been recorded after
late_copies: list[LateCopies] = []  # those of each stream
_pinned: dict[int, StorageWeakRef] = {}  # by its address: memory that the GPU can copy from and to by itself
_launched = 0  # operations so far
_copying: Stream | None = None  # the stream of a context, if there is one

_PLAIN = (int, float, str, torch.dtype, torch.device, torch.layout, torch.memory_format, type(None))

# As a library's: a family may have to know values, such as which experts a token goes to.
_FAMILIES = "modules/families/"


class OnGpu(DeviceTensor):
    """A tensor on the pretended GPU, held with its values by the CPU."""

    is_cuda = True  # for code that has another way for a CPU

    def __repr__(self, **_: Any) -> str:  # torch prints values, which are read from the GPU
        return f"OnGpu({self.tolist()})"

    @classmethod
    def run(cls, function: Any, args: tuple, kwargs: dict[str, Any]) -> Any:
        return _run(function, args, kwargs)

    @property
    def data(self) -> Tensor:
        return self.detach()

    @data.setter
    def data(self, value: Tensor) -> None:
        if isinstance(value, OnGpu):
            DeviceTensor.data.__set__(self, value)
        else:
            _become(self, value)


GPU = make_device("pretended", OnGpu)
devices.GPU_TYPE = GPU.type


def begin_run() -> None:
    """Forgets what earlier runs of this process have done."""
    global _step
    _step = 0
    waits_elsewhere.clear()
    late_copies.clear()
    may_wait.clear()


@contextmanager
def no_waits() -> Iterator[None]:
    """Inside, which is a step, it is an error to wait for the GPU. Events of earlier steps have long come."""
    global _waits_forbidden, _step
    _waits_forbidden, _step = True, _step + 1
    try:
        yield
    finally:
        _waits_forbidden = False


class Event:
    """In place of torch.cuda.Event."""

    def __init__(self, blocking: bool = False):
        self._sleeps = blocking

    def record(self, stream: _ComputingStream | None = None) -> None:
        self._copies = list(_arriving)
        self._step = _step
        _arriving.clear()

    def synchronize(self) -> None:
        if _waits_forbidden and self._step == _step:
            _refuse_to_wait("an event of this very step")
        if not self._sleeps:
            raise AssertionError(f"The host keeps a core busy while it waits for an event{_line_of_ours()}")
        for target, source in self._copies:
            target.copy_(source.held)


class Stream:
    """In place of torch.cuda.Stream: it only copies."""

    def __init__(self, device: torch.device):
        self._waited_for = -1
        self._late = LateCopies()
        late_copies.append(self._late)

    def wait_stream(self, computing: _ComputingStream) -> None:
        self._waited_for = _launched

    def record_event(self) -> Callable[[], None]:
        return functools.partial(self._late.finish, self._late.num_started)

    def synchronize(self) -> None:
        if _waits_forbidden and _step > 3:  # the first ones may make the state, and room for it, that later ones use
            _refuse_to_wait("the copies of a stream")
        self._late.finish(self._late.num_started)

    def copy(self, target: Tensor, source: Tensor, is_blocking: bool) -> None:
        if self._waited_for != _launched:
            _refuse("A copy does not wait for what has been launched before")
        host = source if isinstance(target, OnGpu) else target
        if is_blocking or not _is_pinned(host):
            _refuse_to_wait("a copy without non_blocking, or of memory that is not pinned")
        self._late.start(*_held((target, source)), from_device=isinstance(source, OnGpu))


class _ComputingStream:
    """The stream that everything else is on."""

    def wait_event(self, arrive: Callable[[], None]) -> None:
        arrive()


@contextmanager
def _on(stream: Stream) -> Iterator[None]:
    global _copying
    _copying = stream
    try:
        yield
    finally:
        _copying = None


def _run(function: Any, args: tuple, kwargs: dict[str, Any]) -> Any:
    """Runs an operation with the values of its tensors, and pretends that the result is on the GPU."""
    global _launched
    if _copying is not None and function is _aten.copy_.default:
        _copying.copy(args[0], args[1], not _is_non_blocking(args, kwargs))
        return args[0]
    _launched += 1
    given = [*_tensors(args), *_tensors(kwargs.values())]
    target = kwargs.get("device")
    to_host = (target is not None and not _is_gpu(target)) or (
        function is _aten.copy_.default and not isinstance(args[0], OnGpu)
    )
    if to_host and function in _COPIES and isinstance(given[-1], OnGpu) and _is_non_blocking(args, kwargs):
        return _copy_late(function, args, kwargs)
    if function not in _COPIES and not all(isinstance(value, OnGpu) for value in given):
        _check_devices(function, args, kwargs)
    if _waits_forbidden and (reason := _why_it_waits(function, args, kwargs, to_host)):
        _refuse_to_wait(reason)
    if target is not None and not to_host:
        kwargs = {**kwargs, "device": "cpu"}
    own = {id(value.held): value for value in given if isinstance(value, OnGpu)}
    try:
        result = function(*_held(args), **_held(kwargs))
    except (RuntimeError, TypeError) as error:
        raise AssertionError(f"A GPU would refuse {function}: {error}{_line_of_ours()}") from error

    def on_gpu(value: Any) -> Any:
        if not isinstance(value, Tensor):
            return value
        known = own.get(id(value))  # the argument of an operation in place
        if known is not None and known.shape != value.shape:  # as torch.arange resizes what it is to fill
            known.data = OnGpu(value)
        return OnGpu(value) if known is None else known

    return result if to_host else _mapped(on_gpu, result)


def _copy_late(function: Any, args: tuple, kwargs: dict[str, Any]) -> Tensor:
    """A copy to the CPU, which arrives with the next event that is recorded."""
    if function is _aten.copy_.default:
        target, source = args[:2]
        if _waits_forbidden and not _is_pinned(target):
            _refuse_to_wait("a copy to memory that is not pinned")
    else:  # torch copies to new memory that is pinned
        source = args[0]
        target = function(source.held, *args[1:], **kwargs)
        _pin(target)
    _arriving.append((target, source))
    spoil(target)
    return target


def _become(tensor: Tensor, value: Tensor) -> None:
    """Lets a parameter have its values elsewhere from now on, as torch does by itself for devices of its own."""
    torch.utils.swap_tensors(tensor, torch.nn.Parameter(value.detach(), requires_grad=tensor.requires_grad))


def _pin(tensor: Tensor) -> None:
    storage = tensor.untyped_storage()
    _pinned[storage.data_ptr()] = StorageWeakRef(storage)


def _is_pinned(tensor: Tensor) -> bool:
    memory = _pinned.get(tensor.untyped_storage().data_ptr())
    return memory is not None and not memory.expired()  # else the address has got another use


def _held(values: Any) -> Any:
    return _mapped(lambda value: value.held if isinstance(value, OnGpu) else value, values)


def _mapped(change: Callable[[Any], Any], values: Any) -> Any:
    """torch's own `tree_map`, which took half of the time of a run, for what operations take and return."""
    if isinstance(values, Tensor):
        return change(values)
    if type(values) in (tuple, list):
        return type(values)([_mapped(change, value) for value in values])
    if type(values) is dict:
        return {name: _mapped(change, value) for name, value in values.items()}
    return values if isinstance(values, _PLAIN) else tree_map(change, values)


def _tensors(values: Iterable[Any]) -> Iterator[Tensor]:
    for value in values:
        if isinstance(value, Tensor):
            yield value
        elif isinstance(value, tuple | list):
            yield from _tensors(value)


def _is_gpu(device: torch.device | str) -> bool:
    return torch.device(device).type == GPU.type


def _check_devices(function: Any, args: tuple, kwargs: dict[str, Any]) -> None:
    # CUDA takes a scalar from the CPU, unless it is to hold the result, and indexes by a tensor there, which it copies
    # and so waits for
    parameters = function._schema.arguments
    named = [*zip(parameters, args, strict=False), *((each, kwargs.get(each.name)) for each in parameters[len(args) :])]
    left = [
        value
        for parameter, values in named
        for value in tree_leaves(values)
        if isinstance(value, Tensor) and not isinstance(value, OnGpu) and (value.dim() or _is_written(parameter))
    ]
    if left and function not in _INDEXING:
        shapes = ", ".join(f"{value.dtype}{list(value.shape)}" for value in left)
        _refuse(f"Left on the CPU: {shapes}, which meets the GPU in {function}")


def _is_written(parameter: Any) -> bool:
    return parameter.alias_info is not None and parameter.alias_info.is_write


def _why_it_waits(function: Any, args: tuple, kwargs: dict[str, Any], to_host: bool) -> str:
    """What the host waits for; "" if it does not."""
    if function in _WAITING:
        return f"{function} reads a value"
    if function in _INDEXING:
        by = [index for index in args[1] if index is not None]
        # A backward pass undoes what the forward pass indexed, where that has been judged.
        if any(index.dtype == torch.bool for index in by) and not _is_backward():
            return "an index by a mask has to know how many are true"
        if any(not isinstance(index, OnGpu) for index in by):
            return "an index on the CPU is copied"
    if function is _aten.repeat_interleave.Tensor and kwargs.get("output_size") is None:
        return "repeat_interleave needs output_size, or it reads the size of its result"
    if function in _COPIES:
        source = args[1] if function is _aten.copy_.default else args[0]
        return _why_a_copy_waits(source, to_host, not _is_non_blocking(args, kwargs))
    return ""


def _why_a_copy_waits(source: Tensor, to_host: bool, is_blocking: bool) -> str:
    if to_host:
        return "a copy to the CPU" if isinstance(source, OnGpu) and is_blocking else ""
    if isinstance(source, OnGpu):
        return ""
    if source.dim() and is_blocking:
        return "a copy from the CPU without non_blocking"
    is_large = source.nbytes > _LEAST_BYTES_WAITED_FOR
    return "a copy of memory that is not pinned" if is_large and not _is_pinned(source) else ""


def _is_non_blocking(args: tuple, kwargs: dict[str, Any]) -> bool:
    return kwargs.get("non_blocking", False) or args[2:3] == (True,)


def _refuse_to_wait(reason: str) -> None:
    frame = next((frame for frame in _frames() if not frame.f_code.co_filename.startswith(_TORCH)), None)
    name = "" if frame is None else _name(frame)
    if frame is None or (_is_ours(frame) and not name.startswith(_FAMILIES) and frame.f_code.co_name not in may_wait):
        _refuse(f"The step waits for the GPU: {reason}")
    waits_elsewhere.add(name)


def _refuse(message: str) -> NoReturn:
    message += _line_of_ours()
    if _is_backward():  # an error in a thread of autograd may end the process before anything can tell it
        print(message, file=sys.stderr, flush=True)
    raise AssertionError(message)


def _line_of_ours() -> str:
    """Where in our code this is, innermost; "" for a backward pass, which autograd runs in a thread of its own."""
    frame = next(filter(_is_ours, _frames()), None)
    if frame is None:
        return ", in a backward pass" if _is_backward() else ""
    line = linecache.getline(frame.f_code.co_filename, frame.f_lineno).strip()
    return f", at {_name(frame)}:{frame.f_lineno}: {line}"


def _is_backward() -> bool:
    return torch._C._current_graph_task_id() != -1


def _name(frame: FrameType) -> str:
    file = frame.f_code.co_filename
    return Path(file).relative_to(ROOT).as_posix() if _is_ours(frame) else file.rpartition("site-packages/")[2]


def _frames() -> Iterator[FrameType]:
    """Those of the callers outside of the device, innermost first."""
    frame: FrameType | None = sys._getframe()
    while frame is not None:
        if frame.f_code.co_filename not in (__file__, python_device.__file__):
            yield frame
        frame = frame.f_back


def _is_ours(frame: FrameType) -> bool:
    file = frame.f_code.co_filename
    return file.startswith(str(ROOT)) and "site-packages" not in file


def _in_any_memory(make: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """torch.empty, which can't pin memory here."""

    @functools.wraps(make)
    def made(*args: Any, pin_memory: bool = False, **kwargs: Any) -> Tensor:
        result = make(*args, **kwargs)
        if pin_memory:
            _pin(result)
        return result

    return made


def _pin_memory(self: Tensor) -> Tensor:
    copy = self.clone()
    _pin(copy)
    return copy


_own_data = Tensor.data


def _set_data(self: torch.nn.Parameter, value: Tensor) -> None:
    if isinstance(value, OnGpu):
        _become(self, value)
    else:
        _own_data.__set__(self, value)


torch.empty = _in_any_memory(torch.empty)
Tensor.pin_memory = _pin_memory
torch.nn.Parameter.data = property(_own_data.__get__, _set_data)  # of those on the CPU
_COMPUTING = _ComputingStream()
torch.cuda.Event, torch.cuda.Stream, torch.cuda.stream = Event, Stream, _on
torch.cuda.current_stream = lambda device=None: _COMPUTING
torch.cuda.device = lambda device: nullcontext()
torch.cuda.memory_allocated = torch.cuda.max_memory_allocated = lambda device=None: 0
torch.cuda.mem_get_info = lambda device=None: (2**40, 2**40)  # bytes that are free, and all
