"""The memory in use on the device, for the report of a step."""

from __future__ import annotations

import sys
import time

import torch

from modules.layers.PinnedMemory import PINNED
from modules.machine.devices import is_gpu
from modules.machine.wsl import in_wsl
from modules.session.TrainCallbacks import TrainCallbacks


class MemoryReading:
    def __init__(self, device: torch.device, callbacks: TrainCallbacks):
        self._device = device
        self._callbacks = callbacks
        self._bytes: tuple[int | None, int | None] = (None, None)
        self._time = float("-inf")
        self._may_spill = sys.platform == "win32" or in_wsl()
        self._has_spilled = False
        self._told = ""

    def read(self) -> tuple[int | None, int | None]:
        """Bytes in use on the device and the peak so far, at most a second old; None for the CPU."""
        if PINNED.warning and not self._told:
            self._told = PINNED.warning
            self._callbacks.on_warning(self._told)
        now = time.monotonic()
        if is_gpu(self._device) and now - self._time >= 1:  # reading takes 0.1 ms, too long for short steps
            self._time = now
            self._bytes = (torch.cuda.memory_allocated(self._device), torch.cuda.max_memory_allocated(self._device))
            if self._may_spill and not self._has_spilled:
                self._warn_of_spilling()
        return self._bytes

    def _warn_of_spilling(self) -> None:
        """Warns once if the driver has moved GPU memory to system memory; Windows does that instead of running out."""
        used = torch.cuda.memory_reserved(self._device) / 1e9
        available = torch.cuda.get_device_properties(self._device).total_memory / 1e9
        self._has_spilled = used > available
        if self._has_spilled:
            self._callbacks.on_warning(
                f"Training uses {used:.1f} GB and {self._device} has {available:.1f} GB: Windows keeps the rest in "
                "system memory, which is many times slower. Lower batch_size or data.resolution, or enable "
                "model.gradient_checkpointing."
            )
