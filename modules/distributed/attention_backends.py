"""Chooses what computes attention in a run."""

from __future__ import annotations

from typing import TYPE_CHECKING

from modules.distributed.cudnn_attention import switch_cudnn_attention_off
from modules.distributed.gradient_layouts import match_gradient_layouts

if TYPE_CHECKING:
    import torch


def choose_attention(kind: str, device: torch.device) -> tuple[str, list[str]]:
    """Has this process compute attention as `model.attention` says; returns (what a run says of it, warnings).

    Call it before anything is compiled: compiled code keeps what held when it was compiled.
    Raises UserError if the environment asks for cuDNN's attention, and the setting doesn't.
    """
    import torch

    uses_cudnn = kind == "cudnn" and device.type == "cuda"
    match_gradient_layouts(uses_cudnn)
    if device.type != "cuda":
        return "", [
            f"model.attention cudnn: there is no cuDNN for {device}; PyTorch's is used."
        ] if kind == "cudnn" else []
    if uses_cudnn:
        torch.backends.cuda.enable_cudnn_sdp(True)
        return "Attention by cuDNN, with gradients laid out like its outputs", []
    switch_cudnn_attention_off()
    return "Attention by PyTorch; cuDNN's is off, because its gradients can be wrong", []
