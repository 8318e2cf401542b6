"""Switches cuDNN's attention off in processes that compute gradients.

PyTorch keeps cuDNN's plan of a backward pass by a key that holds the layouts of queries, keys and values, but not that
of the output's gradient (aten/src/ATen/native/cudnn/MHA.cpp). Where a model has attentions of one shape whose gradients
are laid out differently, the plan of the first reads wrong memory for the others: their gradients are NaN, or wrong
without a sign. From version 2.11 on, PyTorch takes cuDNN's attention by itself on compute capability 9.0 and 10.0.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

from modules.config.errors import UserError

BACKEND_VARIABLE = "DIFFUSERS_ATTN_BACKEND"  # read by diffusers when it is imported
ASKS_FOR_CUDNN = "_native_cudnn"


def switch_cudnn_attention_off(env: Mapping[str, str] = os.environ) -> None:
    """For this process; `torch.backends.cuda.enable_cudnn_sdp(True)` switches it on again.

    Compiled code keeps what held when it was compiled, so call it before.
    Raises UserError if the environment has diffusers switch it on again in every attention.
    """
    import torch

    if env.get(BACKEND_VARIABLE) == ASKS_FOR_CUDNN:
        raise UserError(
            f"{BACKEND_VARIABLE} {env[BACKEND_VARIABLE]!r}: cuDNN's attention can give wrong gradients; unset the "
            "variable; model.attention cudnn has it with right ones."
        )
    torch.backends.cuda.enable_cudnn_sdp(False)
