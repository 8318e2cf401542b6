"""The doctor's checks on fake machines: no torch, no GPU."""

from __future__ import annotations

import json
import os
import platform
import socket
import sys
import time
from collections import namedtuple
from pathlib import Path

import pytest

from modules.config.errors import UserError
from modules.config.installation import ROOT
from modules.config.TrainConfig import TrainConfig
from modules.launch import check_other_nodes as nodes_module
from modules.launch.check_other_nodes import check_other_nodes
from modules.machine.doctor import disk as disk_module
from modules.machine.doctor import examine as examine_module
from modules.machine.doctor.CheckResult import CheckResult
from modules.machine.doctor.child import ChildAnswer, run_child
from modules.machine.doctor.communication import check_communication
from modules.machine.doctor.disk import check_disk
from modules.machine.doctor.examine import examine, within
from modules.machine.doctor.hardware import (
    Hardware,
    check_driver,
    check_gpus,
    check_links,
    check_torch,
    read_hardware,
    read_torch,
)
from modules.machine.doctor.network import check_clock, check_loopback, check_port
from modules.machine.doctor.packages import EXTRAS, OPTIONAL, check_packages, check_python, read_pins, torch_range
from modules.machine.doctor.report import as_values, can_train, result_lines, verdict
from modules.machine.doctor.settings import check_run_settings
from modules.machine.doctor.system import check_machine
from modules.machine.ports import LOOPBACK, claim_free_port
from modules.session.byte_sizes import spoken_bytes
from tests.support.fake_nvml import GIB, FakeGpu, FakeNvml, eight_gpus, real
from tests.support.ports import free_port

FACTS = {
    "version": "2.13.0+cu130",
    "file": "/somewhere/torch/__init__.py",
    "cuda": "13.0",
    "nccl": "2.27.7",
    "cudnn": "9.19.0",
    "has_gloo": True,
    "has_nccl": True,
    "reason": "",
    "devices": [{"name": "NVIDIA A100-SXM4-80GB", "capability": "8.0", "attention": "flash", "error": ""}] * 8,
}


@pytest.fixture
def hardware(monkeypatch) -> Hardware:
    """Eight GPUs of three models, some of them linked."""
    monkeypatch.setitem(sys.modules, "pynvml", eight_gpus())
    return read_hardware({})


def child(code: int | None = 0, output: str = "", errors: str = ""):
    """A fake `run_child` that records what it was asked to run."""

    def run(command, seconds, folder=None):
        run.command = list(command)
        return ChildAnswer(code, output, errors)

    return run


def facts(**changed):
    return {**FACTS, **changed}


# --- Python and packages ----------------------------------------------------------------------------------------------


def test_a_python_that_is_too_old_is_refused_with_the_version_to_install():
    result = check_python((3, 9, 18))
    assert result.state == "fails"
    assert "3.9.18" in result.text
    assert "3.10 or newer" in result.remedy
    assert check_python((3, 10, 0)).state == "ok"
    assert check_python(is_64_bit=False).state == "fails"


def test_the_pins_are_those_of_requirements_txt_for_this_python():
    new, old = (read_pins(python=version) for version in ((3, 12), (3, 10)))
    assert new["diffusers"] != old["diffusers"]
    assert new["torch"] == old["torch"]
    lines = (ROOT / "requirements.txt").read_text().splitlines()
    named = {line.split("==")[0] for line in lines if line.strip() and not line.startswith("#")}
    assert set(old) == named
    assert set(new) == named - {"tomli"}  # since 3.11, Python reads TOML itself
    assert set(OPTIONAL) - set(EXTRAS) < named


