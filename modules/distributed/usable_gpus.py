"""Checks that PyTorch can use the GPUs of this machine, so that nobody trains on the CPU by accident."""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from modules.config.counted import counted
from modules.config.errors import UserError
from modules.config.installation import INSTALL_TORCH_BUILD
from modules.distributed.allocator import enable_expandable_segments
from modules.distributed.cudnn_attention import switch_cudnn_attention_off
from modules.distributed.torch_facts import no_cuda_reason
from modules.machine.devices import driver_fault, list_gpus, no_gpu_reason

if TYPE_CHECKING:
    import torch


def require_usable_gpus() -> None:
    """Raises UserError if there are GPUs for this process but PyTorch can use none of them.

    An empty CUDA_VISIBLE_DEVICES hides all GPUs; that is how to train on the CPU of a machine with a GPU.
    """
    import torch

    reason = no_cuda_reason()
    if torch.version.hip or (torch.version.cuda and not reason):
        return
    gpus = list_gpus()
    fault = "" if gpus else driver_fault()
    if not gpus and not fault:
        return
    if torch.version.cuda is None:
        reason = f"PyTorch {torch.__version__} was built without CUDA"
        remedy = f"install a CUDA build {INSTALL_TORCH_BUILD}"
    else:
        reason = fault or reason.split(". ")[0]  # torch adds URLs
        remedy = "install a matching driver and restart"
    which = f"the {gpus[0].name}" if len(gpus) == 1 else f"the {len(gpus)} GPUs" if gpus else "the GPUs"
    raise UserError(
        f"PyTorch can't use {which} of this machine: {reason}; {remedy}, or set CUDA_VISIBLE_DEVICES to an empty value "
        "to train on the CPU."
    )


def usable_device(name: torch.device | str) -> torch.device:
    """The device of that name. Raises UserError if there is none, or if this process can't use it."""
    import torch

    try:
        device = torch.device(name)
    except (RuntimeError, TypeError) as error:
        raise UserError(f"device {name!r}: use 'cpu', 'cuda' or the number of a GPU, such as 'cuda:1'.") from error
    num_gpus = torch.cuda.device_count()
    if device.type == "cuda" and (device.index or 0) >= num_gpus:
        found = f"only {counted(num_gpus, 'GPU')}" if num_gpus else "no GPU"
        raise UserError(f"device '{device}': PyTorch finds {found} here; use another device, or omit it.")
    return device


def set_cuda_device(device: torch.device) -> None:
    """Makes `device` the current GPU of this process, for training: without cuDNN's attention.

    Raises UserError if this PyTorch has no kernels for it, or if the environment asks for cuDNN's attention.
    """
    import torch

    torch.cuda.set_device(device)
    capability, built_for = torch.cuda.get_device_capability(device), torch.cuda.get_arch_list()
    if not has_kernels(capability, built_for):
        raise UserError(
            f"GPU {device.index} ({torch.cuda.get_device_name(device)}) has compute capability "
            f"{capability[0]}.{capability[1]}, for which PyTorch {torch.__version__} has no kernels (it has "
            f"{' '.join(built_for)}): exclude it with device_indexes, or install another build of PyTorch."
        )
    switch_cudnn_attention_off()
    enable_expandable_segments(device)


def has_kernels(capability: tuple[int, int], built_for: Sequence[str]) -> bool:
    """Whether code for one of the architectures runs on a GPU of this compute capability; True if that is unknown.

    built_for: from `torch.cuda.get_arch_list`. "sm_86" runs on major version 8 with a minor version of at least 6;
    "compute_90" can be compiled for anything newer; "sm_90a" runs on 9.0 only.
    """
    known = [match for arch in built_for if (match := re.fullmatch(r"(sm|compute)_(\d+)(\d)([af]?)", arch))]
    for kind, major, minor, feature in (match.groups() for match in known):
        version = int(major), int(minor)
        same_major = version[0] == capability[0] and version[1] <= capability[1]
        if version == capability or (not feature and (same_major or (kind == "compute" and version <= capability))):
            return True
    return not known


def supports_bf16(device: torch.device) -> bool:
    """Whether the device computes in bfloat16 itself. CPUs do, if slowly."""
    import torch

    return device.type != "cuda" or torch.cuda.is_bf16_supported(including_emulation=False)


def describe_device(device: torch.device) -> str:
    """Describes the device for users: the name of the GPU, or why it is the CPU."""
    import torch

    if device.type == "cuda":
        return f"{device} ({torch.cuda.get_device_name(device)})"
    if sys.platform == "darwin":
        return "the CPU; Apple's GPU is not used"
    return f"the CPU: {no_gpu_reason()}"
