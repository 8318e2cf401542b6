"""Gives a model that was built on the meta device, without memory, its first values: a block at a time, so that ranks
which share the weights never hold more than one block of them whole.

The values depend on the seed and the names of the modules, not on the order, the ranks or the strategy.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from modules.config.errors import UserError
from modules.data.draws import torch_seed
from modules.distributed.seeding import seed_device
from modules.machine.devices import is_gpu
from modules.weights.errors import WeightsError
from modules.weights.safe import load_tensors, read_header, tensor_shapes

InitWeights = Callable[[nn.Module], Any] | str | os.PathLike
RESETS = ("reset_parameters", "_reset_parameters")  # what torch's modules call their initialization


class MetaWeights:
    """The first values of the tensors of `model` that are on the meta device.

    init: called with each module that has some of its own, after its `reset_parameters`; or a safetensors file with the
        state dict of the model.
    Raises UserError if the file does not fit, or if `init` is given for a model that has values.
    """

    def __init__(self, model: nn.Module, init: InitWeights | None, seed: int, device: torch.device):
        self._names = {module: name for name, module in model.named_modules()}
        self._seed, self._device = seed, device
        self._file = None if init is None or callable(init) else Path(init)
        self._init = init if callable(init) else None
        is_empty = any(map(_has_own, model.modules()))
        if init is not None and not is_empty:
            raise UserError(
                'init_weights: the model has values already; build it below `with torch.device("meta"):`, or omit this.'
            )
        self._saved = _shapes(self._file) if self._file else {}
        for name, tensor in _persistent(model) if self._file else ():
            if tensor.is_meta and self._saved.get(name) != tensor.shape:
                found = tuple(self._saved[name]) if name in self._saved else "missing"
                raise UserError(
                    f"init_weights {str(self._file)!r}: {name} is {found}, and the model needs {tuple(tensor.shape)}; "
                    "choose a file with the state dict of this model."
                )

    def fill(self, part: nn.Module) -> None:
        """Puts those in `part` on the device, with values. Raises UserError if nothing gives them some."""
        modules = [module for module in part.modules() if _has_own(module)]
        fresh: dict[Tensor, Tensor] = {}  # tied ones stay tied
        for module in modules:
            tables: list[dict[str, Any]] = [module._parameters, module._buffers]
            for own in tables:
                for name, tensor in own.items():
                    if tensor is not None and tensor.is_meta:
                        own[name] = fresh.setdefault(tensor, _empty(tensor, self._device))
        gpus = [self._device] if is_gpu(self._device) else []
        with torch.no_grad(), torch.random.fork_rng(gpus):
            for module in modules:
                seed_device(torch_seed(self._seed, self._names[module], "weights"), self._device)
                self._fill(module)
        for module in modules:
            self._check(module)

    def _fill(self, module: nn.Module) -> None:
        for reset in (getattr(module, name, None) for name in RESETS):
            if callable(reset):
                reset()
        if self._init:
            self._init(module)
        if self._file:
            saved = {self._full(module, name): value for name, value in _own(module)}
            values = load_tensors(self._file, [name for name in saved if name in self._saved])
            for name, value in values.items():
                saved[name].copy_(value)

    def _check(self, module: nn.Module) -> None:
        for name, value in _own(module):
            is_reset = self._init or any(hasattr(module, reset) for reset in RESETS)
            is_given = self._full(module, name) in self._saved or is_reset
            if not is_given or (value.is_floating_point() and bool(value.isnan().any())):
                raise UserError(
                    f"model: {self._full(module, name)} is on the meta device and gets no values; give "
                    f"{type(module).__name__} a method reset_parameters(), or pass init_weights."
                )

    def _full(self, module: nn.Module, name: str) -> str:
        return f"{self._names[module]}.{name}".removeprefix(".")


def _own(module: nn.Module) -> Iterator[tuple[str, Tensor]]:
    yield from module.named_parameters(recurse=False)
    yield from module.named_buffers(recurse=False)


def _has_own(module: nn.Module) -> bool:
    return any(tensor.is_meta for _, tensor in _own(module))


def _persistent(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    return ((name, value) for name, value in model.state_dict(keep_vars=True).items() if isinstance(value, Tensor))


def _empty(tensor: Tensor, device: torch.device) -> Tensor:
    values = torch.empty_like(tensor, device=device)
    if values.is_floating_point():
        values.detach().fill_(math.nan)  # so that what gets no values is noticed
    return nn.Parameter(values, tensor.requires_grad) if isinstance(tensor, nn.Parameter) else values


def _shapes(path: Path) -> dict[str, tuple[int, ...]]:
    try:
        return tensor_shapes(read_header(path))
    except (OSError, WeightsError) as error:
        raise UserError(f"init_weights: {error}") from error
