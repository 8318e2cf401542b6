"""Packing of latents for transformers that use 2 x 2 latent cells as one token.

Legend: B batch, C channels, H W latent cells, N tokens.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch
    from torch import Tensor


def pack_2x2(latents_BCHW: Tensor) -> Tensor:
    """Returns [B, H/2 * W/2, 4 C]: tokens in row-major order, each ordered by channel and then row by row."""
    batch, channels, height, width = latents_BCHW.shape
    cells = latents_BCHW.reshape(batch, channels, height // 2, 2, width // 2, 2)
    return cells.permute(0, 2, 4, 1, 3, 5).reshape(batch, height * width // 4, channels * 4)


def unpack_2x2(packed_BNC: Tensor, shape: tuple[int, ...]) -> Tensor:
    """Inverse of `pack_2x2`. shape: of the latents."""
    batch, channels, height, width = shape
    cells = packed_BNC.reshape(batch, height // 2, width // 2, channels, 2, 2)
    return cells.permute(0, 3, 1, 4, 2, 5).reshape(batch, channels, height, width)


def token_positions(height: int, width: int, like: Tensor) -> torch.Tensor:
    """[height * width, 3], for rotary embeddings: 0, row and column of each token, in the dtype of `like`."""
    import torch

    rows = torch.arange(height, device=like.device)[:, None].expand(height, width)
    columns = torch.arange(width, device=like.device).expand(height, width)
    return torch.stack([torch.zeros_like(rows), rows, columns], dim=-1).reshape(-1, 3).to(like.dtype)
