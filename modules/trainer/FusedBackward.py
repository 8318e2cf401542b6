"""Updates each parameter within the backward pass and frees its gradient, so that no two gradients exist for long."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from weakref import WeakMethod

import torch
from torch import Tensor, nn


class FusedBackward:
    """Takes the gradient of each of `params` as soon as the backward pass has completed it.

    A gradient is complete when all uses of its parameter are behind the backward pass, which therefore does not need
    the parameter's old value any more. A step may have one backward pass only.
    """

    def __init__(self, params: Iterable[nn.Parameter]):
        self._update: Callable[[nn.Parameter], bool] | None = None
        self._norms: dict[Tensor, Tensor] = {}
        self._params = list(params)
        # the garbage collector does not see what hooks refer to, so that a parameter would be held by its own for good
        complete = WeakMethod(self._complete)

        def hook(param: Tensor) -> None:
            if method := complete():
                method(param)

        for param in self._params:
            param.register_post_accumulate_grad_hook(hook)

    @contextmanager
    def updating(self, update: Callable[[nn.Parameter], bool]) -> Iterator[None]:
        """Inside, `update` is called with each parameter whose gradient is complete, which is freed afterwards.

        It returns whether the parameter trains in this step; else its gradient does not count.
        """
        self._update = update
        self._norms.clear()
        try:
            yield
        finally:
            self._update = None

    def gradient_norm(self) -> Tensor:
        """The 2-norm (scalar) of all gradients of the last backward pass, equal to that of `get_total_norm`."""
        norms = [self._norms[param] for param in self._params if param in self._norms]
        return torch.linalg.vector_norm(torch.stack(norms)) if norms else torch.tensor(0.0)

    def _complete(self, param: Tensor) -> None:
        if self._update is None:  # a pass that trains nothing
            return
        assert isinstance(param, nn.Parameter)
        assert param.grad is not None  # the hook is called with it
        (norm,) = torch._foreach_norm([param.grad])
        if self._update(param):
            self._norms[param] = norm
        param.grad = None