@pytest.mark.parametrize(
    ("installed", "state", "detail"),
    [
        ({"torch": "2.13.0+cu130"}, "ok", None),
        ({"torch": "2.11.0+cu130"}, "ok", None),
        ({"torch": "2.10.0"}, "warning", "torch 2.10.0, Chorus runs on 2.11 to 2.13"),
        ({"torch": "2.14.0"}, "warning", "torch 2.14.0, Chorus runs on 2.11 to 2.13"),
        ({"pydantic": "2.14.2"}, "warning", "pydantic 2.14.2, tested with 2.14.3"),
        ({"customtkinter": None}, "warning", "customtkinter is missing: there is no window"),
        ({"pydantic": None}, "fails", "pydantic is missing"),
    ],
)
def test_an_unmet_pin_is_named(installed, state, detail):
    pins = {"torch": "2.13.0", "pydantic": "2.14.3", "customtkinter": "6.0.0"}
    result = check_packages(pins, {**pins, **installed}.get)
    assert result.state == state
    assert result.details == ((detail,) if detail else ())
    assert bool(result.remedy) == (state != "ok")


def test_another_torch_of_the_range_is_named_without_a_warning():
    result = check_packages({"torch": "2.13.0", "pydantic": "2"}, {"torch": "2.11.0+cu130", "pydantic": "2"}.get)
    text = "all 2 as pinned in requirements.txt, but torch 2.11.0+cu130: Chorus runs on 2.11 to 2.13"
    assert (result.state, result.text) == ("ok", text)


def test_the_pinned_torch_is_in_the_range_that_the_pages_name():
    (major, oldest), too_new = torch_range()
    assert (major, oldest) <= tuple(map(int, read_pins()["torch"].split(".")[:2])) < too_new
    for page in ("docs/install.md", "docs/doctor.md"):
        assert f"PyTorch {major}.{oldest} to {major}.{too_new[1] - 1}" in " ".join((ROOT / page).read_text().split())


def test_optional_packages_that_change_a_training_are_named():
    pins = {"torch": "2.13.0"}
    result = check_packages(pins, {**pins, "bitsandbytes": "0.50.2"}.get)
    assert (result.state, result.text) == ("ok", "all 1 as pinned in requirements.txt; also bitsandbytes 0.50.2")


# --- GPUs, driver, PyTorch --------------------------------------------------------------------------------------------


def test_gpus_are_listed_with_their_memory_and_mixed_ones_are_said_to_be_so(hardware):
    result = check_gpus(hardware)
    assert result.state == "warning"
    kinds = "4 x NVIDIA A100-SXM4-80GB, 2 x NVIDIA GeForce RTX 4090, 2 x NVIDIA GeForce RTX 3090"
    assert result.text == f"{kinds}; the slowest sets the pace of all"
    assert result.details[4] == "GPU 4: NVIDIA GeForce RTX 4090, 24.0 of 24.0 GiB free"
    assert check_gpus(hardware.choose([0, 1, 2, 3])).state == "ok"


def test_a_gpu_that_somebody_uses_is_named_with_the_program(monkeypatch):
    gpu = FakeGpu("NVIDIA L4", "GPU-1", used_bytes=20 * GIB, processes={77: ("/usr/bin/python3", 20 * GIB)})
    monkeypatch.setitem(sys.modules, "pynvml", FakeNvml([gpu]))
    result = check_gpus(read_hardware({}))
    assert result.state == "warning"
    assert "in use: GPU 0" in result.text
    assert result.details == ("GPU 0: NVIDIA L4, 4.0 of 24.0 GiB free, used by python3 77",)


def test_without_a_gpu_the_reason_is_told(monkeypatch):
    monkeypatch.setitem(sys.modules, "pynvml", FakeNvml(init_error=real.NVML_ERROR_LIBRARY_NOT_FOUND))
    result = check_gpus(read_hardware({}))
    assert result.state == "warning"
    assert "no NVIDIA driver is installed" in result.text


def test_the_links_are_a_matrix(hardware):
    result = check_links(hardware)
    assert result.state == "warning"
    assert result.text == "of 28 pairs 3 by NVLink, 4 directly over PCIe, 21 without a direct link"
    assert result.details[0].split() == ["GPU", *map(str, range(8))]
    assert result.details[1].split() == ["0", ".", "NVLink", "PCIe", "PCIe", "-", "-", "-", "-"]
    assert result.values["gb_per_s"][0][1] == 100
    linked = check_links(hardware.choose([6, 7]))
    assert (linked.state, linked.details[1].split()) == ("ok", ["6", ".", "NVLink"])


