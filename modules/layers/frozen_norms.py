"""Frozen norm layers without casts.

Autocast computes norms in float32 in any case: it casts their input and their weights in each pass, hands on what takes
twice the memory and is cast again for each layer that follows, and so it goes for the gradients. diffusers' own RMSNorm
takes eight operations. PyTorch's kernels compute in float32 whatever dtype they read and write, so that one operation
with one rounding does.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from diffusers.models import normalization
from torch import Tensor, nn
from torch.nn import functional as F

from modules.layers.training_passes import is_training_pass


def fuse_norms(module: nn.Module) -> None:
    """Lets frozen norm layers in `module` compute as above in training passes, and those with a modulation, too.

    Subclasses stay as they are, and so do group norms: in bfloat16 between them and the activation that follows, the
    gradients of a U-Net had a third more error.
    """
    for layer in module.modules():
        if type(layer) in _KINDS:
            layer.__class__ = _KINDS[type(layer)]


def _fits(layer: nn.Module, values: Tensor) -> bool:
    """Whether the layer's weights are frozen, and one kernel computes its result in the precision of these values.

    Not float16 under autocast, whose range is too small for what is between layers.
    """
    if not is_training_pass():
        return False
    device = values.device.type
    if torch.is_autocast_enabled(device) and not values.dtype == torch.get_autocast_dtype(device) == torch.bfloat16:
        return False
    weights = (weight for weight in layer._parameters.values() if weight is not None)
    return all(weight.dtype == values.dtype and not weight.requires_grad for weight in weights)


@contextmanager
def _without_autocast(device: str) -> Iterator[None]:
    # torch.autocast takes as long as several kernels do, and has nothing to restore here
    enabled = torch.is_autocast_enabled(device)
    torch.set_autocast_enabled(device, False)
    try:
        yield
    finally:
        torch.set_autocast_enabled(device, enabled)


class _LayerNorm(nn.LayerNorm):
    def forward(self, input: Tensor) -> Tensor:
        if not _fits(self, input):
            return super().forward(input)
        with _without_autocast(input.device.type):
            return super().forward(input)


class _TorchRMSNorm(nn.RMSNorm):
    def forward(self, x: Tensor) -> Tensor:
        if not _fits(self, x):
            return super().forward(x)
        with _without_autocast(x.device.type):
            return super().forward(x)


class _RMSNorm(normalization.RMSNorm):
    def forward(self, hidden_states: Tensor) -> Tensor:
        if not _fits(self, hidden_states):
            return super().forward(hidden_states)
        with _without_autocast(hidden_states.device.type):
            # over the last dimension as diffusers does, whose Mochi declares another one
            normed = F.rms_norm(hidden_states, hidden_states.shape[-1:], self.weight, self.eps)
        return normed if self.bias is None else normed + self.bias


class _FP32LayerNorm(normalization.FP32LayerNorm):
    def forward(self, inputs: Tensor) -> Tensor:
        if not _fits(self, inputs):
            return super().forward(inputs)
        with _without_autocast(inputs.device.type):
            return nn.LayerNorm.forward(self, inputs)


class _AdaLayerNormZero(normalization.AdaLayerNormZero):
    def forward(
        self,
        x: Tensor,
        timestep: Tensor | None = None,
        class_labels: torch.LongTensor | None = None,
        hidden_dtype: torch.dtype | None = None,
        emb: Tensor | None = None,
    ) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
        if self.emb is not None or emb is None or not _fits(self.norm, x):
            return super().forward(x, timestep, class_labels, hidden_dtype, emb)
        shift, scale, gate, *of_mlp = self.linear(self.silu(emb)).chunk(6, dim=1)
        return _modulated(self.norm, x, scale, shift), gate, *of_mlp


class _AdaLayerNormZeroSingle(normalization.AdaLayerNormZeroSingle):
    def forward(self, x: Tensor, emb: Tensor | None = None) -> tuple[Tensor, ...]:  # type: ignore[override] # declares five
        if emb is None or not _fits(self.norm, x):
            return super().forward(x, emb)
        shift, scale, gate = self.linear(self.silu(emb)).chunk(3, dim=1)
        return _modulated(self.norm, x, scale, shift), gate


def _modulated(norm: nn.LayerNorm, x: Tensor, scale: Tensor, shift: Tensor) -> Tensor:
    """norm(x) * (1 + scale) + shift. x: [B, S, C]. scale, shift: [B, C]. norm: without a weight."""
    factor = 1 + scale
    if len(x) > 1 or factor.dtype != x.dtype:
        return torch.addcmul(shift[:, None], norm(x), factor[:, None])
    with _without_autocast(x.device.type):  # of one sample, they are what a norm has as its weight and bias
        return F.layer_norm(x, norm.normalized_shape, factor[0], shift[0], norm.eps)


_KINDS: dict[type, type] = {
    nn.LayerNorm: _LayerNorm,
    nn.RMSNorm: _TorchRMSNorm,
    normalization.RMSNorm: _RMSNorm,
    normalization.FP32LayerNorm: _FP32LayerNorm,
    normalization.AdaLayerNormZero: _AdaLayerNormZero,
    normalization.AdaLayerNormZeroSingle: _AdaLayerNormZeroSingle,
}
