"""System memory that the ranks on a machine share: one of them fills it, the others map what it fills."""

from __future__ import annotations

import contextlib
import mmap
import os
import secrets
import weakref
from typing import Any

import torch
from torch import Tensor

from modules.distributed.Runtime import Runtime
from modules.layers.transfers import Transfers
from modules.machine.system_memory import RANKS_SHARE_SWAPPED


class SharedSlabs:
    """Makes slabs for a HostMemory, of which each rank on a machine has the same, in the same order.

    The first rank that comes for a topic is the one that makes and fills them. They are files without a name
    (memfd_create(2)), which live as long as a rank has them, leave nothing behind after a kill, and are not limited as
    /dev/shm is in a container. Another rank opens them through /proc; one that can't, such as in a container of its
    own, has slabs of its own.

    fills: whether this rank is to write what its buffers hold, because its slabs are nobody else's, or it fills those
    of all. is_shared: whether other ranks have these slabs, as far as this one knows.
    """

    def __init__(self, runtime: Runtime, topic: str, transfers: Transfers):
        self._runtime, self._topic, self._transfers = runtime, topic, transfers
        self._filler = runtime.first_on_machine(topic)
        self.fills = self._makes = self._filler == runtime.rank
        self.is_shared = True
        self._made: list[list[Any]] = []  # [path, name, bytes] of each slab that this rank has made
        self._num_mapped = 0
        self._files: list[int] = []  # open as long as this lives: others may come when this rank trains already
        weakref.finalize(self, _close, self._files)

    def slab(self, num_bytes: int) -> Tensor:
        """uint8[num_bytes], pinned if possible."""
        if not self.is_shared:
            return self._transfers.host_buffer(num_bytes)
        mapped = self._new(num_bytes) if self._makes else self._next_of_filler(num_bytes)
        if mapped is None:
            self.is_shared, self.fills = False, True
            return self._transfers.host_buffer(num_bytes)
        values = torch.frombuffer(mapped, dtype=torch.uint8)
        self._transfers.pin(values)
        return values

    def end(self) -> None:
        """Call it when all buffers are filled. Waits for the rank that fills the shared ones."""
        if self._makes:
            self._post(is_filled=True)
        elif self.is_shared:
            self._runtime.wait_for_posted(self._topic, self._filler, lambda posted: posted["is_filled"])

    def _new(self, num_bytes: int) -> mmap.mmap:
        name = f"chorus-{secrets.token_hex(8)}"
        file = os.memfd_create(name)
        self._files.append(file)
        os.ftruncate(file, num_bytes)
        self._made.append([path_for_others(file), f"/memfd:{name} (deleted)", num_bytes])
        self._post(is_filled=False)
        return mmap.mmap(file, num_bytes)

    def _next_of_filler(self, num_bytes: int) -> mmap.mmap | None:
        """None if it can't be opened."""
        number = self._num_mapped
        posted = self._runtime.wait_for_posted(self._topic, self._filler, lambda posted: len(posted["slabs"]) > number)
        path, name, size = posted["slabs"][number]
        # Where another rank counts processes otherwise, the path may be that of a file of another process.
        with contextlib.suppress(OSError):
            if os.readlink(path) == name and size == num_bytes:
                file = os.open(path, os.O_RDWR)
                with open(file, "r+b") as opened:
                    mapped = mmap.mmap(opened.fileno(), num_bytes)
                self._num_mapped += 1
                return mapped
        if number:
            raise RuntimeError(f"{path} of rank {self._filler} can't be opened, but those before it could")
        return None

    def _post(self, is_filled: bool) -> None:
        self._runtime.post(self._topic, {"slabs": self._made, "is_filled": is_filled})


def slabs_to_share(runtime: Runtime, component: str, transfers: Transfers) -> SharedSlabs | None:
    """For the swapped blocks of a component; None where no other rank is on this machine, or it can't share memory."""
    if runtime.local_world_size == 1 or not RANKS_SHARE_SWAPPED:
        return None
    return SharedSlabs(runtime, f"swapped blocks of {component}", transfers)


def path_for_others(file: int) -> str:
    """Where other processes find an open file of this one."""
    return f"/proc/{os.getpid()}/fd/{file}"


def _close(files: list[int]) -> None:
    for file in files:
        os.close(file)