@pytest.mark.parametrize(
    ("cuda", "state", "remedy"),
    [("13.0", "fails", "driver 580 or newer"), ("12.8", "ok", ""), ("11.8", "ok", ""), (None, "ok", "")],
)
def test_a_driver_older_than_the_build_of_torch_needs_is_refused(monkeypatch, cuda, state, remedy):
    """Any driver for a major version of CUDA supports all its minor versions."""
    monkeypatch.setitem(sys.modules, "pynvml", FakeNvml([FakeGpu("L4", "GPU-1")], driver="550.54.15", cuda=12040))
    result = check_driver(read_hardware({}), facts(cuda=cuda))
    assert result.state == state
    assert remedy in result.remedy


def test_without_a_driver_there_is_nothing_to_say_of_it():
    assert check_driver(Hardware(), FACTS) is None


@pytest.mark.parametrize(
    ("changed", "text"),
    [
        ({"cuda": None, "devices": []}, "build without CUDA"),
        ({"reason": "CUDA driver version is insufficient", "devices": []}, "driver version is insufficient"),
        ({"devices": FACTS["devices"][:5]}, "sees 5 of 8 GPUs"),
        (
            {"devices": [*FACTS["devices"][:7], {**FACTS["devices"][7], "error": "no kernel image"}]},
            "can't compute on GPU 7: no kernel image",
        ),
        ({"has_gloo": False}, "without gloo"),
    ],
)
def test_torch_that_can_not_use_the_gpus_fails(hardware, changed, text):
    result = check_torch(facts(**changed), hardware)
    assert result.state == "fails"
    assert text in result.text
    assert result.remedy


def test_torch_that_computes_on_all_gpus_is_well(hardware):
    result = check_torch(FACTS, hardware)
    assert (result.state, result.text) == ("ok", "2.13.0+cu130 computes on all 8 GPUs, NCCL 2.27.7, cuDNN 9.19.0")
    assert result.details[7] == "GPU 7: compute capability 8.0"


def test_gpus_where_torch_chooses_the_attention_of_cudnn_are_named(hardware):
    hopper = {**FACTS["devices"][0], "capability": "9.0", "attention": "cudnn"}
    for attention, state in (("auto", "is off"), ("sdpa", "is off"), ("cudnn", "stays on")):
        result = check_torch(facts(devices=[hopper] * 8), hardware, attention)
        line = f"GPU 0: compute capability 9.0; PyTorch chooses cuDNN's attention, which {state} in training"
        assert result.details[0] == line


def test_a_torch_that_breaks_hangs_or_says_nothing_is_a_result_and_no_traceback():
    broken = read_torch(child(1, errors="Traceback ...\nOSError: libcudart.so.13: no such file\n"))
    assert (broken.state, broken.text) == ("fails", "it can't be loaded: OSError: libcudart.so.13: no such file")
    assert "did not answer" in read_torch(child(None)).text
    assert "exit code 0" in read_torch(child(0)).text
    assert "exit code -11" in read_torch(child(-11)).text
    assert read_torch(child(0, "a library speaks\n" + json.dumps(FACTS))) == FACTS


# --- disks, ports, clock ----------------------------------------------------------------------------------------------


def test_a_disk_is_measured_and_nothing_is_left_on_it(tmp_path):
    result = check_disk("cache_dir", str(tmp_path / "not" / "there" / "yet"))
    assert (result.name, result.state) == ("cache disk", "ok")
    assert result.values["write_bytes_per_s"] > 0
    assert list(tmp_path.iterdir()) == []


