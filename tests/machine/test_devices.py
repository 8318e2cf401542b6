from __future__ import annotations

import re
import subprocess
import sys
from dataclasses import replace

import pytest

from modules.config.errors import UserError
from modules.config.TrainConfig import TrainConfig
from modules.machine import devices
from modules.machine.devices import (
    UNKNOWN_USAGE,
    GpuProcess,
    default_num_ranks,
    link_between,
    link_matrix,
    list_gpus,
    mixed_gpus_warning,
    no_gpu_reason,
    num_cores,
    read_usage,
    slow_links_warning,
)
from tests.support.fake_nvml import GIB, FakeGpu, FakeNvml, eight_gpus, real
from tests.support.waiting import PATIENCE_SECONDS


def install(monkeypatch, fake: FakeNvml) -> FakeNvml:
    monkeypatch.setitem(sys.modules, "pynvml", fake)
    return fake


@pytest.fixture
def nvml(monkeypatch) -> FakeNvml:
    fake = install(monkeypatch, eight_gpus())
    yield fake
    assert fake.times_open == 0, "NVML was left open"


def test_all_gpus_are_listed_with_what_the_driver_says(nvml):
    gpus = list_gpus({})
    assert [gpu.index for gpu in gpus] == [gpu.nvml_index for gpu in gpus] == list(range(8))
    assert (gpus[0].name, gpus[0].memory_bytes) == ("NVIDIA A100-SXM4-80GB", 80 * GIB)
    assert gpus[7].uuid == nvml.gpus[7].uuid


@pytest.mark.parametrize(
    ("visible", "expected"),
    [
        ("", []),
        ("-1", []),
        ("none", []),
        ("2,0", [2, 0]),
        (" 2 , 0 ", [2, 0]),
        ("3", [3]),
        ("0,2,-1,1", [0, 2]),  # the example in the CUDA programming guide
        ("1,8,2", [1]),
        ("1,,2", [1]),
        ("0,GPU-1", [0]),
        ("0,1,0", []),
        ("GPU-2,GPU-0a5e", [2, 0]),
        ("GPU-2,GPU-nothing,GPU-0", [2]),
        ("GPU-2,0", [2]),
        ("GPU-", []),  # a prefix of all UUIDs
        ("GPU-2,GPU-2a", []),
    ],
)
def test_cuda_visible_devices_is_read_as_cuda_does(visible, expected, nvml):
    gpus = list_gpus({"CUDA_VISIBLE_DEVICES": visible})
    assert [gpu.nvml_index for gpu in gpus] == expected
    assert [gpu.index for gpu in gpus] == list(range(len(expected)))


@pytest.mark.parametrize(
    "visible", ["", "-1", "2,0", "0,2,-1,1", "1,8,2", "0,1,0", "0,9,0", "1,,2", "GPU-2,GPU-0a5e", "GPU-"]
)
def test_as_many_are_visible_as_torch_counts(visible, nvml, monkeypatch):
    cuda = pytest.importorskip("torch.cuda")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    monkeypatch.setattr(cuda, "_raw_device_count_nvml", lambda: len(nvml.gpus))
    monkeypatch.setattr(cuda, "_raw_device_uuid_nvml", lambda: [gpu.uuid for gpu in nvml.gpus])
    assert len(list_gpus()) == cuda._device_count_nvml()


def test_of_several_mig_instances_only_the_first_counts(monkeypatch):
    instances = tuple(FakeGpu("NVIDIA A100 MIG 3g.40gb", f"MIG-{i}", 40 * GIB) for i in range(2))
    install(monkeypatch, FakeNvml([FakeGpu("A", "GPU-a"), FakeGpu("B", "GPU-b", mig=instances)]))
    (gpu,) = list_gpus({"CUDA_VISIBLE_DEVICES": "MIG-1,MIG-0"})
    assert (gpu.index, gpu.uuid, gpu.memory_bytes, gpu.nvml_index) == (0, "MIG-1", 40 * GIB, 1)
    assert list_gpus({"CUDA_VISIBLE_DEVICES": "MIG-9"}) == []


@pytest.mark.parametrize(
    ("visible", "expected"),
    [(None, ["MIG-0"]), ("0,1", ["MIG-0"]), ("2,1", ["MIG-0"]), ("2", ["GPU-c"]), ("0,2", ["GPU-a", "GPU-c"])],
)
def test_a_gpu_that_is_divided_counts_as_its_first_instance_alone(visible, expected, monkeypatch):
    """As CUDA has it: estimates by the memory of the whole GPU, and ranks for the others, would be wrong."""
    instances = tuple(FakeGpu("NVIDIA A100 MIG 1g.10gb", f"MIG-{i}", 10 * GIB) for i in range(2))
    divided = FakeGpu("B", "GPU-b", 80 * GIB, mig=instances)
    install(monkeypatch, FakeNvml([FakeGpu("A", "GPU-a"), divided, FakeGpu("C", "GPU-c")]))
    gpus = list_gpus({} if visible is None else {"CUDA_VISIBLE_DEVICES": visible})
    assert [gpu.uuid for gpu in gpus] == expected
    assert [gpu.index for gpu in gpus] == list(range(len(expected)))
    assert all((gpu.memory_bytes == 10 * GIB) == gpu.uuid.startswith("MIG-") for gpu in gpus)


