"""Gives the backward pass of every attention a gradient in the layout of its output.

PyTorch's key of cuDNN's plans has no layout of the gradient (see cudnn_attention.py). The layout of an output follows
from that of the queries, which the key has: with gradients laid out like outputs, a plan fits all passes with its key.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

_attend = functional.scaled_dot_product_attention  # or what another library has put in its place


def match_gradient_layouts(on: bool) -> None:
    """Switches it on or off in this process, for all that call torch.nn.functional.scaled_dot_product_attention.

    diffusers, transformers and torch's own modules look the function up there at each call. Compiled code keeps what
    held when it was compiled, so call it before.
    """
    global _attend
    is_on = functional.scaled_dot_product_attention is attend_with_matched_gradient
    if on and not is_on:
        _attend = functional.scaled_dot_product_attention
        functional.scaled_dot_product_attention = attend_with_matched_gradient
    elif is_on and not on:
        functional.scaled_dot_product_attention = _attend


def attend_with_matched_gradient(*args: Any, **kwargs: Any) -> Tensor:
    """scaled_dot_product_attention; the values of output and gradients are the same, bit for bit."""
    output = _attend(*args, **kwargs)
    return _MatchGradient.apply(output) if output.requires_grad else output


class _MatchGradient(torch.autograd.Function):
    """The identity, whose gradient has the order of dimensions in memory of its input, without gaps."""

    @staticmethod
    def forward(ctx: Any, output: Tensor) -> Tensor:
        ctx.places = _places(output)
        return output.view_as(output)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        places = ctx.places
        order = [places.index(place) for place in range(len(places))]
        # No question for the strides of the gradient: the compiler, which does not know them yet, would answer it.
        return gradient.permute(order).contiguous().permute(places)


def _places(tensor: Tensor) -> list[int]:
    """The place of each dimension among all of them, sorted from the largest stride to the smallest.

    By comparing pairs, because the compiler can't sort strides that depend on the size of an image.
    """
    strides, dims = tensor.stride(), range(tensor.dim())
    return [len([other for other in dims if _is_before(strides[other], other, strides[dim], dim)]) for dim in dims]


def _is_before(stride: int, dim: int, other_stride: int, other_dim: int) -> bool:
    return stride > other_stride or (stride == other_stride and dim < other_dim)
