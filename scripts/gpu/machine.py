"""The card, the versions, and whether what Chorus sets at the start of a run is in force."""

from __future__ import annotations

import time
from collections.abc import Iterator
from functools import partial
from typing import Any

from scripts.gpu.cases import Case, is_cuda, needs_cuda

BLOCK_BYTES = (283_000_000, 680_000_000)  # of FLUX.1's blocks in bfloat16, of both kinds
SHARED_BYTES = 2**28
MOST_SECONDS = 1.5  # of those that a copy from other pinned memory takes
MOST_PINNED = 1.2  # of the bytes of swapped blocks
PACKAGES = ("torch", "diffusers", "transformers", "peft")


def facts(device: str) -> Iterator[Case]:
    yield "versions", partial(versions, device)
    yield "order of GPUs", partial(listed_alike, device)
    yield "allocator", partial(allocator, device)


def versions(device: str) -> dict[str, Any]:
    """Of the packages, and what PyTorch says of CUDA and the GPUs; a rehearsal on the CPU needs neither."""
    import platform
    from importlib.metadata import version

    from modules.distributed.torch_facts import read_facts
    from modules.machine.devices import list_gpus, num_cores

    found = {name: value for name, value in read_facts().items() if name not in ("file", "version")}
    gpus = [{"name": gpu.name, "memory_bytes": gpu.memory_bytes} for gpu in list_gpus()]
    packages = {package: version(package) for package in PACKAGES}
    errors = [each["error"] for each in found["devices"] if each["error"]]
    here = {"gpus": gpus, "cores": num_cores(), "python": platform.python_version(), "system": platform.platform()}
    is_right = not is_cuda(device) or not (errors or found["reason"])
    return {"ok": is_right, **packages, **found, **here}


def listed_alike(device: str) -> dict[str, Any]:
    """The driver and PyTorch list the same GPUs in the same order."""
    needs_cuda(device)
    import torch

    from modules.machine.devices import list_gpus

    devices = map(torch.cuda.get_device_properties, range(torch.cuda.device_count()))
    ours = [gpu.uuid.removeprefix("GPU-") for gpu in list_gpus()]
    return {"ok": ours == [str(properties.uuid) for properties in devices], "count": len(ours)}


def allocator(device: str) -> dict[str, Any]:
    """Whether segments grow, as a run sets it, and what a process holds of the GPU before its first tensor."""
    needs_cuda(device)
    import torch

    from modules.distributed.Runtime import Runtime

    runtime = Runtime(torch.device(device))
    settings = torch.cuda.memory._snapshot()["allocator_settings"]
    free, total = torch.cuda.mem_get_info()
    is_set = bool(settings.get("expandable_segments"))
    return {"ok": is_set and runtime.device.index == 0, "expandable_segments": is_set, "used_bytes": total - free}


def pinned_memory(device: str) -> Iterator[Case]:
    for wanted in BLOCK_BYTES:
        yield f"{wanted / 1e6:.0f} MB", partial(pinned, wanted, device)
    yield "swapped blocks", partial(pinned_for_swapping, device)
    yield "memory that ranks share", partial(pinned_and_shared, device)


def pinned(wanted: int, device: str) -> dict[str, Any]:
    """How much system memory PyTorch pins for a single buffer: it rounds to powers of two."""
    needs_cuda(device)
    import torch

    before = torch.cuda.host_memory_stats().get("allocated_bytes.current", 0)
    begun = time.perf_counter()
    buffer = torch.empty(wanted, dtype=torch.uint8, pin_memory=is_cuda(device))
    seconds = time.perf_counter() - begun
    taken = torch.cuda.host_memory_stats().get("allocated_bytes.current", 0) - before
    del buffer
    return {"taken": taken, "ratio": round(taken / wanted, 2), "seconds": round(seconds, 3)}


def pinned_for_swapping(device: str) -> dict[str, Any]:
    """What block swapping has pinned hardly exceeds the size of the swapped weights."""
    needs_cuda(device)
    import torch

    from modules.layers.BlockSwap import BlockSwap
    from modules.layers.transfers import CudaTransfers
    from scripts.gpu.streams import large_blocks

    place, blocks = torch.device(device), large_blocks()
    blocks._apply(lambda tensor: torch.zeros(tensor.shape, dtype=tensor.dtype))
    wanted = sum(param.nbytes for param in blocks.parameters())
    before = torch.cuda.host_memory_stats().get("allocated_bytes.current", 0)
    swap = BlockSwap(list(blocks), place, CudaTransfers(place))
    taken = torch.cuda.host_memory_stats().get("allocated_bytes.current", 0) - before
    ratio = round(taken / wanted, 2)
    return {"ok": ratio < MOST_PINNED, "taken": taken, "ratio": ratio, "counted": swap.host_bytes}


def pinned_and_shared(device: str) -> dict[str, Any]:
    """Memory that the ranks on a machine share is pinned, copied from as fast as other pinned memory, and a refusal to
    pin leaves no error for the next kernel."""
    needs_cuda(device)
    import torch

    from modules.distributed.Runtime import Runtime
    from modules.layers.PinnedMemory import PinnedMemory
    from modules.layers.SharedSlabs import SharedSlabs
    from modules.layers.transfers import CudaTransfers

    place = torch.device(device)
    transfers = CudaTransfers(place)
    values = SharedSlabs(Runtime(place), "pinned", transfers).slab(SHARED_BYTES)
    values.fill_(7)
    target = torch.empty(SHARED_BYTES, dtype=torch.uint8, device=place)
    seconds = [_copying(source, target) for source in (values, torch.full_like(values, 7).pin_memory())]
    memory = PinnedMemory()
    memory.register(values)  # a second time, which CUDA refuses
    is_right = bool((target == 7).all()) and values.is_pinned() and seconds[0] < MOST_SECONDS * seconds[1]
    return {"ok": is_right, "refused_bytes": memory.refused_bytes, "seconds": seconds}


def _copying(source: Any, target: Any) -> float:
    """The seconds of the fastest of some copies to the device."""
    import torch

    found = []
    for _ in range(5):
        torch.cuda.synchronize()
        begun = time.perf_counter()
        target.copy_(source, non_blocking=True)
        torch.cuda.synchronize()
        found.append(time.perf_counter() - begun)
    return min(found)