def test_a_gpu_in_mig_mode_without_an_instance_is_not_usable(monkeypatch):
    install(monkeypatch, FakeNvml([FakeGpu("A", "GPU-a", mig=()), FakeGpu("B", "GPU-b")]))
    assert [(gpu.uuid, gpu.index, gpu.nvml_index) for gpu in list_gpus({})] == [("GPU-b", 0, 1)]


@pytest.mark.parametrize(
    "error",
    [real.NVML_ERROR_LIBRARY_NOT_FOUND, real.NVML_ERROR_DRIVER_NOT_LOADED, real.NVML_ERROR_LIB_RM_VERSION_MISMATCH],
)
def test_without_a_driver_there_are_no_gpus_and_no_warning(error, monkeypatch):
    gpus = eight_gpus()
    install(monkeypatch, gpus)
    some = list_gpus({})[4:6]
    gpus.init_error = error
    assert list_gpus({}) == []
    assert link_between(*some) == "unknown"
    assert slow_links_warning(some) is None


def test_a_driver_without_gpus_lists_none(monkeypatch):
    install(monkeypatch, FakeNvml())
    assert list_gpus({}) == []


def test_what_a_card_does_not_tell_is_unknown_and_not_a_crash(nvml):
    nvml.gpus[4].refused = frozenset({"nvmlDeviceGetMemoryInfo", "nvmlDeviceGetName", "nvmlDeviceGetP2PStatus"})
    gpus = list_gpus({})
    assert (gpus[4].name, gpus[4].memory_bytes) == ("NVIDIA GPU", None)
    assert link_between(gpus[4], gpus[5]) == "unknown"
    assert slow_links_warning(gpus[4:6]) is None


def test_a_gpu_that_cannot_be_opened_is_left_out_and_the_others_close_ranks(monkeypatch):
    install(monkeypatch, eight_gpus(unopened=[1]))
    assert [(gpu.index, gpu.nvml_index) for gpu in list_gpus({})][:3] == [(0, 0), (1, 2), (2, 3)]


def test_links_are_told_apart(nvml):
    gpus = list_gpus({})
    assert link_between(gpus[0], gpus[1]) == "nvlink"
    assert link_between(gpus[1], gpus[2]) == "pcie"
    assert link_between(gpus[4], gpus[5]) == "none"


def test_links_follow_the_gpu_not_its_number_in_this_process(nvml):
    gpus = list_gpus({"CUDA_VISIBLE_DEVICES": "7,6,5"})
    assert link_between(gpus[0], gpus[1]) == "nvlink"
    assert link_between(gpus[1], gpus[2]) == "none"


def test_linked_gpus_give_no_warning(nvml):
    gpus = list_gpus({})
    assert slow_links_warning(gpus[:4]) is None
    assert slow_links_warning(gpus[:1]) is None
    assert slow_links_warning([gpus[4], gpus[4]]) is None


def test_the_warning_names_the_pair_and_the_remedies(nvml):
    gpus = list_gpus({})
    warning = slow_links_warning(gpus[4:6])
    assert warning.startswith("GPU 4 (NVIDIA GeForce RTX 4090) and GPU 5 (NVIDIA GeForce RTX 4090) have no direct link")
    assert "device_indexes" in warning
    assert "gradient_reduce_precision" in warning
    assert warning.count(".") == 1
    assert "(and 1 more pair)" in slow_links_warning([gpus[0], gpus[1], gpus[4]])
    assert "(and 2 more pairs)" in slow_links_warning(gpus[4:7])


def test_the_fake_has_no_function_that_the_real_module_lacks():
    functions = [name for name in vars(FakeNvml) if name.startswith("nvml")]
    assert functions
    assert [name for name in functions if not hasattr(real, name)] == []


def test_cores_are_those_this_process_may_use(monkeypatch):
    monkeypatch.setattr(devices.os, "sched_getaffinity", lambda pid: {3, 5, 7}, raising=False)
    assert num_cores() == 3
    monkeypatch.delattr(devices.os, "sched_getaffinity")
    monkeypatch.setattr(devices.os, "cpu_count", lambda: None)
    assert num_cores() == 1


