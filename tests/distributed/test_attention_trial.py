"""A wrong attention is found before the first step, and all ranks leave it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor
from torch.nn import functional
from torch.nn.attention import SDPBackend

from modules.distributed import usable_gpus
from modules.distributed.attention_backends import LABELS, choose_attention, try_backend
from modules.distributed.attention_trial import AttentionCase, Trial, try_attention
from modules.distributed.gradient_layouts import attend_with_matched_gradient, match_gradient_layouts
from modules.distributed.Runtime import Runtime
from scripts.gpu import attention
from scripts.gpu.cases import NotHere

CPU = torch.device("cpu")
CASES = [AttentionCase(33, 33, 16), AttentionCase(33, 33, 16, masked=True), AttentionCase(31, 20, 16)]
attend_rightly = functional.scaled_dot_product_attention


class StalePlans(torch.autograd.Function):
    """As cuDNN's attention in PyTorch: the layout of the first gradient is taken for all with the key of its plan."""

    plans: dict[tuple, tuple[int, ...]] = {}

    @staticmethod
    def forward(ctx, output: Tensor, key: tuple) -> Tensor:
        ctx.key = key
        return output.view_as(output)

    @staticmethod
    def backward(ctx, gradient: Tensor) -> tuple[Tensor, None]:
        strides = StalePlans.plans.setdefault(ctx.key, gradient.stride())
        return gradient.as_strided(gradient.shape, strides, gradient.storage_offset()), None


def attend_with_stale_plans(query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None) -> Tensor:
    described = (query.shape, query.stride(), key.shape, key.stride(), attn_mask is None)
    return StalePlans.apply(attend_rightly(query, key, value, attn_mask), described)


@pytest.fixture(autouse=True)
def settings_of_torch() -> Iterator[None]:
    """What tests change of them, they are given back."""
    cuda = torch.backends.cuda
    before = cuda.cudnn_sdp_enabled(), cuda.flash_sdp_enabled(), cuda.mem_efficient_sdp_enabled()
    StalePlans.plans.clear()
    yield
    match_gradient_layouts(False)
    cuda.enable_cudnn_sdp(before[0])
    cuda.enable_flash_sdp(before[1])
    cuda.enable_mem_efficient_sdp(before[2])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_a_right_attention_passes(dtype):
    assert try_attention(attend_rightly, attend_rightly, CASES, CPU, dtype) == Trial(3, "")


def test_plans_kept_without_the_layout_of_the_gradient_are_found(monkeypatch):
    trial = try_attention(attend_with_stale_plans, attend_rightly, CASES, CPU, torch.bfloat16)
    assert trial.fault.startswith("the gradient of the queries differs by ")
    assert trial.fault.endswith("(33 queries and 33 keys of width 16 without a mask)")


def test_plans_kept_without_the_layout_of_the_gradient_are_right_for_matched_gradients(monkeypatch):
    monkeypatch.setattr(functional, "scaled_dot_product_attention", attend_with_stale_plans)
    match_gradient_layouts(True)
    trial = try_attention(attend_with_matched_gradient, attend_rightly, CASES, CPU, torch.bfloat16)
    assert trial == Trial(3, "")
    match_gradient_layouts(False)


@pytest.mark.parametrize(
    ("mistake", "words"),
    [
        (lambda output: output * torch.nan, "the output differs by nan%"),
        (lambda output: output.detach().roll(1, 2) + output - output.detach(), "the output differs by 1"),
        (
            lambda output: output.detach() + 1.1 * (output - output.detach()),
            "the gradient of the queries differs by 10%",
        ),
    ],
)
def test_wrong_values_are_found(mistake, words):
    trial = try_attention(
        lambda *args, **kw: mistake(attend_rightly(*args, **kw)), attend_rightly, CASES, CPU, torch.bfloat16
    )
    assert trial.fault.startswith(words)


