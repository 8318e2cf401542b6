"""Stand-ins for the packages of attention: modules with their functions' signatures, which compute by PyTorch.

They refuse what the packages refuse, and count their calls.
"""

from __future__ import annotations

import sys
from importlib.machinery import ModuleSpec
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional

_attend = functional.scaled_dot_product_attention


class AttentionPackages:
    """flash_attn, kernels and xformers, for the time of a test. called: the number of attentions that each computed."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch):
        self.called = {"flash": 0, "flash3": 0, "xformers": 0}
        self.downloaded: list[tuple[str, Any]] = []
        self._monkeypatch = monkeypatch
        flash, ops = ModuleType("flash_attn"), ModuleType("xformers.ops")
        flash.flash_attn_func = self.flash_attn_func
        ops.memory_efficient_attention = self.memory_efficient_attention
        self._install(flash, ModuleType("xformers"), ops)

    def _install(self, *modules: ModuleType) -> None:
        for module in modules:
            module.__spec__ = ModuleSpec(module.__name__, None)
            self._monkeypatch.setitem(sys.modules, module.__name__, module)

    def install_kernels(self) -> None:
        """For diffusers, which takes FlashAttention 3 from it. It looks for packages when it is imported."""
        from diffusers.models import attention_dispatch as dispatch

        kernels, monkeypatch = ModuleType("kernels"), self._monkeypatch
        kernels.get_kernel = self.get_kernel
        self._install(kernels)
        config = dispatch._HUB_KERNELS_REGISTRY[dispatch.AttentionBackendName._FLASH_3_HUB]
        for name in ("kernel_fn", "wrapped_forward_fn", "wrapped_backward_fn"):
            monkeypatch.setattr(config, name, None)
        monkeypatch.setattr(dispatch, "is_kernels_available", lambda: True)
        monkeypatch.setattr(dispatch, "is_kernels_version", lambda operation, version: True)
        monkeypatch.setattr(dispatch, "HF_HUB_OFFLINE", True)  # who published a kernel is asked of the Hub

    def flash_attn_func(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        dropout_p: float = 0.0,
        softmax_scale: float | None = None,
        causal: bool = False,
    ) -> Tensor:
        """[B, N, H, D], in half precision only."""
        self.called["flash"] += 1
        return self._flash(q, k, v, softmax_scale)

    def get_kernel(self, repo_id: str, revision: str | None = None, version: int | None = None, **_: Any) -> Any:
        self.downloaded.append((repo_id, version))
        interface = SimpleNamespace(_flash_attn_forward=None, _flash_attn_backward=None)
        return SimpleNamespace(flash_attn_func=self._flash3, flash_attn_interface=interface, __name__=repo_id)

    def _flash3(
        self, q: Tensor, k: Tensor, v: Tensor, softmax_scale: float | None = None, causal: bool = False
    ) -> tuple[Tensor, None]:
        """Also gives sums of the rows, as some versions do."""
        self.called["flash3"] += 1
        return self._flash(q, k, v, softmax_scale), None

    @staticmethod
    def _flash(q: Tensor, k: Tensor, v: Tensor, scale: float | None) -> Tensor:
        assert q.dtype in (torch.bfloat16, torch.float16)
        inputs = [each.transpose(1, 2) for each in (q, k, v)]
        return _attend(*inputs, scale=scale, enable_gqa=q.shape[2] != k.shape[2]).transpose(1, 2)

    def memory_efficient_attention(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attn_bias: Tensor | None = None,
        p: float = 0.0,
        scale: float | None = None,
    ) -> Tensor:
        """[B, N, H, D] with as many heads of keys, and masks as values to be added, in rows that are aligned."""
        self.called["xformers"] += 1
        assert query.shape[2:] == key.shape[2:] == value.shape[2:]
        if attn_bias is not None:
            batch, queries, heads, _ = query.shape
            assert attn_bias.shape == (batch, heads, queries, key.shape[1])
            assert attn_bias.dtype == query.dtype
            assert all(stride % 8 == 0 for stride in attn_bias.stride()[:-1])
            assert attn_bias.stride(-1) == 1
        inputs = [each.transpose(1, 2) for each in (query, key, value)]
        return _attend(*inputs, attn_mask=attn_bias, scale=scale).transpose(1, 2)
