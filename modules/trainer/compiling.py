"""Compiles the denoiser's repeated blocks in place with torch.compile, without renaming modules or weights."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from modules.config.errors import UserError
from modules.distributed.torch_versions import float8_compiler_problem

if TYPE_CHECKING:
    import torch
    from diffusers.models.modeling_utils import ModelMixin
    from torch import nn

    from modules.config.ModelConfig import ModelConfig

# Per kind of block: one graph for each width, for trained and frozen weights, and for shapes that don't generalize.
# Beyond its default limit of 8, torch falls back to eager mode with only a line in its log.
MAX_GRAPHS = 64


def compile_blocks(denoiser: nn.Module) -> None:
    """Compiles the repeated blocks of `denoiser`, each kind once; without such blocks, the whole denoiser.

    Call it after adding adapters, which would otherwise not be compiled. `Module.compile` compiles in place, unlike
    `torch.compile(module)`, which renames the keys of the state dict.
    """
    import torch._dynamo

    torch._dynamo.config.recompile_limit = max(MAX_GRAPHS, torch._dynamo.config.recompile_limit)
    if getattr(denoiser, "_repeated_blocks", None):
        cast("ModelMixin", denoiser).compile_repeated_blocks()
    else:
        denoiser.compile()


def check_compiler(model: ModelConfig, device: torch.device) -> None:
    """Raises UserError if torch can't compile the denoiser for `device`: otherwise the first step would fail."""
    what, reason = "model.compile 'blocks'", _missing_on_gpu() if device.type == "cuda" else _missing_on_cpu()
    if not reason and model.denoiser_quantization == "float8":
        what, reason = f"{what} with denoiser_quantization float8", float8_compiler_problem(device)
    if reason:
        raise UserError(f"{what}: {reason}, or set model.compile to off.", "model.compile")


def _missing_on_gpu() -> str:
    from torch.utils._triton import has_triton

    return "" if has_triton() else "torch finds no Triton for this GPU; install triton (triton-windows on Windows)"


def _missing_on_cpu() -> str:
    from torch._inductor.cpp_builder import get_cpp_compiler
    from torch._inductor.exc import InvalidCxxCompiler

    try:
        get_cpp_compiler()
    except InvalidCxxCompiler:
        return "torch finds no C++ compiler; install g++ (Visual Studio's on Windows)"
    return ""
