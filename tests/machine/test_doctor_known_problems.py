"""The table of known problems: each is detected, and none on a healthy machine."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import pytest

from modules.machine.devices import Gpu
from modules.machine.doctor.hardware import Hardware, read_hardware
from modules.machine.doctor.known_problems import (
    KNOWN_PROBLEMS,
    Situation,
    check_known_problems,
    read_situation,
)
from tests.support.fake_nvml import GIB, eight_gpus

FACTS = {"file": "/env/lib/site-packages/torch/__init__.py", "has_nccl": True}


@pytest.fixture
def four(monkeypatch) -> Situation:
    """Four linked A100 on Linux, with nothing wrong."""
    monkeypatch.setitem(sys.modules, "pynvml", eight_gpus())
    hardware = replace(read_hardware({}).choose([0, 1, 2, 3]), cores=64)
    return Situation(
        platform="linux",
        env={"OMP_NUM_THREADS": "16"},
        hardware=hardware,
        facts=FACTS,
        num_gpus=4,
        num_ranks=4,
        backend="nccl",
        folders=("/data/run",),
        shm_bytes=64 * 2**30,
        open_files=4096,
        interfaces=("lo", "eth0"),
        addresses=("10.0.0.1",),
        packages_folder="/env/lib/site-packages",
    )


CPU = {"hardware": Hardware(cores=4), "num_ranks": 2, "backend": "gloo"}

CASES = {
    "environment": {"packages_folder": "/other/site-packages"},
    "hidden GPUs": {"env": {"CUDA_VISIBLE_DEVICES": "0,1,2,3,9"}},
    "MIG": {"hardware": Hardware((Gpu(0, "A100 MIG 1g.10gb", "MIG-1234", 10 * GIB, 0),), cores=64), "num_ranks": 1},
    "NCCL_P2P_DISABLE": {"env": {"NCCL_P2P_DISABLE": "1"}},
    "backend": {"facts": {**FACTS, "has_nccl": False}},
    "network interface": {"env": {"NCCL_SOCKET_IFNAME": "ib"}},
    "own name": {**CPU, "num_nodes": 2, "addresses": ("127.0.1.1",)},
    "/dev/shm": {"shm_bytes": 64 * 2**20},
    "WSL": {"in_wsl": True},
    "Windows disk": {"in_wsl": True, "folders": ("/mnt/c/run",)},
    "allocator": {"env": {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments=True"}},
    "attention": {"env": {"DIFFUSERS_ATTN_BACKEND": "_native_cudnn"}},
    "CUDA_LAUNCH_BLOCKING": {"env": {"CUDA_LAUNCH_BLOCKING": "1"}},
    "TORCH_DISTRIBUTED_DEBUG": {"env": {"TORCH_DISTRIBUTED_DEBUG": "detail"}},
    "threads": {"env": {"OMP_NUM_THREADS": "64"}},
    "cores": {**CPU, "num_ranks": 8},
    "open files": {"open_files": 256},
}


def names(situation: Situation) -> list[str]:
    return [result.name for result in check_known_problems(situation) if result.state != "ok"]


def test_a_healthy_machine_has_none(four):
    [result] = check_known_problems(four)
    assert result.state == "ok"


@pytest.mark.parametrize("name", CASES)
def test_each_is_found(four, name):
    changed = {**CASES[name]}
    if "env" in changed:
        changed["env"] = {**four.env, **changed["env"]}
    assert name in names(replace(four, **changed))


@pytest.mark.parametrize(("asked", "found"), [("sage", True), ("flash", True), ("native", False)])
def test_a_variable_that_overrules_the_setting_of_attention_is_found(four, asked, found):
    situation = replace(four, env={**four.env, "DIFFUSERS_ATTN_BACKEND": asked})
    assert ("attention" in names(situation)) is found


def test_every_entry_has_a_case_a_remedy_and_a_source():
    assert {problem.name for problem in KNOWN_PROBLEMS} == {*CASES, "P2P of RTX 40"}
    for problem in KNOWN_PROBLEMS:
        assert problem.remedy.endswith(".")
        assert problem.source.startswith("https://")


@pytest.mark.parametrize(
    ("driver", "disabled", "found"), [("535.104", "0", True), ("535.104", "1", False), ("550.40.07", "0", False)]
)
def test_early_drivers_of_the_rtx_40_promise_links_that_hang(monkeypatch, four, driver, disabled, found):
    monkeypatch.setitem(sys.modules, "pynvml", eight_gpus(driver=driver))
    hardware = replace(read_hardware({}).choose([4, 5]), cores=64)
    situation = replace(four, hardware=hardware, num_ranks=2, env={"NCCL_P2P_DISABLE": disabled})
    assert ("P2P of RTX 40" in names(situation)) is found


@pytest.mark.parametrize(
    ("nccl", "gloo", "found"),
    [
        ("eth", "", False),  # a prefix
        ("=eth0", "", False),
        ("^docker,lo", "", False),
        ("eth0,ib0", "", False),
        ("", "eth0", False),
        ("", "^lo", True),  # gloo accepts only names
    ],
)
def test_interfaces_are_named_as_each_library_takes_them(four, nccl, gloo, found):
    env = {**four.env, "NCCL_SOCKET_IFNAME": nccl, "GLOO_SOCKET_IFNAME": gloo}
    assert ("network interface" in names(replace(four, env=env))) is found


def test_gloo_looks_the_machines_name_up_except_on_one_linux_machine(four):
    nameless = replace(four, **CPU, addresses=())
    assert "own name" not in names(nameless)
    assert "own name" in names(replace(nameless, platform="win32"))
    assert "own name" not in names(replace(nameless, platform="win32", env={"GLOO_SOCKET_IFNAME": "Ethernet"}))


def test_the_name_that_debian_gives_is_no_trouble_where_the_way_to_node_0_is_known(four):
    several = replace(four, **CPU, num_nodes=2, addresses=("127.0.1.1",))
    assert "own name" not in names(replace(several, towards_master="eth0"))
    assert "own name" in names(replace(several, towards_master=None))
    assert "own name" in names(replace(several, towards_master="eth0", platform="win32"))


def test_nccl_is_of_no_concern_to_one_rank_or_to_gloo(four):
    for changed in ({"num_ranks": 1}, {"backend": "gloo"}, {"facts": {**FACTS, "has_nccl": False}}):
        situation = replace(four, shm_bytes=1, in_wsl=True, **changed)
        assert not {"/dev/shm", "WSL"} & set(names(situation))


def test_options_of_the_allocator_with_lists_are_well_written(four):
    text = "roundup_power2_divisions:[256:1,512:2],max_split_size_mb:128"
    assert "allocator" not in names(replace(four, env={**four.env, "PYTORCH_CUDA_ALLOC_CONF": text}))


def test_gpus_that_are_there_but_not_chosen_are_not_missed(four):
    env = {**four.env, "CUDA_VISIBLE_DEVICES": "0,1,2,3"}
    assert "hidden GPUs" not in names(replace(four, env=env, hardware=four.hardware.choose([1]), num_ranks=1))


def test_this_machine_can_be_read():
    situation = read_situation(hardware=Hardware(cores=2))
    assert Path(situation.packages_folder).is_absolute()
    assert check_known_problems(situation)