def test_a_full_disk_fails_and_one_with_little_room_is_a_warning(tmp_path, monkeypatch):
    usage = namedtuple("usage", "total used free")
    for free, state in ((10**8, "fails"), (5 * 10**9, "warning"), (10**11, "ok")):
        monkeypatch.setattr(disk_module.shutil, "disk_usage", lambda path, free=free: usage(10**12, 0, free))
        result = check_disk("workspace_dir", str(tmp_path))
        assert (result.state, spoken_bytes(free) in result.text) == (state, True)


def test_a_disk_that_is_slow_or_has_no_room_for_more_files_is_a_warning(tmp_path, monkeypatch):
    monkeypatch.setattr(disk_module, "measure_speed", lambda folder: (2e6, None))
    assert "writes 2 MB/s; slow" in check_disk("workspace_dir", str(tmp_path)).text
    monkeypatch.setattr(disk_module, "_free_files", lambda folder: 12)
    assert "only 12 more files" in check_disk("workspace_dir", str(tmp_path)).text


def test_a_disk_that_can_not_be_written_fails(tmp_path, monkeypatch):
    def refuse(folder):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(disk_module, "measure_speed", refuse)
    result = check_disk("workspace_dir", str(tmp_path))
    assert (result.state, "Permission denied" in result.text) == ("fails", True)


@pytest.mark.parametrize(("name", "reason"), [("file/run", "Not a directory"), ("x" * 300, "File name too long")])
def test_a_folder_that_can_not_be_made_fails(name, reason, tmp_path):
    (tmp_path / "file").touch()
    result = check_disk("workspace_dir", str(tmp_path / name))
    assert (result.state, result.text) == ("fails", f"{tmp_path / name} can't be written to: {reason}")


def test_a_busy_port_matters_where_all_machines_have_to_meet():
    with socket.create_server(("", 0)) as server:
        port = server.getsockname()[1]
        alone = check_port(port)
        assert (alone.state, alone.values["next_free"] > port) == ("warning", True)
        assert check_port(port, num_nodes=2).state == "fails"
        assert check_port(port, num_nodes=2, node_rank=1).state == "ok"


def test_a_port_that_a_run_has_claimed_is_busy_before_its_ranks_listen():
    port, claim = claim_free_port(free_port(), LOOPBACK)
    with claim:
        assert (check_port(port).state, check_port(port).values["next_free"] > port) == ("warning", True)
        assert check_port(port, num_nodes=2).state == "fails"
    assert check_port(port).state == "ok"


def test_programs_of_this_machine_reach_each_other():
    assert check_loopback().state == "ok"


def test_a_clock_before_the_time_of_chorus_is_wrong():
    assert check_clock(lambda: 86400.0).state == "warning"
    assert check_clock(lambda: 86400.0).text.startswith("1970-01-02")
    assert check_clock().state == "ok"


# --- communication ----------------------------------------------------------------------------------------------------


def measured(devices, speeds, of_all=1.0, backend="nccl", failed=None):
    ranks = range(len(devices))
    pairs = [[a, b] for a in ranks for b in ranks if a < b]
    values = {"backend": backend, "devices": devices, "bytes": 1, "seconds": 1.0, "failed": failed}
    values["pairs"] = [{"ranks": pair, "gb_per_s": speed} for pair, speed in zip(pairs, speeds, strict=False)]
    values["all"] = None if failed else {"ranks": list(ranks), "gb_per_s": of_all}
    return json.dumps(values)


def test_speeds_stand_beside_what_the_links_should_give(hardware):
    run = child(0, "noise\n" + measured([0, 1, 2], [80.0, 25.0, 24.0], 22.0))
    result = check_communication(hardware.choose([0, 1, 2]), 3, "auto", run)
    assert (result.state, result.text) == ("ok", "3 GPUs by nccl: 22.0 of 32 GB/s (70%)")
    assert result.details[0] == "GPUs 0-1: 80.0 of 100 GB/s (80%)"
    assert result.values["expected_gb_per_s"] == pytest.approx([100, 31.504, 31.504])
    assert "--devices=0,1,2" in run.command