def test_a_case_without_a_kernel_is_passed_over_and_other_errors_are_not():
    def attend(query, key, value, attn_mask=None):
        if attn_mask is not None:
            raise RuntimeError("No available kernel. Aborting execution.")
        return attend_rightly(query, key, value)

    def fail(*args, **kwargs):
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    assert try_attention(attend, attend_rightly, CASES, CPU, torch.bfloat16) == Trial(2, "")
    with pytest.raises(RuntimeError, match="illegal memory access"):
        try_attention(fail, attend_rightly, CASES, CPU, torch.bfloat16)


def test_a_backend_is_tried_alone():
    """The CPU has flash attention, and none of the others."""
    trials = {backend: try_backend(backend, CASES, CPU, torch.bfloat16) for backend in LABELS}
    assert trials.pop(SDPBackend.FLASH_ATTENTION) == Trial(3, "")
    assert set(trials.values()) == {Trial(0, "")}


# --- what a run makes of it -------------------------------------------------------------------------------------------


@pytest.fixture
def choose(monkeypatch):
    """Returns a function that chooses on a pretended GPU, where some backends are wrong, on this rank or another."""
    monkeypatch.setattr(usable_gpus, "set_cuda_device", lambda device: None)
    monkeypatch.setattr("modules.distributed.Runtime.set_cuda_device", lambda device: None)

    def run(kind: str, here: dict[str, str], elsewhere: dict[str, str] | None = None, dtype=torch.bfloat16):
        runtime = Runtime(torch.device("cuda", 0))
        trials = {backend.name: Trial(1, (elsewhere or {}).get(backend.name, "")) for backend in LABELS}
        monkeypatch.setattr(runtime, "gather", lambda value, why: [value] if elsewhere is None else [value, trials])

        warnings_later: list[str] = []

        def try_one(backend: SDPBackend, cases, device, dtype) -> Trial:
            return Trial(len(cases), here.get(backend.name, "") if cases else "")

        _, warnings = choose_attention(kind, runtime, lambda: CASES, dtype, warnings_later.append, try_one)
        cuda = torch.backends.cuda
        on = (cuda.cudnn_sdp_enabled(), cuda.flash_sdp_enabled(), cuda.mem_efficient_sdp_enabled())
        assert (functional.scaled_dot_product_attention is attend_with_matched_gradient) is on[0]
        return on, warnings

    return run


def test_a_wrong_backend_is_switched_off_with_a_warning(choose):
    assert choose("cudnn", {}) == ((True, True, True), [])
    on, warnings = choose("cudnn", {"CUDNN_ATTENTION": "the output differs by 9%"})
    assert on == (False, True, True)
    assert warnings == [
        "On this GPU, cuDNN's attention is wrong: the output differs by 9%; flash attention is used instead."
    ]
    on, warnings = choose("auto", {"FLASH_ATTENTION": "a", "EFFICIENT_ATTENTION": "b"})
    assert on == (False, False, False)
    assert "memory-efficient attention is used instead" in warnings[0]
    assert "plain attention, which takes more memory, is used instead" in warnings[1]


def test_ranks_leave_what_is_wrong_on_one_of_them(choose):
    on, warnings = choose("cudnn", {}, elsewhere={"CUDNN_ATTENTION": "the output differs by 9%"})
    assert on == (False, True, True)
    assert warnings[0].startswith("On the GPU of rank 1, cuDNN's attention is wrong")


def test_nothing_is_tried_where_no_half_precision_is_used(choose):
    assert choose("auto", {"FLASH_ATTENTION": "wrong"}, dtype=torch.float32) == ((False, True, True), [])


# --- on a GPU ---------------------------------------------------------------------------------------------------------


@pytest.mark.gpu
@pytest.mark.parametrize("width", [16, 64, 128])
@pytest.mark.parametrize("backend", LABELS)
def test_what_runs_use_is_right_on_this_gpu_for_the_lengths_of_buckets(backend, width):
    """cuDNN's attention with matched gradients, as runs have it. Freed memory holds NaN, so that reading it shows."""
    try:
        found = attention.tried(backend.name, width, "cuda:0", is_matched=backend is SDPBackend.CUDNN_ATTENTION)
    except NotHere as reason:
        pytest.skip(str(reason))
    assert not found["fault"]
