"""LoRA layers that compute base and adapter in one function, beside PEFT's own."""

from __future__ import annotations

import copy
from unittest import mock

import peft
import pytest
import torch
from peft.tuners.lora import layer as peft_layers
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint

from modules.layers import LoraLinear
from modules.layers.LoraLinear import fuse_lora
from modules.layers.LowCopies import forget_casts
from modules.layers.QuantizedLinear import QuantizedLinear
from modules.trainer.Ema import swap_weights
from modules.trainer.Step import Step
from tests.support.make_loop import make_loop
from tests.support.OperationCounter import OperationCounter

IN, HIDDEN, OUT, RANK = 48, 64, 40, 8


class Model(nn.Module):
    """Two linear layers with adapters, the second one without a bias; its block may be checkpointed."""

    def __init__(self, **lora):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second = nn.Linear(IN, HIDDEN), nn.Linear(HIDDEN, OUT, bias=False)
        self.requires_grad_(False)
        self.checkpoints = False
        # a scale that rounds: alpha / rank is 1.5
        settings = {"r": RANK, "lora_alpha": 1.5 * RANK, "init_lora_weights": "gaussian", **lora}
        self.config = peft.LoraConfig(target_modules=["first", "second"], **settings)
        peft.inject_adapter_in_model(self.config, self)
        for name, parameter in self.named_parameters():
            if "lora_B" in name:
                nn.init.normal_(parameter, std=0.1)

    def forward(self, values):
        return checkpoint(self._compute, values, use_reentrant=False) if self.checkpoints else self._compute(values)

    def _compute(self, values):
        return self.second(nn.functional.silu(self.first(values)))

    def base_to(self, dtype):
        for layer in (self.first, self.second):
            layer.base_layer.to(dtype)
        return self


def fused(model):
    """A copy of it, whose layers are fused."""
    twin = copy.deepcopy(model)
    fuse_lora(twin)
    assert type(twin.first) is type(twin.second) is LoraLinear.LoraLinear
    return twin


def given(dtype=torch.float32):
    return torch.randn(3, 7, IN, generator=torch.Generator().manual_seed(1)).to(dtype)


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("kind", ["float64", "bfloat16", "int8 matmul"])
def test_an_adapter_of_zeros_changes_no_bit(kind, transposed):
    """A loss that compares predictions with and without it, as prior preservation, would train on the difference."""
    dtype = torch.bfloat16 if kind == "int8 matmul" else getattr(torch, kind)
    model = Model().base_to(dtype)
    model = in_8_bits(model) if kind == "int8 matmul" else model
    for name, parameter in model.named_parameters():
        if "lora_" in name:
            parameter.data = parameter.data.to(dtype) * ("lora_A" in name)
    values = given(dtype)
    values = values.transpose(1, 2).contiguous().transpose(1, 2) if transposed else values
    with torch.no_grad():
        base = model.second.base_layer(nn.functional.silu(model.first.base_layer(values)))
    assert torch.equal(fused(model)(values.requires_grad_()), base)


def results(model, values, autocast=False):
    """Name -> the output, the gradient of the input and those of the adapters."""
    values = values.clone().requires_grad_()
    with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        output = model(values)
    output.double().square().mean().backward()
    gradients = {name: param.grad for name, param in model.named_parameters() if param.requires_grad}
    assert gradients
    model.zero_grad()
    return {"output": output.detach(), "input": values.grad, **gradients}


def calls(model, values, autocast=False):
    """(the output, how often it was computed in one function)."""
    own = LoraLinear._Product.apply
    with (
        mock.patch.object(LoraLinear._Product, "apply", side_effect=own) as product,
        torch.autocast("cpu", torch.bfloat16, enabled=autocast),
    ):
        return model(values).detach(), product.call_count


def quantized(model):
    for layer in (model.first, model.second):
        layer.base_layer = QuantizedLinear.of(layer.base_layer, "int8", torch.device("cpu"))
    return model


def in_8_bits(model):
    for layer in (quantized(model).first, model.second):
        layer.base_layer.in_8_bits = True
    return model


@pytest.mark.parametrize("prepare", [lambda model: model, quantized, in_8_bits], ids=["plain", "int8", "int8 matmul"])
@pytest.mark.parametrize("alpha", [RANK, 1.5 * RANK])
def test_in_float32_it_computes_what_peft_does(prepare, alpha):
    model = prepare(Model(lora_alpha=alpha))
    expected, found = results(model, given()), results(twin := fused(model), given())
    assert calls(twin, given())[1] == 2
    for name, value in expected.items():
        torch.testing.assert_close(found[name], value, rtol=1e-6, atol=1e-6 * float(value.abs().max()))


