"""Unusable GPUs are an error, and a run on one device always reports that device."""

from __future__ import annotations

import sys

import pytest
import torch
from torch.nn import functional

from modules.config.errors import UserError
from modules.distributed import usable_gpus
from modules.distributed.attention_backends import choose_attention
from modules.distributed.gradient_layouts import attend_with_matched_gradient, match_gradient_layouts
from modules.distributed.Runtime import Runtime, default_device
from modules.distributed.usable_gpus import describe_device, has_kernels
from modules.machine import devices
from tests.support.fake_nvml import FakeNvml, eight_gpus, real

TOO_OLD = (
    "The NVIDIA driver on your system is too old (found version 12040). Please update your GPU driver by downloading "
    "and installing a new version from the URL: http://www.nvidia.com/Download/index.aspx"
)
MISMATCH = FakeNvml(init_error=real.NVML_ERROR_LIB_RM_VERSION_MISMATCH)


@pytest.fixture
def machine(monkeypatch, tmp_path):
    """Returns a function that simulates GPUs with a driver that this build of PyTorch can't use."""

    def make(nvml: FakeNvml, cuda: str | None = "13.0") -> None:
        def init():
            raise RuntimeError(TOO_OLD)

        (tmp_path / "nvidia0").touch()
        monkeypatch.setattr(devices, "DEVICE_FILES", str(tmp_path / "nvidia*"))
        monkeypatch.setitem(sys.modules, "pynvml", nvml)
        monkeypatch.setattr(torch.version, "cuda", cuda)
        monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
        monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
        monkeypatch.setattr(torch.cuda, "init", init)
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)

    return make


@pytest.mark.parametrize(
    ("nvml", "cuda", "words"),
    [
        (eight_gpus(), None, "can't use the 8 GPUs of this machine: PyTorch .* was built without CUDA; install a CUDA"),
        (eight_gpus(), "13.0", r": The NVIDIA driver .* is too old \(found version 12040\); install a matching driver"),
        (MISMATCH, "13.0", r"can't use the GPUs .*: the NVIDIA driver does not answer \(.*mismatch.*\); install"),
    ],
)
def test_unusable_gpus_are_refused_with_the_reason_unless_hidden(nvml, cuda, words, machine, monkeypatch):
    machine(nvml, cuda)
    with pytest.raises(UserError, match=words):
        default_device()
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert default_device() == torch.device("cpu")


def test_without_a_driver_training_uses_the_cpu(machine):
    machine(FakeNvml(init_error=real.NVML_ERROR_LIBRARY_NOT_FOUND))
    assert default_device() == torch.device("cpu")


@pytest.mark.parametrize(
    ("capability", "built_for", "runs"),
    [
        ((8, 6), ["sm_75", "sm_80"], True),  # the same major version
        ((8, 0), ["sm_75", "sm_86"], False),
        ((6, 1), ["sm_75", "sm_80", "compute_90"], False),
        ((12, 0), ["sm_90", "compute_90"], True),  # compiled when loaded
        ((12, 0), ["sm_90", "sm_100"], False),
        ((9, 0), ["sm_90a"], True),
        ((12, 1), ["sm_120a", "compute_120a"], False),
        ((7, 0), [], True),
        ((9, 0), ["gfx942"], True),
    ],
)
def test_kernels_run_on_the_architectures_they_were_built_for(capability, built_for, runs):
    assert has_kernels(capability, built_for) is runs


def test_a_gpu_without_kernels_is_refused(monkeypatch):
    monkeypatch.setattr(torch.cuda, "set_device", lambda device: None)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (6, 1))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "NVIDIA GeForce GTX 1080")
    monkeypatch.setattr(torch.cuda, "get_arch_list", lambda: ["sm_75", "sm_80"])
    with pytest.raises(UserError, match=r"GPU 1 \(NVIDIA .*\) has compute capability 6.1, .* \(it has sm_75 sm_80\)"):
        Runtime(torch.device("cuda", 1))


