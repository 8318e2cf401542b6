"""Divisions by 1, left out.

diffusers divides the result of each residual block of a U-Net and of each of its attention layers by a factor of its
config, which is 1 in nearly all models. That is an operator in the forward pass, another one with gradient
checkpointing, and one in the backward pass, all with the same numbers as before them.
"""

from __future__ import annotations

from torch import Tensor, nn

_DIVISORS = ("output_scale_factor", "rescale_output_factor")  # of ResnetBlock2D, of Attention


def leave_out_divisions(module: nn.Module) -> None:
    """Lets layers in `module` that divide by a factor of 1 return what they would divide, which is the same."""
    for layer in module.modules():
        for name in _DIVISORS:
            if vars(layer).get(name) == 1:
                setattr(layer, name, _ONE)


class _One:
    """1 as a divisor of tensors."""

    __slots__ = ()

    def __rtruediv__(self, values: Tensor) -> Tensor:
        return values

    def __eq__(self, other: object) -> bool:
        return other == 1

    __hash__ = object.__hash__


_ONE = _One()
