"""The loss scale of fp16 training, kept on the device."""

from __future__ import annotations

import torch
from torch import Tensor


class LossScaler:
    """Dynamic loss scaling (Micikevicius et al. 2018, arXiv 1710.03740, section 3.2) without a device sync.

    torch's GradScaler does the same, but makes an extra pass over the gradients and decides on its own whether to skip
    a step. Here the pass is shared with clipping, and all ranks make the decision together.
    """

    GROWTH, BACKOFF, GROWTH_INTERVAL = 2.0, 0.5, 2000

    def __init__(self, enabled: bool, device: torch.device):
        self.enabled = enabled
        self.value = torch.tensor(65536.0 if enabled else 1.0, device=device)
        self.good_steps = torch.zeros((), device=device)

    def scale(self, loss: Tensor) -> Tensor:
        return loss * self.value if self.enabled else loss

    def update(self, skipped: Tensor) -> None:
        """Call after each step. skipped: scalar bool on the device."""
        if not self.enabled:
            return
        good_steps = torch.where(skipped, 0.0, self.good_steps + 1)
        grown = good_steps >= self.GROWTH_INTERVAL
        not_skipped = torch.where(grown, self.value * self.GROWTH, self.value)
        # in place: graphs of a pass read the scale from where it is
        self.value.copy_(torch.where(skipped, self.value * self.BACKOFF, not_skipped))
        self.good_steps = torch.where(grown, 0.0, good_steps)

    def state_dict(self) -> dict[str, float]:
        return {"value": self.value.item(), "good_steps": self.good_steps.item()} if self.enabled else {}

    def load_state_dict(self, state: dict[str, float]) -> None:
        """Restores `state_dict()`. After a change of precision there is nothing to restore: the scale starts afresh."""
        if self.enabled and state:
            self.value.fill_(state["value"])
            self.good_steps.fill_(state["good_steps"])
