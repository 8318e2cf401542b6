"""Counts the attentions that a kernel in the place of PyTorch's attention computes, and those that pass it by."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils._python_dispatch import TorchDispatchMode

from modules.config.attentions import AttentionFacts
from modules.distributed.other_attention import put_in_place, stop_other_attention
from modules.machine import devices

TAKES_ALL = AttentionFacts(
    name="counted", label="Counted attention", dtypes=("float32",), masks=True, narrowest=1, widest=4096, width_step=1
)


class CountedAttention(TorchDispatchMode):
    """A kernel that computes by PyTorch, and watches what is computed meanwhile.

    masked: of each attention, whether it had a mask. passed_by: operations of attentions that were not asked of it,
    with the sizes of their results. told: why it was not asked. A softmax outside of attentions chooses experts.
    """

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        for module in model.modules():
            if "att" in type(module).__name__.lower():
                module.register_forward_pre_hook(self._enter)
                module.register_forward_hook(self._leave)
        self._depth = 0
        self.masked: list[bool] = []
        self.passed_by: list[str] = []
        self.told: list[str] = []
        self._attend = functional.scaled_dot_product_attention
        self._is_inside = False

    def kernel(self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, scale: float | None) -> Tensor:
        self.masked.append(mask is not None)
        self._is_inside = True
        try:
            return self._attend(query, key, value, mask, scale=scale, enable_gqa=query.shape[1] != key.shape[1])
        finally:
            self._is_inside = False

    def _enter(self, *_: Any) -> None:
        self._depth += 1

    def _leave(self, *_: Any) -> None:
        self._depth -= 1

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = function(*args, **(kwargs or {}))
        name = function.__name__
        if not self._is_inside and ("attention" in name or ("softmax" in name and self._depth)):
            shape = tuple((result if isinstance(result, Tensor) else result[0]).shape)
            self.passed_by.append(f"{name}{shape}")
        return result


@contextmanager
def count_attentions(model: nn.Module, monkeypatch: pytest.MonkeyPatch) -> Iterator[CountedAttention]:
    """Inside, models ask the counted attention, also on the CPU. `model` keeps hooks."""
    counted = CountedAttention(model)
    with monkeypatch.context() as patched, torch.no_grad(), counted:
        patched.setattr(devices, "GPU_TYPE", "cpu")
        put_in_place(TAKES_ALL, counted.kernel, counted.told.append)
        try:
            yield counted
        finally:
            stop_other_attention()