def test_a_link_that_gives_far_less_than_it_should_is_a_warning(hardware):
    output = measured([6, 7], [9.0], 9.0)
    result = check_communication(hardware.choose([6, 7]), 2, "nccl", child(0, output))
    assert result.state == "warning"
    assert "slow: GPUs 6-7" in result.text


def test_gpus_without_a_direct_link_and_gloo_have_no_figure_to_reach(hardware):
    apart = check_communication(hardware.choose([4, 5]), 2, "nccl", child(0, measured([4, 5], [3.0], 3.0)))
    assert (apart.state, apart.text) == ("ok", "2 GPUs by nccl: 3.00 GB/s")
    by_gloo = measured([0, 1], [1.0], 1.0, backend="gloo")
    assert check_communication(hardware.choose([0, 1]), 2, "gloo", child(0, by_gloo)).state == "ok"


def test_a_test_that_hangs_breaks_off_or_is_refused_fails(hardware):
    failed = {"rank": 1, "text": "Rank 1 (device 1) was killed by SIGKILL."}
    for run, text in (
        (child(1, measured([0, 1], [], failed=failed)), "Rank 1 (device 1) was killed by SIGKILL"),
        (child(None), "did not end within"),
        (child(2, errors="backend nccl: there is no NVIDIA GPU here; use gloo.\n"), "there is no NVIDIA GPU here"),
        (child(1, errors="Segmentation fault\n"), "broke off: Segmentation fault"),
    ):
        result = check_communication(hardware.choose([0, 1]), 2, "nccl", run)
        assert (result.state, text in result.text, bool(result.remedy)) == ("fails", True, True)


def test_one_rank_needs_no_test():
    assert check_communication(Hardware(), 1, "auto", child(2)).state == "ok"


# --- settings and machines --------------------------------------------------------------------------------------------


def test_settings_that_the_dry_run_refuses_fail_with_its_sentences(hardware):
    run = child(2, errors="batch_size 3: is odd; use 4.\nepochs 0: must be above 0.\n")
    result = check_run_settings(TrainConfig(), ["--config=run.yaml"], hardware, run)
    assert (result.state, result.details) == ("fails", ("batch_size 3: is odd; use 4.", "epochs 0: must be above 0."))
    assert run.command[-3:] == ["--config=run.yaml", "--dry-run", "--resume"]


def test_settings_for_devices_that_are_not_there_fail():
    config = TrainConfig(enable_multi_gpu=True, device_indexes=[5])
    result = check_run_settings(config, [], Hardware(cores=2), child(0))
    assert (result.state, "device_indexes [5]" in result.details[0]) == ("fails", True)


def test_settings_that_work_show_what_the_run_would_be():
    result = check_run_settings(TrainConfig(), [], Hardware(cores=2), child(0, "Images:  12\n"))
    assert (result.state, result.details) == ("ok", ("Images:  12",))
    assert check_run_settings(TrainConfig(), [], Hardware(cores=2), child(None)).state == "fails"
    broken = check_run_settings(TrainConfig(), [], Hardware(cores=2), child(1, errors="Traceback\nKeyError: 'x'\n"))
    assert broken.details == ("The dry run broke off: KeyError: 'x'.",)


def test_machines_that_differ_fail_with_the_sentence_of_the_node_check(monkeypatch):
    def refuse(config, tell, wait_seconds):
        raise UserError("Node 1 (10.0.0.2) has torch 2.12 instead of 2.13: bring it to what node 0 has.")

    monkeypatch.setattr(nodes_module, "check_nodes", refuse)
    result = check_other_nodes(TrainConfig(num_nodes=2), print)
    assert (result.state, "torch 2.12 instead of 2.13" in result.text) == ("fails", True)
    monkeypatch.setattr(nodes_module, "check_nodes", lambda config, tell, wait_seconds: ["Node 1: 10.0.0.2", "2 alike"])
    result = check_other_nodes(TrainConfig(num_nodes=2), print)
    assert (result.state, result.text, result.details) == ("ok", "2 alike", ("Node 1: 10.0.0.2",))
    late = "The clock of node 1 is 40 s behind that of node 0: have both set by NTP"
    monkeypatch.setattr(nodes_module, "check_nodes", lambda config, tell, wait_seconds: [late, "2 alike"])
    result = check_other_nodes(TrainConfig(num_nodes=2), print)
    assert (result.state, result.details) == ("warning", (late,))


