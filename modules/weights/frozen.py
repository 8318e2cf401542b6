"""Components as training uses them until a method asks for gradients."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, cast

if TYPE_CHECKING:
    from torch import nn


def frozen(component: Any, channels_last: bool) -> Any:
    """The component, which if it is a module has no gradients, and is in evaluation mode.

    channels_last: whether the 2D convolutions of diffusers' modules have their weights in that layout.
    """
    if hasattr(component, "requires_grad_"):
        component.requires_grad_(False).eval()
        if channels_last and component.__class__.__module__.startswith("diffusers"):
            import torch

            from modules.weights.deferred_casts import compute

            for layer in component.modules():
                if isinstance(layer, torch.nn.Conv2d):  # not Conv3d, which has five axes
                    compute(layer)
                    # torch declares `to` without this argument
                    cast("Callable[..., nn.Module]", layer.to)(memory_format=torch.channels_last)
    return component
