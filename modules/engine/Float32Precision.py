"""PyTorch's precision of float32 products, which belongs to a process: ranks take over that of the program."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch


@dataclass(frozen=True)
class Float32Precision:
    """matmul: as given to `torch.set_float32_matmul_precision`. cudnn: whether cuDNN may use TF32.

    newer: the values of `fp32_precision` for cuBLAS and cuDNN's convolutions in place of both, where a program has
    used this newer interface: PyTorch then refuses to read the others.
    """

    matmul: str = "highest"
    cudnn: bool = True
    newer: tuple[str, str] | None = None

    @classmethod
    def of_this_process(cls) -> Float32Precision:
        try:
            return cls(torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32)
        except RuntimeError:  # "mix of the legacy and new APIs"
            matmul, convolutions = _newer_settings()
            return cls(newer=(matmul.fp32_precision, convolutions.fp32_precision))

    def set(self) -> None:
        """Sets it in this process."""
        if self.newer is not None:
            matmul, convolutions = _newer_settings()
            matmul.fp32_precision, convolutions.fp32_precision = self.newer
        else:
            torch.set_float32_matmul_precision(self.matmul)
            torch.backends.cudnn.allow_tf32 = self.cudnn


def _newer_settings() -> tuple[Any, Any]:
    cudnn: Any = torch.backends.cudnn  # torch does not declare its parts
    return torch.backends.cuda.matmul, cudnn.conv