@pytest.fixture
def hopper(monkeypatch):
    """A GPU on which PyTorch chooses the attention of cuDNN; what was chosen before holds again afterwards."""
    monkeypatch.setattr(torch.cuda, "set_device", lambda device: None)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    monkeypatch.setattr(torch.cuda, "get_arch_list", lambda: ["sm_90"])
    monkeypatch.setattr(usable_gpus, "enable_expandable_segments", lambda device: None)
    before = torch.backends.cuda.cudnn_sdp_enabled()
    torch.backends.cuda.enable_cudnn_sdp(True)
    yield
    match_gradient_layouts(False)
    torch.backends.cuda.enable_cudnn_sdp(before)


@pytest.mark.usefixtures("hopper")
def test_the_gpu_of_a_rank_becomes_the_current_one(monkeypatch):
    chosen = []
    monkeypatch.setattr(torch.cuda, "set_device", chosen.append)
    Runtime(torch.device("cuda", 1))
    assert chosen == [torch.device("cuda", 1)]


@pytest.mark.usefixtures("hopper")
def test_a_rank_on_a_gpu_computes_no_gradients_with_the_attention_of_cudnn():
    Runtime(torch.device("cuda", 0))
    assert not torch.backends.cuda.cudnn_sdp_enabled()
    assert torch.backends.cuda.flash_sdp_enabled()


@pytest.mark.usefixtures("hopper")
@pytest.mark.parametrize("kind", ["cudnn", "auto", "sdpa"])
def test_the_attention_of_cudnn_is_on_with_matched_gradients_or_off(kind):
    """Also where an earlier run of this process has left the other."""
    runtime = Runtime(torch.device("cuda", 0))
    for earlier in ("auto", "cudnn"):
        choose_attention(earlier, runtime, list, torch.bfloat16, print)
        text, warnings = choose_attention(kind, runtime, list, torch.bfloat16, print)
        matches = functional.scaled_dot_product_attention is attend_with_matched_gradient
        assert torch.backends.cuda.cudnn_sdp_enabled() is matches is (kind == "cudnn")
        assert ("off" in text) is (kind != "cudnn")
        assert not warnings


def test_the_attention_of_cudnn_without_a_gpu_is_a_warning():
    text, warnings = choose_attention("cudnn", Runtime(torch.device("cpu")), list, torch.bfloat16, print)
    assert (text, warnings) == ("", ["model.attention cudnn: there is no cuDNN for cpu; PyTorch's attention is used."])
    assert functional.scaled_dot_product_attention is not attend_with_matched_gradient
    assert choose_attention("auto", Runtime(torch.device("cpu")), list, torch.bfloat16, print) == ("", [])


@pytest.mark.usefixtures("hopper")
def test_an_environment_that_asks_for_the_attention_of_cudnn_is_refused(monkeypatch):
    """diffusers would switch it on again in each attention."""
    monkeypatch.setenv("DIFFUSERS_ATTN_BACKEND", "_native_cudnn")
    with pytest.raises(UserError, match=r"^DIFFUSERS_ATTN_BACKEND '_native_cudnn': .* unset the variable"):
        Runtime(torch.device("cuda", 0))


def test_the_device_description_says_why_it_is_the_cpu(machine, monkeypatch):
    machine(FakeNvml(init_error=real.NVML_ERROR_LIBRARY_NOT_FOUND))
    assert describe_device(torch.device("cpu")) == "the CPU: no NVIDIA driver is installed"
    monkeypatch.setattr(sys, "platform", "darwin")
    assert describe_device(torch.device("cpu")) == "the CPU; Apple's GPU is not used"
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "NVIDIA A100-SXM4-80GB")
    assert describe_device(torch.device("cuda", 1)) == "cuda:1 (NVIDIA A100-SXM4-80GB)"
