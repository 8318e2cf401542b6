"""Kernels of other packages compute what PyTorch's attention computes, and what they can't, PyTorch does."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from modules.config.attentions import ATTENTIONS
from modules.config.errors import UserError
from modules.distributed import attention_kernels, other_attention
from modules.distributed.attention_backends import choose_attention
from modules.distributed.attention_kernels import LOADERS, flex_attend
from modules.distributed.attention_trial import AttentionCase
from modules.distributed.other_attention import check_attention, put_in_place, stop_other_attention, use_other_attention
from modules.distributed.Runtime import Runtime
from modules.machine import devices
from tests.support.attention_packages import AttentionPackages

CPU = torch.device("cpu")
CASES = [AttentionCase(33, 33, 16), AttentionCase(31, 20, 16, masked=True)]
QUERIES, KEYS, WIDTH = 12, 13, 16
attend_of_torch = functional.scaled_dot_product_attention


@pytest.fixture(autouse=True)
def stopped() -> Iterator[None]:
    """After each test, PyTorch computes attention."""
    yield
    stop_other_attention()
    assert functional.scaled_dot_product_attention is attend_of_torch


@pytest.fixture
def packages(monkeypatch) -> AttentionPackages:
    """Stand-ins for all packages, which are used on the CPU."""
    monkeypatch.setattr(devices, "GPU_TYPE", "cpu")
    return AttentionPackages(monkeypatch)


@pytest.fixture
def use(packages) -> Callable[[str], list[str]]:
    """Puts a kernel in the place of PyTorch's attention; returns what is told."""

    def put(name: str) -> list[str]:
        told: list[str] = []
        put_in_place(ATTENTIONS[name], LOADERS[name](), told.append)
        return told

    return put


def inputs(num_key_heads: int = 4, width: int = WIDTH, dtype: torch.dtype = torch.bfloat16) -> list[Tensor]:
    """Queries, keys and values, [B, H, N, D], as views of the [B, N, H, D] that layers give."""
    generator = torch.Generator().manual_seed(0)
    shapes = ((2, QUERIES, 4, width), (2, KEYS, num_key_heads, width), (2, KEYS, num_key_heads, width))
    drawn = [torch.randn(shape, generator=generator, dtype=dtype) for shape in shapes]
    return [each.transpose(1, 2).requires_grad_() for each in drawn]


def mask_of_keys() -> Tensor:
    """Hides the last keys of the first sample."""
    mask = torch.ones(2, 1, 1, KEYS, dtype=torch.bool)
    mask[0, ..., 9:] = False
    return mask


MASKS = {
    "none": lambda: None,
    "keys": mask_of_keys,
    "pairs": lambda: torch.ones(QUERIES, KEYS, dtype=torch.bool).tril().expand(2, 4, -1, -1),
    "bias": lambda: torch.where(mask_of_keys(), 0.5, -10000.0).to(torch.bfloat16),
}


def results(attend: Callable[..., Tensor], given: list[Tensor], **options: object) -> list[Tensor]:
    output = attend(*given, **options)
    weights = torch.randn(output.shape, generator=torch.Generator().manual_seed(1)).to(output.dtype)
    return [output, *torch.autograd.grad(output, given, weights)]


@pytest.mark.parametrize("num_key_heads", [4, 2])
@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("name", ["flash", "xformers"])
def test_outputs_and_gradients_are_those_of_pytorch(name, mask, num_key_heads, use, packages):
    options = {"attn_mask": MASKS[mask](), "scale": 0.3, "enable_gqa": num_key_heads != 4}
    expected = results(attend_of_torch, inputs(num_key_heads), **options)
    use(name)
    found = results(functional.scaled_dot_product_attention, inputs(num_key_heads), **options)
    assert packages.called[name] == (mask == "none" or ATTENTIONS[name].masks)
    for ours, theirs in zip(found, expected, strict=True):
        assert ours.shape == theirs.shape
        torch.testing.assert_close(ours, theirs, rtol=0.02, atol=0.02)


@pytest.fixture
def uncompiled_flex(monkeypatch) -> None:
    """Else it compiles even to compute uncompiled."""
    monkeypatch.setattr("torch.nn.attention.flex_attention._FLEX_ATTENTION_DISABLE_COMPILE_DEBUG", True)


@pytest.mark.parametrize("mask", MASKS)
def test_flex_computes_what_pytorch_does(mask, uncompiled_flex):
    """Without gradients, which it has on GPUs only."""
    given = [each.detach() for each in inputs(num_key_heads=2)]
    expected = attend_of_torch(*given, attn_mask=MASKS[mask](), scale=0.3, enable_gqa=True)
    found = flex_attend(*given, MASKS[mask](), 0.3)
    torch.testing.assert_close(found, expected, rtol=0.02, atol=0.02)


