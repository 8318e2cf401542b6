"""PEFT's LoRA of a linear layer, with its base in one function: fewer and larger operations, and less to keep.

PEFT casts inputs and weights in each pass, multiplies by the scale and adds. Here, the weights of a block are cast at
once, their gradients, too, and the products themselves scale and add.
"""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from modules.layers.LowCopies import LowCopies, share_copies
from modules.layers.QuantizedLinear import Form, QuantizedLinear, gradient_of_inputs, multiply
from modules.layers.quiet_imports import import_peft

import_peft()  # before anything else imports it

from peft.tuners.lora import layer as peft_layers  # noqa: E402


class LoraLinear(peft_layers.Linear):
    """PEFT's layer with another forward pass; its modules, parameters and their names are PEFT's.

    It leaves to PEFT what it can't compute: several adapters or none, DoRA and other variants, dropout, biases of
    adapters, hooks on the parts, a base that trains, and dtypes that only PEFT's casts make equal. Also passes without
    gradients, and what torch compiles, which fuses by itself.
    """

    copies: LowCopies
    block: str  # the name of that which it is in

    def forward(self, x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        # without gradients, samples are to the bit what a pipeline makes of the saved file
        fused = torch.is_grad_enabled() and not (args or kwargs or torch.compiler.is_compiling())
        adapter = self._adapter() if fused else None
        dtype = adapter and self._precision(x, *adapter)
        if not adapter or not dtype:
            return super().forward(x, *args, **kwargs)
        down, up, factor = adapter
        base = cast("nn.Linear", self._modules["base_layer"])
        low_down, low_up = self.copies.of((down, up), self.block, dtype)
        plan = _Plan(factor, base, dtype)
        return _Product.apply(x if x.dtype == dtype else x.to(dtype), low_down, low_up, plan)

    def weights_to_cast(self) -> tuple[Tensor, Tensor] | None:
        """[rank, in] and [out, rank] of the adapter; None where PEFT has to compute it."""
        adapter = self._adapter()
        return adapter and adapter[:2]

    def _adapter(self) -> tuple[Tensor, Tensor, float] | None:
        """The factors of the one active adapter and its scale; None where PEFT has to compute it.

        The parts are taken from the dictionaries that hold them, since it is asked in each pass of each layer.
        """
        active = self._active_adapter
        if self._disable_adapters or self.merged_adapters or (type(active) is not str and len(active) != 1):
            return None
        name = active if type(active) is str else active[0]
        parts: Any = self._modules
        base = parts["base_layer"]
        down, up, dropout = (parts[each]._modules.get(name) for each in _OF_ADAPTER)
        drops = self.training and isinstance(dropout, nn.Dropout) and dropout.p > 0
        if down is None or drops or name in self.lora_variant:
            return None
        for part in (base, down, up, dropout):
            if part._forward_hooks or part._forward_pre_hooks or part._backward_hooks or part._backward_pre_hooks:
                return None
        weight, bias = base._parameters["weight"], base._parameters["bias"]
        if weight.requires_grad or (bias is not None and bias.requires_grad) or up._parameters["bias"] is not None:
            return None
        return down._parameters["weight"], up._parameters["weight"], self.scaling[name]

    def _precision(self, x: Tensor, down: Tensor, up: Tensor, factor: float) -> torch.dtype | None:
        """The one that all is computed in; None where PEFT's casts are needed."""
        device = x.device.type
        if torch.is_autocast_enabled(device):
            return None if x.dtype == torch.float64 else torch.get_autocast_dtype(device)
        base: Any = self._modules["base_layer"]
        own = x.dtype if isinstance(base, QuantizedLinear) else base.weight.dtype  # a quantized one takes any
        return x.dtype if x.dtype == own == down.dtype == up.dtype else None


_OF_ADAPTER = ("lora_A", "lora_B", "lora_dropout")


def fuse_lora(module: nn.Module) -> None:
    """Lets PEFT's LoRAs of linear layers in `module` compute as above, where they can."""
    layers: dict[str, Any] = {
        path: layer
        for path, layer in module.named_modules()
        if type(layer) is peft_layers.Linear and not layer.fan_in_fan_out and type(layer.base_layer) in _BASES
    }
    for layer in layers.values():
        layer.__class__ = LoraLinear
    share_copies(layers)


_BASES = (nn.Linear, QuantizedLinear)


class _Plan:
    """What a product takes beside what gets gradients."""

    __slots__ = ("bias", "factor", "form", "held")

    def __init__(self, factor: float, base: nn.Linear, dtype: torch.dtype):
        self.factor = factor
        weight, bias = cast("Tensor", base._parameters["weight"]), base._parameters["bias"]
        self.bias = bias if bias is None or bias.dtype == dtype else bias.to(dtype)
        self.form: Form | None = None  # of a quantized weight
        self.held: tuple[Tensor, ...]
        if isinstance(base, QuantizedLinear):
            self.form = base.form
            self.held = weight, base.scale
        else:
            self.held = (weight if weight.dtype == dtype else weight.to(dtype),)


class _Product(torch.autograd.Function):
    """x W^T + bias + factor * (x A^T) B^T, for a frozen W.

    x: [..., in]. down, up: A [rank, in] and B [out, rank], in the dtype of x. Keeps x A^T beside x and what holds W, so
    that the backward pass computes nothing again but a quantized weight.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, down: Tensor, up: Tensor, plan: _Plan) -> Tensor:
        rows = x.reshape(-1, x.shape[-1])
        # as the layer without its adapter: an adapter of zeros then changes no bit, and a loss that compares the two
        # predictions, as of prior preservation, has no gradient from rounding alone
        if plan.form:
            weight, scale = plan.held
            result = multiply(x, weight, scale, plan.bias, plan.form)
        else:
            result = nn.functional.linear(x, plan.held[0], plan.bias)
        inner = torch.mm(rows, down.t())
        result.view(-1, result.shape[-1]).addmm_(inner, up.t(), alpha=plan.factor)
        ctx.save_for_backward(rows, inner, down, up, *plan.held)
        ctx.factor, ctx.form, ctx.shape = plan.factor, plan.form, x.shape
        return result

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        rows, inner, down, up, *held = ctx.saved_tensors
        needs_x, needs_down, needs_up, _ = ctx.needs_input_grad
        of_result = gradient.reshape(-1, gradient.shape[-1])
        of_inner = torch.mm(of_result, up) if needs_x or needs_down else None
        of_x = of_down = of_up = None
        if needs_up:
            of_up = _times(of_result.t(), inner, ctx.factor, up)
        if of_inner is not None and needs_down:
            of_down = _times(of_inner.t(), rows, ctx.factor, down)
        if of_inner is not None and needs_x:
            if ctx.form:
                weight, scale = held
                of_x = gradient_of_inputs(of_result, weight, scale, ctx.form)
            else:
                of_x = torch.mm(of_result, held[0])
            of_x = of_x.addmm_(of_inner, down, alpha=ctx.factor).view(ctx.shape)
        return of_x, of_down, of_up, None


def _times(left: Tensor, right: Tensor, factor: float, alike: Tensor) -> Tensor:
    """factor * left @ right in one operation. alike: of the result's shape and dtype; its values are not read."""
    return torch.mm(left, right) if factor == 1 else torch.addmm(alike, left, right, beta=0, alpha=factor)
