"""The denoiser's repeated blocks compiled by torch, in place: no name of a module or a weight changes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from modules.config.errors import UserError

if TYPE_CHECKING:
    import torch
    from torch import nn

# Of one kind of block: each width, train or frozen, shapes that don't generalize. Beyond its limit of 8 torch goes on
# uncompiled with no more than a line in its log.
MAX_GRAPHS = 64


def compile_blocks(denoiser: nn.Module) -> None:
    """Compiles the blocks that `denoiser` repeats, each kind once; a denoiser without such blocks as a whole.

    To be called after adapters were added, which would otherwise not be compiled. `Module.compile` keeps the module
    and wraps its call, unlike `torch.compile(module)`, whose state has other names.
    """
    import torch._dynamo

    torch._dynamo.config.recompile_limit = max(MAX_GRAPHS, torch._dynamo.config.recompile_limit)
    if getattr(denoiser, "_repeated_blocks", None):
        denoiser.compile_repeated_blocks()
    else:
        denoiser.compile()


def check_compiler(device: torch.device) -> None:
    """Raises UserError where torch has nothing to compile with: it would fail in the first step otherwise."""
    reason = _missing_on_gpu() if device.type == "cuda" else _missing_on_cpu()
    if reason:
        raise UserError(f"model.compile 'blocks': {reason}, or set model.compile to off.")


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