@pytest.mark.parametrize("name", ["xformers", "flex"])
def test_a_row_that_sees_no_key_gives_zeros_as_in_pytorch(name, packages, uncompiled_flex):
    kernel = flex_attend if name == "flex" else LOADERS[name]()
    mask = mask_of_keys().expand(2, 1, QUERIES, KEYS).clone()
    mask[1, :, 5] = False
    given = [each.detach() for each in inputs()]
    output = kernel(*given, mask, None)
    assert not output[1, :, 5].any()
    torch.testing.assert_close(output, attend_of_torch(*given, attn_mask=mask), rtol=0.02, atol=0.02)


@pytest.mark.parametrize(
    ("name", "changes", "reason"),
    [
        ("flash", {"dtype": torch.float32}, "in float32"),
        ("flash", {"mask": mask_of_keys()}, "with a mask"),
        ("flash", {"width": 264}, "with heads of width 264"),
        ("xformers", {"width": 20}, "with heads of width 20"),
        ("xformers", {"dtype": torch.float64}, "in float64"),
        ("xformers", {"mask": torch.zeros(QUERIES, KEYS, requires_grad=True)}, "with a mask that is trained"),
        ("xformers", {"is_causal": True}, "with a causal mask"),
        ("flash", {"dropout_p": 1e-9}, "with dropout"),
    ],
)
def test_what_a_kernel_does_not_take_is_computed_by_pytorch_and_said_once(name, changes, reason, use, packages):
    told = use(name)
    given = inputs(width=changes.pop("width", WIDTH), dtype=changes.pop("dtype", torch.bfloat16))
    mask = changes.pop("mask", None)
    mask = mask if mask is None or mask.dtype == torch.bool else mask.to(torch.bfloat16)
    for _ in range(2):
        found = functional.scaled_dot_product_attention(*given, attn_mask=mask, **changes)
    torch.testing.assert_close(found, attend_of_torch(*given, attn_mask=mask, **changes))
    assert packages.called[name] == 0
    label = ATTENTIONS[name].label
    assert told == [f"model.attention {name}: {label} takes no attentions {reason}; PyTorch computes those."]


def test_what_computes_no_gradients_is_left_to_pytorch_without_a_word(use):
    """As the VAE of samples, whose heads are wide."""
    told = use("flash")
    with torch.no_grad():
        functional.scaled_dot_product_attention(*inputs(width=512))
    functional.scaled_dot_product_attention(*(each.detach() for each in inputs(dtype=torch.float32)))
    assert told == []


def test_what_is_compiled_computes_no_samples(packages):
    """Which have sizes of their own, and run uncompiled where a model's blocks are compiled."""
    asked: list[Tensor] = []
    put_in_place(ATTENTIONS["flex"], lambda *given: asked.append(given[0]) or attend_of_torch(*given[:3]), print)
    given = inputs()
    with torch.no_grad():
        functional.scaled_dot_product_attention(*given)
    assert asked == []
    functional.scaled_dot_product_attention(*given)
    assert len(asked) == 1


def test_autocast_gives_a_kernel_its_precision_as_it_does_pytorch(use, packages):
    """Queries come from norms and rotations in float32."""
    told = use("flash")
    given = inputs(dtype=torch.float32)
    with torch.autocast("cpu", torch.bfloat16):
        found = results(functional.scaled_dot_product_attention, given)
        expected = results(attend_of_torch, given)
    assert packages.called["flash"] == 1
    assert [each.dtype for each in found] == [each.dtype for each in expected]
    assert told == []


def test_compiled_blocks_call_a_kernel_without_a_graph_break(use):
    use("xformers")

    def block(query: Tensor, key: Tensor, value: Tensor, mask: Tensor) -> Tensor:
        return functional.scaled_dot_product_attention(query, key, value, attn_mask=mask)

    compiled = torch.compile(block, backend="eager", fullgraph=True)
    given = [*inputs(), mask_of_keys()]
    torch.testing.assert_close(compiled(*given), block(*given))
    torch._dynamo.reset()


def test_the_versions_of_packages_are_those_that_diffusers_requires():
    from diffusers.models import attention_dispatch as dispatch

    assert ATTENTIONS["flash"].least_version == dispatch._REQUIRED_FLASH_VERSION
    assert ATTENTIONS["xformers"].least_version == dispatch._REQUIRED_XFORMERS_VERSION
    source = inspect.getsource(dispatch._check_attention_backend_requirements)
    assert f'is_kernels_version(">=", "{ATTENTIONS["flash3"].least_version}")' in source


# --- before the first step --------------------------------------------------------------------------------------------


@pytest.fixture
def start(packages, monkeypatch) -> Callable[..., tuple[str, list[str]]]:
    """Starts to use a kernel as a run does. change: of what it gives. elsewhere: what another rank finds."""

    def begin(name: str, change: Callable[[Tensor], Tensor] = lambda output: output, elsewhere: str | None = None):
        if name == "flash3":
            packages.install_kernels()
        kernel = LOADERS[name]()
        runtime = Runtime(CPU)
        if elsewhere is not None:
            runtime.world_size = 2
            monkeypatch.setattr(runtime, "gather", lambda value, why: [value, elsewhere])
        monkeypatch.setattr(other_attention, "load_kernel", lambda facts, device: lambda *given: change(kernel(*given)))
        return use_other_attention(ATTENTIONS[name], runtime, lambda: CASES, torch.bfloat16, lambda text: None)

    return begin


