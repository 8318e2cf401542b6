"""The nominal speeds of the links between GPUs, as the driver reports them, to compare measurements with."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

from modules.config.counted import counted
from modules.machine.devices import Gpu, Link, ask_nvml, link_matrix, open_nvml

LINK_NAMES: dict[Link, str] = {"nvlink": "NVLink", "pcie": "PCIe", "none": "no direct link", "unknown": "unknown"}

# GB/s (10^9 bytes) of one lane in one direction, by PCIe generation: transfer rate minus encoding overhead.
# Source: PCI-SIG's 2.5, 5, 8, 16, 32 and 64 GT/s; 8b/10b, 128b/130b from generation 3 on, flits of 236/256 in 6.
PCIE_LANE = {1: 0.25, 2: 0.5, 3: 0.985, 4: 1.969, 5: 3.938, 6: 7.375}


def link_speeds(gpus: Sequence[Gpu], links: Sequence[Sequence[Link | None]]) -> list[list[float | None]]:
    """GB/s in one direction between all pairs, symmetric; None if unknown or without a direct link.

    links: as `link_matrix` returns them. The bus bandwidth of an all-reduce over two GPUs can come close to it.
    """
    speeds: list[list[float | None]] = [[None] * len(gpus) for _ in gpus]
    with open_nvml() as nvml:
        if nvml is None:
            return speeds
        handles = [ask_nvml(nvml, nvml.nvmlDeviceGetHandleByUUID, gpu.uuid) for gpu in gpus]
        for a, b in itertools.combinations(range(len(gpus)), 2):
            if handles[a] is not None and handles[b] is not None:
                speeds[a][b] = speeds[b][a] = _speed(nvml, handles[a], handles[b], links[a][b])
    return speeds


def describe_links(gpus: Sequence[Gpu]) -> str | None:
    """How the GPUs that will train are linked, in a few words; None for one GPU or if unknown.

    A GPU that is named twice counts once. Speeds are those of the slowest pair, in one direction.
    """
    gpus = list(dict.fromkeys(gpus))
    links = link_matrix(gpus)
    speeds = link_speeds(gpus, links)
    pairs = list(itertools.combinations(range(len(gpus)), 2))
    parts = []
    for kind, name in LINK_NAMES.items():
        of_kind = [(a, b) for a, b in pairs if links[a][b] == kind]
        known = [speed for a, b in of_kind if (speed := speeds[a][b]) is not None]
        details = [] if len(of_kind) == len(pairs) else [counted(len(of_kind), "pair")]
        details += [f"{min(known):.3g} GB/s"] if known else []
        if of_kind:
            parts.append(name + (f" ({', '.join(details)})" if details else ""))
    is_known = any(links[a][b] != "unknown" for a, b in pairs)
    return ", ".join(parts) if is_known else None


def _speed(nvml: Any, a: Any, b: Any, link: Link | None) -> float | None:
    if link == "nvlink":
        return _nvlink_speed(nvml, a, b)
    if link == "pcie":
        known = [speed for handle in (a, b) if (speed := _pcie_speed(nvml, handle)) is not None]
        return min(known) if len(known) == 2 else None
    return None


def _pcie_speed(nvml: Any, handle: Any) -> float | None:
    """The maximum of slot and card; the current speed may be lower, as idle cards slow their link down."""
    generation = ask_nvml(nvml, nvml.nvmlDeviceGetMaxPcieLinkGeneration, handle)
    lanes = ask_nvml(nvml, nvml.nvmlDeviceGetMaxPcieLinkWidth, handle)
    return PCIE_LANE[generation] * lanes if generation in PCIE_LANE and lanes else None


def _nvlink_speed(nvml: Any, a: Any, b: Any) -> float | None:
    """The speed of the links of `a` that end at `b` or at a switch, which connects all GPUs."""
    target = ask_nvml(nvml, nvml.nvmlDeviceGetPciInfo, b)
    total = 0.0
    for link in range(nvml.NVML_NVLINK_MAX_LINKS):
        if ask_nvml(nvml, nvml.nvmlDeviceGetNvLinkState, a, link) != nvml.NVML_FEATURE_ENABLED:
            continue
        kind = ask_nvml(nvml, nvml.nvmlDeviceGetNvLinkRemoteDeviceType, a, link)
        far_end = ask_nvml(nvml, nvml.nvmlDeviceGetNvLinkRemotePciInfo, a, link)
        is_direct = target is not None and far_end is not None and far_end.busId == target.busId
        if kind == nvml.NVML_NVLINK_DEVICE_TYPE_SWITCH or is_direct:
            total += _speed_of_one(nvml, a, link)
    return total or None


def _speed_of_one(nvml: Any, handle: Any, link: int) -> float:
    """The speed of one NVLink; 0 if the driver does not report it."""
    values = ask_nvml(nvml, nvml.nvmlDeviceGetFieldValues, handle, [(nvml.NVML_FI_DEV_NVLINK_GET_SPEED, link)])
    if not values or values[0].nvmlReturn != nvml.NVML_SUCCESS:
        return 0.0
    return values[0].value.uiVal / 1000  # NVML reports MB/s