@pytest.mark.parametrize(
    ("settings", "num_gpus", "cores", "expected"),
    [
        ({}, 8, 64, 8),
        ({}, 1, 64, 1),
        ({"device_indexes": [6, 2, 0]}, 8, 64, 3),
        ({"world_size": 4}, 8, 64, 4),
        ({"world_size": 2, "device_indexes": [1, 2, 3]}, 8, 64, 2),
        ({"num_nodes": 2}, 8, 64, 8),  # on each machine
        ({}, 0, 16, 2),
        ({}, 0, 1, 1),
        ({"world_size": 5, "distributed_backend": "auto"}, 0, 2, 5),
        ({"world_size": 3, "distributed_backend": "gloo"}, 1, 2, 3),
    ],
)
def test_ranks_of_a_machine(settings, num_gpus, cores, expected, nvml):
    assert default_num_ranks(TrainConfig(**settings), list_gpus({})[:num_gpus], cores) == expected


@pytest.mark.parametrize(
    ("settings", "num_gpus", "message"),
    [
        ({"device_indexes": [0, 8]}, 8, r"device_indexes \[0, 8\]: only 0 to 7 exist; choose others, or none for all."),
        ({"device_indexes": [0]}, 0, r"device_indexes \[0\]: there is no GPU here;"),
        ({"world_size": 9}, 8, "world_size 9 with distributed_backend nccl: .* this machine has 8; use 8 or less"),
        ({"world_size": 3, "device_indexes": [4, 5], "distributed_backend": "auto"}, 8, "indexes names 2; use 2"),
    ],
)
def test_more_than_there_is_gets_refused(settings, num_gpus, message, nvml):
    with pytest.raises(UserError, match=message):
        default_num_ranks(TrainConfig(**settings), list_gpus({})[:num_gpus], 2)


def test_gpus_of_several_kinds_are_warned_of_and_so_is_the_smallest_memory(nvml):
    gpus = list_gpus({})
    assert mixed_gpus_warning(gpus[:4]) is None
    assert mixed_gpus_warning([]) is None
    slowest = r"Different devices \(NVIDIA GeForce RTX 3090, NVIDIA GeForce RTX 4090\): the slowest sets the pace"
    assert re.match(slowest, mixed_gpus_warning(gpus[4:]))
    assert "GPU 4 has 24 GiB of memory where GPU 0 has 80; leave the smaller ones out" in mixed_gpus_warning(gpus)
    unknown = [replace(gpu, memory_bytes=None) for gpu in gpus]
    assert "the slowest sets the pace" in mixed_gpus_warning(unknown)


def test_looking_for_gpus_does_not_import_torch():
    code = "import sys; from modules.machine.devices import list_gpus; list_gpus(); assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=PATIENCE_SECONDS)


def test_usage_is_what_the_driver_says_with_the_largest_process_first(nvml):
    gpu = nvml.gpus[4]
    gpu.used_bytes, gpu.utilisation, gpu.temperature = 15 * GIB, 97, 71
    gpu.processes = {7: ("/usr/lib/xorg/Xorg", GIB), 4121: ("/opt/venv/bin/python", 14 * GIB)}
    usage = read_usage(list_gpus({}))[4]
    assert (usage.memory_used_bytes, usage.utilisation, usage.temperature_celsius) == (15 * GIB, 97, 71)
    assert usage.processes == (GpuProcess(4121, "python", 14 * GIB), GpuProcess(7, "Xorg", GIB))


def test_usage_that_the_driver_refuses_is_unknown(nvml):
    functions = ("GetMemoryInfo", "GetUtilizationRates", "GetTemperature", "GetComputeRunningProcesses")
    nvml.gpus[0].refused = frozenset(f"nvmlDevice{function}" for function in functions)
    gpus = list_gpus({})
    assert read_usage(gpus)[0] == UNKNOWN_USAGE
    nvml.gpus.pop(7)  # it fell off the bus
    assert read_usage(gpus)[7] == UNKNOWN_USAGE


def test_all_links_are_told_at_once(nvml):
    links = link_matrix(list_gpus({}))
    assert (links[0][1], links[1][0], links[0][2], links[0][4], links[3][3]) == (
        *("nvlink", "nvlink", "pcie", "none"),
        None,
    )


@pytest.mark.parametrize(
    ("fake", "env", "reason"),
    [
        (FakeNvml(init_error=real.NVML_ERROR_LIBRARY_NOT_FOUND), {}, "no NVIDIA driver is installed"),
        (FakeNvml(init_error=real.NVML_ERROR_LIB_RM_VERSION_MISMATCH), {}, "does not answer"),
        (FakeNvml(), {}, "finds none"),
        (eight_gpus(unopened=range(8)), {}, "lists 8 but opens none"),
        (eight_gpus(), {"CUDA_VISIBLE_DEVICES": "-1"}, "CUDA_VISIBLE_DEVICES is '-1' and hides the 8"),
    ],
)
def test_the_reason_for_no_gpu_is_told(fake, env, reason, monkeypatch):
    install(monkeypatch, fake)
    assert list_gpus(env) == []
    assert reason in no_gpu_reason(env)