@pytest.mark.parametrize("name", ["flash", "flash3", "xformers"])
def test_a_kernel_that_is_right_is_used(name, start, packages):
    text, warnings = start(name)
    assert text == f"Attention by {ATTENTIONS[name].label}, and by PyTorch where that can't compute it"
    assert warnings == []
    assert functional.scaled_dot_product_attention is not attend_of_torch
    assert packages.called[name] == (6 if ATTENTIONS[name].masks else 4)  # in every layout, where it takes the mask
    assert packages.downloaded == ([("kernels-community/flash-attn3", 1)] if name == "flash3" else [])


def fail(output: Tensor) -> Tensor:
    raise NotImplementedError("No operator found for `memory_efficient_attention_forward` with inputs:\n  query")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda output: output.detach() + 1.1 * (output - output.detach()), "is wrong: the gradient of the queries"),
        (lambda output: output * torch.nan, "is wrong: the output differs by nan%"),
        (lambda output: output.detach(), "fails (RuntimeError: "),
        (fail, "fails (NotImplementedError: No operator found for `memory_efficient_attention_forward` with inputs: "),
    ],
)
def test_a_kernel_that_is_wrong_or_fails_is_not_used(change, words, start):
    text, warnings = start("xformers", change)
    assert text == ""
    assert warnings[0].startswith(f"On this GPU, xFormers {words}")
    assert warnings[0].endswith("; PyTorch's attention is used instead.")
    assert functional.scaled_dot_product_attention is attend_of_torch


def test_ranks_leave_a_kernel_that_is_wrong_on_one_of_them(start):
    _, warnings = start("flash", elsewhere="is wrong: the output differs by 9%")
    assert warnings[0].startswith("On the GPU of rank 1, FlashAttention 2 is wrong")
    assert functional.scaled_dot_product_attention is attend_of_torch


def test_without_a_gpu_pytorch_computes_attention_with_a_warning(use):
    use("flash")
    told: list[str] = []
    chosen = choose_attention("flash", Runtime(CPU), lambda: CASES, torch.bfloat16, told.append)
    text = "model.attention flash: there is no FlashAttention 2 for cpu; PyTorch's attention is used."
    assert chosen == ("", [text])
    assert functional.scaled_dot_product_attention is attend_of_torch


@pytest.mark.parametrize(
    ("asked", "why"),
    [
        ("sage", "SageAttention has no backward pass"),
        ("flash", "some models of diffusers would use it, and not the setting"),
    ],
)
def test_a_variable_that_would_overrule_the_setting_is_refused(asked, why):
    with pytest.raises(UserError) as refused:
        check_attention("auto", CPU, {"DIFFUSERS_ATTN_BACKEND": asked})
    assert str(refused.value) == (
        f"DIFFUSERS_ATTN_BACKEND {asked!r} with model.attention auto: {why}; unset the variable, and choose by "
        "model.attention."
    )
    check_attention("auto", CPU, {"DIFFUSERS_ATTN_BACKEND": "native"})


@pytest.fixture
def gpu(monkeypatch) -> Callable[..., torch.device]:
    """Pretends that there is a GPU of this compute capability."""

    def pretend(*capability: int) -> torch.device:
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
        monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "Some GPU")
        return torch.device("cuda", 0)

    return pretend


@pytest.mark.parametrize(
    ("name", "capability", "made_for"),
    [("flash", (7, 5), "8.0 and newer"), ("flash3", (8, 9), "9.0"), ("flash3", (12, 0), "9.0")],
)
def test_a_gpu_for_which_a_kernel_is_not_made_is_refused(name, capability, made_for, gpu):
    with pytest.raises(UserError) as refused:
        check_attention(name, gpu(*capability), {})
    assert str(refused.value) == (
        f"model.attention {name}: {ATTENTIONS[name].label} is made for compute capability {made_for}, and Some GPU has "
        f"{capability[0]}.{capability[1]}; use auto."
    )


def test_a_package_that_can_not_be_loaded_is_refused_with_its_reason(gpu, monkeypatch):
    def load():
        raise ImportError("undefined symbol:\n _ZN3c10")

    monkeypatch.setitem(attention_kernels.LOADERS, "flash", load)
    with pytest.raises(UserError) as refused:
        check_attention("flash", gpu(8, 0), {})
    assert str(refused.value) == (
        "model.attention flash: FlashAttention 2 can't be loaded (ImportError: undefined symbol: _ZN3c10); repair or "
        "update its package, or use auto."
    )