# --- all checks -------------------------------------------------------------------------------------------------------


def test_a_check_that_never_answers_is_left_behind():
    stuck = within(0.05, "GPUs", time.sleep, 60)
    assert (stuck.name, stuck.state) == ("GPUs", "fails")
    assert within(10, "GPUs", lambda: 3) == 3
    with pytest.raises(ZeroDivisionError):
        within(10, "GPUs", lambda: 1 / 0)


def test_a_child_that_hangs_is_ended_and_what_it_said_is_kept():
    code = "import sys, time; print('loading', file=sys.stderr, flush=True); time.sleep(60)"
    answer = run_child([sys.executable, "-S", "-c", code], 3)
    assert (answer.code, answer.last_words) == (None, "loading")


def test_all_checks_are_made_and_a_broken_torch_stops_only_what_needs_it(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "pynvml", eight_gpus())
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    config = TrainConfig(enable_multi_gpu=True, workspace_dir=str(tmp_path), cache_dir=str(tmp_path))
    seen = []

    def no_torch():
        return CheckResult("PyTorch", "fails", "it can't be loaded", "Mend it.")

    def communicate(hardware, num_ranks, backend):
        seen.append((len(hardware.gpus), num_ranks, backend))
        return CheckResult("communication", "ok", "fine")

    monkeypatch.setattr(examine_module, "check_communication", communicate)
    monkeypatch.setattr(examine_module, "read_torch", no_torch)
    names = [result.name for result in examine(config)]
    for name in ("PyTorch", "driver", "GPUs", "links", "workspace disk", "cache disk", "loopback", "port", "clock"):
        assert name in names
    assert "communication" not in names
    monkeypatch.setattr(examine_module, "read_torch", lambda: facts(file=f"{Path(os.__file__).parent}/x/torch/a.py"))
    assert "communication" not in [result.name for result in examine(config, quick=True)]
    assert [result.name for result in examine(config)][-1] == "communication"
    assert seen == [(8, 8, "nccl")]
    monkeypatch.setattr(examine_module, "read_torch", lambda: facts(has_nccl=False))
    list(examine(config))
    assert seen[-1] == (8, 8, "gloo")


def test_a_report_is_plain_lines_with_the_remedy_below():
    results = [
        CheckResult("clock", "ok", "2026"),
        CheckResult("GPUs", "warning", "1 x L4; in use: GPU 0", "End it.", ("GPU 0: L4",)),
    ]
    assert result_lines(results[1]) == [
        "warning  GPUs:            1 x L4; in use: GPU 0.",
        "             GPU 0: L4",
        "         --> End it.",
    ]
    assert verdict(results) == "Training can start: 2 checks, 1 warning."
    results.append(CheckResult("port", "fails", "busy", "End it."))
    assert verdict(results) == "Training would fail: port (and 1 warning)."
    assert not can_train(results)
    values = as_values(results)
    assert json.loads(json.dumps(values)) == values
    assert CheckResult(**{**values["checks"][1], "details": ("GPU 0: L4",)}) == results[1]


# --- the machine ------------------------------------------------------------------------------------------------------


def test_the_machine_is_described_with_what_steers_cuda_and_no_token():
    result = check_machine({"CUDA_VISIBLE_DEVICES": "0,1", "NCCL_DEBUG": "INFO", "HF_TOKEN": "hf_abc", "HOME": "/root"})
    assert result.details == ("CUDA_VISIBLE_DEVICES=0,1", "NCCL_DEBUG=INFO")
    assert platform.platform() in result.text
    assert "GiB of memory" in result.text
    assert json.loads(json.dumps(result.values))["cores"] >= 1