@pytest.mark.parametrize("prepare", [lambda model: model, quantized], ids=["plain", "int8"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_in_bfloat16_it_is_as_close_to_float64_as_peft(prepare, dtype):
    model = prepare(Model().base_to(torch.bfloat16))
    exact = copy.deepcopy(model)
    for layer in (exact.first, exact.second):
        if isinstance(layer.base_layer, QuantizedLinear):
            plain = nn.Linear(layer.in_features, layer.out_features, layer.base_layer.bias is not None)
            plain.load_state_dict(
                {**layer.base_layer.state_dict(), "weight": layer.base_layer.dequantize()}, strict=False
            )
            layer.base_layer = plain.requires_grad_(False)
    values = given(dtype)
    expected = results(exact.double(), values.double())
    of_peft, found = results(model, values, autocast=True), results(twin := fused(model), values, autocast=True)
    assert calls(twin, values, autocast=True)[1] == 2
    for name, value in expected.items():
        assert found[name].dtype == of_peft[name].dtype
        errors = [float((each[name].double() - value).norm() / value.norm()) for each in (found, of_peft)]
        assert errors[0] < 1.3 * errors[1] < 0.02, name


def test_a_checkpointed_block_and_a_copy_of_a_model_give_the_same():
    model = fused(Model().base_to(torch.bfloat16))
    expected = results(model, given(), autocast=True)
    twin = copy.deepcopy(model)
    twin.checkpoints = True
    found = results(twin, given(), autocast=True)
    assert all(torch.equal(found[name], value) for name, value in expected.items())


def _nothing(model):
    pass


def _second_adapter(model):
    peft.inject_adapter_in_model(model.config, model, adapter_name="other")
    for layer in (model.first, model.second):
        layer.set_adapter(["default", "other"])


def _no_adapter(model):
    for layer in (model.first, model.second):
        layer.enable_adapters(False)


def _merge(model):
    for layer in (model.first, model.second):
        layer.merge()


def _hook(part):
    def add(model):
        for layer in (model.first, model.second):
            part(layer).register_forward_hook(lambda module, args, output: 2 * output)

    return add


def _give_biases(model):
    model.first.lora_B.default.bias = nn.Parameter(torch.ones(HIDDEN))
    model.second.lora_B.default.bias = nn.Parameter(torch.ones(OUT))


def _train_base(model):
    model.first.base_layer.weight.requires_grad_(True)
    model.second.base_layer.weight.requires_grad_(True)


CASES = {
    "two adapters": ({}, _second_adapter, torch.float32),
    "adapters off": ({}, _no_adapter, torch.float32),
    "merged": ({}, _merge, torch.float32),
    "DoRA": ({"use_dora": True}, _nothing, torch.float32),
    "dropout": ({"lora_dropout": 0.5}, _nothing, torch.float32),
    "biases of adapters": ({}, _give_biases, torch.float32),
    "a hook on the base": ({}, _hook(lambda layer: layer.base_layer), torch.float32),
    "a hook on the adapter": ({}, _hook(lambda layer: layer.lora_A.default), torch.float32),
    "a base that trains": ({}, _train_base, torch.float32),
    "dtypes that differ": ({}, lambda model: model.base_to(torch.float64), torch.float64),
}


@pytest.mark.parametrize("case", CASES)
def test_what_it_can_not_compute_is_left_to_peft(case):
    lora, change, dtype = CASES[case]
    model = Model(**lora)
    fuse_lora(twin := copy.deepcopy(model))
    for each in (model, twin):
        torch.manual_seed(5)
        change(each)
    torch.manual_seed(3)
    expected = model(given(dtype)).detach()
    torch.manual_seed(3)
    found, products = calls(twin, given(dtype))
    assert products == 0
    assert torch.equal(found, expected)


def test_dropout_and_adapters_that_are_off_hold_no_longer_than_they_are():
    model = fused(Model(lora_dropout=0.5))
    assert calls(model, given())[1] == 0
    assert calls(model.eval(), given())[1] == 2
    _no_adapter(model)
    assert calls(model, given())[1] == 0
    for layer in (model.first, model.second):
        layer.enable_adapters(True)
    assert calls(model, given())[1] == 2


def test_a_layer_of_another_kind_stays_as_it_is():
    class Special(peft_layers.Linear):
        pass

    model = Model()
    model.first.__class__ = Special
    model.second.base_layer.__class__ = type("OwnLinear", (nn.Linear,), {})
    fuse_lora(model)
    assert type(model.first) is Special
    assert type(model.second) is peft_layers.Linear


class Casts(TorchDispatchMode):
    """How many weights of adapters, or gradients of these, each operation has cast."""

    def __init__(self):
        super().__init__()
        self.counts = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        if function is torch.ops.aten._foreach_copy_.default:
            self.counts.append(len(args[0]))
        if function is torch.ops.aten._to_copy.default and RANK in args[0].shape:
            self.counts.append(1)
        return function(*args, **(kwargs or {}))


def test_the_weights_of_a_block_are_cast_at_once_in_each_pass_and_so_are_their_gradients():
    model = nn.ModuleList(Model().base_to(torch.bfloat16) for _ in range(3))
    fuse_lora(model)
    values = given().requires_grad_()
    with Casts() as casts:
        with torch.autocast("cpu", torch.bfloat16):
            for block in model:
                block.checkpoints = True
            total = sum(block(values).sum() for block in model)
        assert casts.counts == [4, 4, 4]
        total.backward()
    assert casts.counts == [4] * (5 + 3)  # the copies of the last block were there still
    assert model[0].first.copies._copies == {}


def test_changed_weights_are_cast_again():
    model = fused(Model().base_to(torch.bfloat16))
    before, _ = calls(model, given(), autocast=True)
    with torch.no_grad():
        model.first.lora_B.default.weight.mul_(2)
    changed, _ = calls(model, given(), autocast=True)
    assert not torch.equal(changed, before)
    for _ in range(2):  # PyTorch does not know of the first change
        model.first.lora_B.default.weight.data.mul_(2)
        forget_casts()
        again, _ = calls(model, given(), autocast=True)
        assert not torch.equal(again, changed)
        changed = again
    twin = copy.deepcopy(model)
    with torch.no_grad():
        twin.first.lora_B.default.weight.mul_(2)
    assert not torch.equal(calls(twin, given(), autocast=True)[0], changed)
    assert torch.equal(calls(model, given(), autocast=True)[0], changed)


def test_averages_in_place_of_the_weights_take_effect():
    model = fused(Model().base_to(torch.bfloat16))
    weight = model.first.lora_B.default.weight
    before, _ = calls(model, given(), autocast=True)
    with swap_weights({weight: 2 * weight.detach()}):
        assert not torch.equal(calls(model, given(), autocast=True)[0], before)
    assert torch.equal(calls(model, given(), autocast=True)[0], before)


def test_a_compiled_block_has_no_break_and_computes_as_peft_does():
    graphs = []

    def passed_on(graph, inputs):
        graphs.append(graph)
        return graph.forward

    plain = Model().base_to(torch.bfloat16)
    expected = results(plain, given(), autocast=True)
    torch._dynamo.reset()
    compiled = fused(plain)
    compiled.compile(backend=passed_on, fullgraph=True)
    found = results(compiled, given(), autocast=True)
    torch._dynamo.reset()
    assert graphs
    assert all(torch.equal(found[name], value) for name, value in expected.items())


def test_a_step_uses_the_weights_of_the_step_before_however_they_were_written():
    def losses_of(model):
        """Of steps of a loop whose optimizer PyTorch does not see writing, as with some libraries' ones."""
        model.checkpoints, found = True, []

        def step_fn(model, values):
            losses = model(values).float().square().sum((1, 2))
            found.append(float(losses.detach().sum()))
            return losses.sum(), len(values), {}

        loop = make_loop(model, step_fn, mixed_precision="bf16")

        def write(step):
            for param in loop.trainable.values():
                param.data.copy_(param.data - 1e-3 * param.grad)

        loop.optimizer.step = write
        for _ in range(4):
            loop.train_step(Step([given(torch.bfloat16)] * 2))
        return found

    model = Model().base_to(torch.bfloat16)
    found, expected = losses_of(fused(model)), losses_of(model)
    assert found[0] == found[1]  # micro-batches of one step
    assert found == pytest.approx(expected, rel=0.01)
    assert found[2] < 0.9 * found[0]


def test_a_step_uses_weights_written_after_a_pass_without_a_backward_pass():
    plain, found = Model().base_to(torch.bfloat16), []
    model = fused(plain)

    def step_fn(model, values):
        losses = model(values).float().square().sum((1, 2))
        found.append(float(losses.detach().sum()))
        return losses.sum(), len(values), {}

    loop = make_loop(model, step_fn, mixed_precision="bf16")
    calls(model, given(torch.bfloat16), autocast=True)  # as one that ran out of memory
    for param in loop.trainable.values():
        param.data.zero_()  # PyTorch does not see it
    loop.train_step(Step([given(torch.bfloat16)]))
    _no_adapter(plain)
    with torch.autocast("cpu", torch.bfloat16):
        assert found == [float(plain(given(torch.bfloat16)).float().square().sum())]


def test_a_checkpointed_step_asks_for_a_third_fewer_operations_than_with_peft():
    model = Model().base_to(torch.bfloat16)
    counts = []
    for each in (fused(model), model):
        each.checkpoints = True
        with OperationCounter() as counter:
            results(each, given(torch.bfloat16), autocast=True)
        counts.append(counter.count)
        forget_casts()
    assert counts[0] < 0.67 * counts[1]
