"""Seeds the generators that a step draws from."""

from __future__ import annotations

import torch


def seed_device(seed: int, device: torch.device) -> None:
    """Seeds the generators of the CPU and of `device`, as `torch.manual_seed` does for all devices.

    That one takes a millisecond where CUDA is not used: it keeps the call for later, with the stack that it came from.
    """
    if device.type == "cpu":
        torch.default_generator.manual_seed(seed)
    elif device.type == "cuda":
        torch.default_generator.manual_seed(seed)
        index = torch.cuda.current_device() if device.index is None else device.index
        torch.cuda.default_generators[index].manual_seed(seed)
    else:
        torch.manual_seed(seed)
