"""Compiles the denoiser's repeated blocks in place with torch.compile, without renaming modules or weights."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable
from typing import TYPE_CHECKING, cast

from modules.config.errors import UserError
from modules.distributed.torch_versions import float8_compiler_problem

if TYPE_CHECKING:
    import torch
    from diffusers.models.modeling_utils import ModelMixin
    from torch import Tensor, nn

    from modules.config.ModelConfig import ModelConfig
    from modules.data.Batch import Batch
    from modules.trainer.TrainingLoop import TrainingLoop

COMPILING_SECONDS = 900.0  # for a step that compiles kernels for a new size

# Per kind of block: one graph for each size and width, for trained and frozen weights. Beyond its default limit of 8,
# torch falls back to eager mode with only a line in its log.
MAX_GRAPHS = 256
MAX_GRAPHS_OF_ALL_BLOCKS = 4096


def compile_blocks(
    denoiser: nn.Module,
    all_sizes: bool,
    warn: Callable[[str], None] = lambda text: None,
    blocks: Collection[nn.Module] = (),
) -> None:
    """Compiles the repeated blocks of `denoiser`, each kind once; without such blocks, the whole denoiser.

    Call it after adding adapters, which would otherwise not be compiled, and before sharding, which then gathers what
    is compiled as a whole. `Module.compile` compiles in place, unlike `torch.compile(module)`, which renames the keys
    of the state dict.

    all_sizes: one graph for all sizes of images, in place of one for each. Left to torch, the first size would get a
    graph of its own and all others the one made for the second, so that results depend on their order.
    warn: told if torch no longer compiles what is new.
    blocks: those to compile if diffusers does not name any for the compiler.
    """
    _set_up(warn)
    if getattr(denoiser, "_repeated_blocks", None):
        cast("ModelMixin", denoiser).compile_repeated_blocks(dynamic=all_sizes)
        return
    for block in blocks or [denoiser]:
        block.compile(dynamic=all_sizes)


def _set_up(warn: Callable[[str], None]) -> None:
    """Sets what torch has for the whole process only."""
    import torch._dynamo
    import torch._functorch.config
    import torch.fx.experimental._config

    config = torch._dynamo.config
    config.recompile_limit = max(MAX_GRAPHS, config.recompile_limit)
    config.accumulated_recompile_limit = max(MAX_GRAPHS_OF_ALL_BLOCKS, config.accumulated_recompile_limit)
    # DDP's gradients are sent block by block anyway; cut at its buckets, the graphs would depend on the number of ranks
    config.optimize_ddp = False
    # Numbers such as the scale of a LoRA never change. Were they taken for inputs, as with `dynamic`, each graph would
    # be traced a second time.
    config.specialize_float = True
    # otherwise sides that are equal in the first image must be equal in all others that its graph is for
    torch.fx.experimental._config.use_duck_shape = False
    # Otherwise no graph with a quantized layer or another autograd function of ours is looked for among those of
    # earlier runs. What such a function computes is traced and part of the key, so that a change of it is a new graph.
    torch._functorch.config.autograd_cache_allow_custom_autograd_functions = True
    log = logging.getLogger("torch._dynamo.convert_frame")
    for handler in [known for known in log.handlers if isinstance(known, _LimitHandler)]:
        log.removeHandler(handler)  # of an earlier run in this process
    log.addHandler(_LimitHandler(warn))


class _LimitHandler(logging.Handler):
    """Warns once if torch reaches a limit of graphs, of which it tells nobody else."""

    def __init__(self, warn: Callable[[str], None]):
        super().__init__(logging.WARNING)
        self._warn: Callable[[str], None] | None = warn

    def emit(self, record: logging.LogRecord) -> None:
        text = record.getMessage()
        if self._warn and "hit config." in text:
            reported, self._warn = self._warn, None
            reported(
                "model.compile blocks: torch has reached its limit of graphs and runs what is new without compiling, "
                f"which is slower ({text.splitlines()[0]}); set model.compile to off if most steps are."
            )


def compile_with(loop: TrainingLoop, batches: Iterable[Batch]) -> None:
    """Compiles by a forward and a backward pass with each batch, which change no weight, gradient or buffer.

    Gradients reach neither DDP nor a fused optimizer, so that, other than in a step, ranks don't wait for each other
    unless they share weights.
    """
    import torch

    from modules.trainer.preserve_buffers import preserve_buffers  # imports torch

    for batch in batches:
        loop.runtime.heartbeat.beat(COMPILING_SECONDS)
        if loop.runtime.shards:  # autograd knows no way from the loss to the parts of weights
            loop.warm_up(batch)
            continue
        with preserve_buffers(loop.model):
            with loop.autocast():
                loss, _, _ = loop.step_fn(loop.model, batch)
            if not loop.settings.fused_backward:
                torch.autograd.grad(loss, list(loop.trainable.values()), allow_unused=True)
                continue
            # one rank, whose memory has no room for all gradients at once
            hooks = [param.register_post_accumulate_grad_hook(_drop_gradient) for param in loop.trainable.values()]
            loss.backward()
            for hook in hooks:
                hook.remove()


def _drop_gradient(param: Tensor) -> None:
    param.grad = None


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
