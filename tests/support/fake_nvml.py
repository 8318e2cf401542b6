"""A stand-in for the module pynvml, with any GPUs: `put_gpus(monkeypatch, eight_gpus())`."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import ModuleType, SimpleNamespace
from typing import Any

import pynvml as real
import pytest

GIB = 2**30


@dataclass
class FakeGpu:
    """mig: the instances it is cut into; None: it is not in MIG mode.

    refused: the functions that end with NOT_SUPPORTED for it.
    processes: process ID -> (path of its program, bytes it holds or None).
    """

    name: str
    uuid: str
    memory_bytes: int = 24 * GIB
    mig: tuple[FakeGpu, ...] | None = None
    refused: frozenset[str] = frozenset()
    used_bytes: int = 0
    utilisation: int = 0
    temperature: int = 30
    processes: dict[int, tuple[str, int | None]] = field(default_factory=dict)


class FakeNvml(ModuleType):
    """Looks like pynvml, as far as Chorus uses it; constants and errors are pynvml's own.

    links: for pairs of NVML indexes "nvlink" or "pcie"; all other pairs have none.
    init_error: the NVML_ERROR_* with which nvmlInit fails; None: it does not.
    unopened: NVML indexes whose handle can't be had. driver, cuda: its version, and that of CUDA as NVML codes it.
    All GPUs sit in PCIe slots of generation 4 with 16 lanes; a pair by NVLink has four links of 25 GB/s.
    """

    links_of_a_pair = 4

    def __init__(
        self,
        gpus: Sequence[FakeGpu] = (),
        links: Mapping[tuple[int, int], str] | None = None,
        init_error: int | None = None,
        unopened: Sequence[int] = (),
        driver: str = "580.65.06",
        cuda: int = 13000,
    ):
        super().__init__("pynvml")
        self.gpus = list(gpus)
        self.links = {frozenset(pair): link for pair, link in (links or {}).items()}
        self.init_error = init_error
        self.unopened = frozenset(unopened)
        self.driver, self.cuda = driver, cuda
        self.times_open = 0

    def __getattr__(self, name: str) -> Any:
        if name.startswith("NVML"):  # constants and exceptions; a function that is not here is not faked
            return getattr(real, name)
        raise AttributeError(name)

    def nvmlInit(self) -> None:
        if self.init_error is not None:
            raise real.NVMLError(self.init_error)
        self.times_open += 1

    def nvmlShutdown(self) -> None:
        self._check("nvmlShutdown")
        self.times_open -= 1

    def nvmlSystemGetDriverVersion(self) -> str:
        self._check("nvmlSystemGetDriverVersion")
        return self.driver

    def nvmlSystemGetCudaDriverVersion_v2(self) -> int:
        self._check("nvmlSystemGetCudaDriverVersion_v2")
        return self.cuda

    def nvmlDeviceGetCount(self) -> int:
        self._check("nvmlDeviceGetCount")
        return len(self.gpus)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> FakeGpu:
        self._check("nvmlDeviceGetHandleByIndex")
        if index in self.unopened or not 0 <= index < len(self.gpus):
            raise real.NVMLError(real.NVML_ERROR_NO_PERMISSION)
        return self.gpus[index]

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> FakeGpu:
        self._check("nvmlDeviceGetHandleByUUID")
        for handle in (*self.gpus, *(instance for gpu in self.gpus for instance in gpu.mig or ())):
            if handle.uuid == uuid:
                return handle
        raise real.NVMLError(real.NVML_ERROR_NOT_FOUND)

    def nvmlDeviceGetMigMode(self, handle: FakeGpu) -> list[int]:
        self._check("nvmlDeviceGetMigMode", handle)
        return [real.NVML_DEVICE_MIG_DISABLE if handle.mig is None else real.NVML_DEVICE_MIG_ENABLE] * 2

    def nvmlDeviceGetMaxMigDeviceCount(self, handle: FakeGpu) -> int:
        self._check("nvmlDeviceGetMaxMigDeviceCount", handle)
        return 7

    def nvmlDeviceGetMigDeviceHandleByIndex(self, handle: FakeGpu, index: int) -> FakeGpu:
        self._check("nvmlDeviceGetMigDeviceHandleByIndex", handle)
        if index >= len(handle.mig or ()):
            raise real.NVMLError(real.NVML_ERROR_NOT_FOUND)
        return handle.mig[index]

    def nvmlDeviceGetDeviceHandleFromMigDeviceHandle(self, handle: FakeGpu) -> FakeGpu:
        self._check("nvmlDeviceGetDeviceHandleFromMigDeviceHandle", handle)
        for gpu in self.gpus:
            if any(instance is handle for instance in gpu.mig or ()):
                return gpu
        raise real.NVMLError(real.NVML_ERROR_INVALID_ARGUMENT)

    def nvmlDeviceGetIndex(self, handle: FakeGpu) -> int:
        self._check("nvmlDeviceGetIndex", handle)
        return self._index(handle)

    def nvmlDeviceGetName(self, handle: FakeGpu) -> str:
        self._check("nvmlDeviceGetName", handle)
        return handle.name

    def nvmlDeviceGetUUID(self, handle: FakeGpu) -> str:
        self._check("nvmlDeviceGetUUID", handle)
        return handle.uuid

    def nvmlDeviceGetMemoryInfo(self, handle: FakeGpu) -> SimpleNamespace:
        self._check("nvmlDeviceGetMemoryInfo", handle)
        return SimpleNamespace(total=handle.memory_bytes, used=handle.used_bytes)

    def nvmlDeviceGetUtilizationRates(self, handle: FakeGpu) -> SimpleNamespace:
        self._check("nvmlDeviceGetUtilizationRates", handle)
        return SimpleNamespace(gpu=handle.utilisation)

    def nvmlDeviceGetTemperature(self, handle: FakeGpu, sensor: int) -> int:
        self._check("nvmlDeviceGetTemperature", handle)
        assert sensor == real.NVML_TEMPERATURE_GPU
        return handle.temperature

    def nvmlDeviceGetGraphicsRunningProcesses(self, handle: FakeGpu) -> list[SimpleNamespace]:
        self._check("nvmlDeviceGetGraphicsRunningProcesses", handle)
        return []

    def nvmlDeviceGetComputeRunningProcesses(self, handle: FakeGpu) -> list[SimpleNamespace]:
        self._check("nvmlDeviceGetComputeRunningProcesses", handle)
        return [SimpleNamespace(pid=pid, usedGpuMemory=held) for pid, (_, held) in handle.processes.items()]

    def nvmlSystemGetProcessName(self, pid: int) -> str:
        self._check("nvmlSystemGetProcessName")
        for gpu in self.gpus:
            if pid in gpu.processes:
                return gpu.processes[pid][0]
        raise real.NVMLError(real.NVML_ERROR_NOT_FOUND)

    def nvmlDeviceGetP2PStatus(self, a: FakeGpu, b: FakeGpu, capability: int) -> int:
        self._check("nvmlDeviceGetP2PStatus", a, b)
        if not isinstance(capability, int):  # as ctypes refuses the tuple that is pynvml.NVML_P2P_CAPS_INDEX_READ
            raise TypeError(f"don't know how to convert {capability!r}")
        link = self.links.get(frozenset((self._index(a), self._index(b))))
        linked = link == "nvlink" if capability == real.NVML_P2P_CAPS_INDEX_NVLINK else link is not None
        return real.NVML_P2P_STATUS_OK if linked else real.NVML_P2P_STATUS_CHIPSET_NOT_SUPPORTED

    def nvmlDeviceGetMaxPcieLinkGeneration(self, handle: FakeGpu) -> int:
        self._check("nvmlDeviceGetMaxPcieLinkGeneration", handle)
        return 4

    def nvmlDeviceGetMaxPcieLinkWidth(self, handle: FakeGpu) -> int:
        self._check("nvmlDeviceGetMaxPcieLinkWidth", handle)
        return 16

    def nvmlDeviceGetPciInfo(self, handle: FakeGpu) -> SimpleNamespace:
        self._check("nvmlDeviceGetPciInfo", handle)
        return SimpleNamespace(bus=self._index(handle), busId=f"00000000:{self._index(handle):02X}:00.0")

    def nvmlDeviceGetNvLinkState(self, handle: FakeGpu, link: int) -> int:
        self._check("nvmlDeviceGetNvLinkState", handle)
        self._far_end(handle, link)
        return real.NVML_FEATURE_ENABLED

    def nvmlDeviceGetNvLinkRemoteDeviceType(self, handle: FakeGpu, link: int) -> int:
        self._check("nvmlDeviceGetNvLinkRemoteDeviceType", handle)
        return real.NVML_NVLINK_DEVICE_TYPE_GPU

    def nvmlDeviceGetNvLinkRemotePciInfo(self, handle: FakeGpu, link: int) -> SimpleNamespace:
        self._check("nvmlDeviceGetNvLinkRemotePciInfo", handle)
        return self.nvmlDeviceGetPciInfo(self.gpus[self._far_end(handle, link)])

    def nvmlDeviceGetFieldValues(self, handle: FakeGpu, fields: Sequence[tuple[int, int]]) -> list[SimpleNamespace]:
        self._check("nvmlDeviceGetFieldValues", handle)
        assert [field for field, _ in fields] == [real.NVML_FI_DEV_NVLINK_GET_SPEED] * len(fields)
        return [SimpleNamespace(nvmlReturn=real.NVML_SUCCESS, value=SimpleNamespace(uiVal=25_000)) for _ in fields]

    def _far_end(self, handle: FakeGpu, link: int) -> int:
        """The NVML index at the other end of an NVLink."""
        own = self._index(handle)
        pairs = [pair for pair, kind in self.links.items() if own in pair and kind == "nvlink"]
        others = sorted(other for pair in pairs for other in pair - {own})
        if link >= len(others) * self.links_of_a_pair:
            raise real.NVMLError(real.NVML_ERROR_INVALID_ARGUMENT)
        return others[link // self.links_of_a_pair]

    def _check(self, function: str, *handles: FakeGpu) -> None:
        if not self.times_open:
            raise real.NVMLError(real.NVML_ERROR_UNINITIALIZED)
        if any(function in handle.refused for handle in handles):
            raise real.NVMLError(real.NVML_ERROR_NOT_SUPPORTED)

    def _index(self, handle: FakeGpu) -> int:
        for index, gpu in enumerate(self.gpus):
            if gpu is handle:
                return index
        raise real.NVMLError(real.NVML_ERROR_INVALID_ARGUMENT)


def put_gpus(monkeypatch: pytest.MonkeyPatch, nvml: FakeNvml) -> None:
    """Puts the GPUs of `nvml` in place of the machine's, and hides none of them."""
    monkeypatch.setitem(sys.modules, "pynvml", nvml)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)


def eight_gpus(**options: Any) -> FakeNvml:
    """Four A100 (0-1 and 2-3 by NVLink, the pairs over PCIe), two RTX 4090 (no link), two RTX 3090 (a bridge)."""
    kinds = [("NVIDIA A100-SXM4-80GB", 80)] * 4 + [("NVIDIA GeForce RTX 4090", 24)] * 2
    kinds += [("NVIDIA GeForce RTX 3090", 24)] * 2
    gpus = [
        FakeGpu(name, f"GPU-{index}a5e{index}d00-0000-4000-8000-00000000000{index}", memory * GIB)
        for index, (name, memory) in enumerate(kinds)
    ]
    links = {(0, 1): "nvlink", (2, 3): "nvlink", (6, 7): "nvlink"}
    links |= {(0, 2): "pcie", (0, 3): "pcie", (1, 2): "pcie", (1, 3): "pcie"}
    return FakeNvml(gpus, links, **options)
