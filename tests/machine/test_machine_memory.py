"""The memory available to a run: the machine's, or that of its container or job."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

from modules.machine.machine_memory import memory_bytes, pinnable_bytes, ram_bytes

GIB = 2**30
V2 = "0::/job/step"
V1 = "5:cpu,cpuacct:/job\n4:memory:/job\n0::/"


@pytest.fixture
def machine(tmp_path):
    """A function that returns fake (proc, cgroups) folders of a machine with 64 GiB of memory and 2 GiB of swap.

    groups: the content of /proc/self/cgroup; None: no file. limits: file below cgroups -> its content.
    """

    def make(groups: str | None, limits: dict[str, str]):
        (tmp_path / "proc" / "self").mkdir(parents=True)
        (tmp_path / "proc" / "meminfo").write_text(f"MemTotal: {64 << 20} kB\nMemFree: 1 kB\nSwapTotal: {2 << 20} kB\n")
        if groups is not None:
            (tmp_path / "proc" / "self" / "cgroup").write_text(groups + "\n")
        for name, text in limits.items():
            path = tmp_path / "cgroups" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text + "\n")
        return tmp_path / "proc", tmp_path / "cgroups"

    return make


@pytest.mark.parametrize(
    ("groups", "limits", "gib"),
    [
        (None, {}, 64),
        (V2, {}, 64),
        (V2, {"job/step/memory.max": "max", "memory.max": "max"}, 64),
        (V2, {"job/step/memory.max": str(8 * GIB), "job/memory.max": str(16 * GIB)}, 8),
        (V2, {"job/step/memory.max": "max", "job/memory.max": str(16 * GIB)}, 16),
        (V2, {"memory.max": str(4 * GIB)}, 4),  # in a container, which sees its own group as the root
        (V2, {"memory.max": str(500 * GIB)}, 64),
        (V1, {"memory/job/memory.limit_in_bytes": str(8 * GIB), "job/memory.max": str(4 * GIB)}, 8),
        (V1, {"memory/memory.limit_in_bytes": "9223372036854771712"}, 64),
    ],
)
def test_the_smallest_limit_around_a_process_counts_and_swap_beside_it(groups, limits, gib, machine):
    assert memory_bytes(*machine(groups, limits)) == (gib + 2) * GIB


def test_where_the_system_does_not_say_nothing_is_known(tmp_path):
    assert memory_bytes(tmp_path / "proc", tmp_path) is None


@pytest.mark.parametrize(("limits", "gib"), [({}, 64), ({"job/step/memory.max": str(8 * GIB)}, 8)])
def test_swap_is_no_memory_to_keep_weights_in(limits, gib, machine, monkeypatch):
    monkeypatch.setattr(psutil, "virtual_memory", lambda: SimpleNamespace(total=64 * GIB))
    assert ram_bytes(*machine(V2, limits)) == gib * GIB
    assert ram_bytes(Path("/no proc"), Path("/no cgroups")) == 64 * GIB


@pytest.mark.parametrize(
    ("ram", "system", "is_wsl", "gib"),
    [(32, "linux", False, 32), (32, "linux", True, 1), (0.5, "linux", True, 0.5), (32, "win32", False, 16)],
)
def test_windows_pins_half_of_the_memory_and_wsl_little(ram, system, is_wsl, gib):
    assert pinnable_bytes(int(ram * GIB), system, is_wsl) == gib * GIB
    assert pinnable_bytes(None, system, is_wsl) is None
