from __future__ import annotations

import json
import math
import sys

import pytest
import torch
from torch import nn
from transformers.optimization import Adafactor

from modules.config.library_optimizers import LIBRARY_OPTIMIZERS
from modules.config.OptimizerConfig import OptimizerConfig
from modules.config.optimizers import OPTIMIZERS
from modules.trainer.Ema import swap_weights
from modules.trainer.optimizers import (
    ParamGroup,
    averaged_weights,
    check_same_optimizer,
    create_optimizer,
    load_optimizer_state,
    optimizer_state,
)
from modules.trainer.packages import check_optimizer_packages
from modules.trainer.TrainingError import TrainingError

RATES = {
    "adamw": 0.05,
    "adamw_8bit": 0.05,
    "schedule_free": 0.1,
    "lion": 0.01,
    "lion_8bit": 0.01,
    "adafactor": 0.05,
    "came": 0.05,
    "ademamix": 0.01,
    "prodigy": 1.0,
    "sgd": 0.1,
}
CONFIGS = {
    name: OptimizerConfig(
        name=name, learning_rate=rate, weight_decay=0.0, beta2=0.99 if name.startswith("lion") else 0.999
    )
    for name, rate in RATES.items()
}


@pytest.fixture
def name(request) -> str:
    """The settings of an optimizer whose package is installed."""
    if request.param.endswith("_8bit"):
        pytest.importorskip("bitsandbytes", reason="an optional package")
    return request.param


def least_squares() -> tuple[nn.Linear, torch.Tensor, torch.Tensor]:
    """Large enough for the 8-bit optimizers, which keep the state of small parameters in 32 bits."""
    torch.manual_seed(0)
    inputs, true_weight = torch.randn(128, 64), torch.randn(64, 64)
    torch.manual_seed(1)
    return nn.Linear(64, 64), inputs, inputs @ true_weight


def descend(model, optimizer, inputs, targets, steps: int) -> float:
    for _ in range(steps):
        loss = (model(inputs) - targets).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    return loss.item()


def loss_to_use(model, optimizer, inputs, targets) -> float:
    with swap_weights(averaged_weights(optimizer) or {}), torch.no_grad():
        return (model(inputs) - targets).square().mean().item()


@pytest.mark.parametrize("name", CONFIGS, indirect=True)
def test_every_optimizer_solves_a_least_squares_problem(name):
    model, inputs, targets = least_squares()
    optimizer = create_optimizer(CONFIGS[name], [ParamGroup("all", list(model.parameters()))])
    before = loss_to_use(model, optimizer, inputs, targets)
    descend(model, optimizer, inputs, targets, 300)
    assert loss_to_use(model, optimizer, inputs, targets) < 0.05 * before


@pytest.mark.parametrize("name", CONFIGS, indirect=True)
def test_the_memory_of_an_optimizer_is_what_the_table_says(name):
    model, inputs, targets = least_squares()
    optimizer = create_optimizer(CONFIGS[name], [ParamGroup("all", [model.weight])])
    descend(model, optimizer, inputs, targets, 1)
    kept = sum(value.nbytes for value in optimizer.state[model.weight].values() if isinstance(value, torch.Tensor))
    facts = OPTIMIZERS[name]
    said = model.weight.numel() * (facts.states * 4 + facts.state_bytes)
    assert kept == pytest.approx(said, abs=0.3 * model.weight.nbytes)  # quantization scales, and row and column factors


@pytest.mark.parametrize("name", CONFIGS, indirect=True)
def test_the_settings_reach_the_optimizer(name):
    parameters = [nn.Parameter(torch.zeros(2))]
    config = OptimizerConfig(
        name=name, learning_rate=0.5, beta1=0.8, beta2=0.95, eps=1e-6, weight_decay=0.2,
        adafactor_beta2_decay=-0.7, adafactor_clip_threshold=2.0, prodigy_d_coef=0.5, came_beta3=0.97,
        came_clip_threshold=3.0, ademamix_beta3=0.99, ademamix_alpha=7.0, ademamix_warmup=40,
        schedule_free_power=1.5, sgd_momentum=0.7, sgd_nesterov=True,
    )  # fmt: skip
    optimizer = create_optimizer(config, [ParamGroup("all", parameters)])
    group = optimizer.param_groups[0]
    expected = {
        "adamw": {"betas": (0.8, 0.95), "eps": 1e-6},
        "adamw_8bit": {"betas": (0.8, 0.95), "eps": 1e-6},
        "schedule_free": {"betas": (0.8, 0.95), "eps": 1e-6, "r": 1.5, "train_mode": True},
        "lion": {"betas": (0.8, 0.95)},
        "lion_8bit": {"betas": (0.8, 0.95)},
        "adafactor": {"beta2_decay": -0.7, "d": 2.0},
        "came": {"betas": (0.8, 0.95, 0.97)},
        "ademamix": {"betas": (0.8, 0.95, 0.99), "eps": 1e-6, "alpha": 7.0, "t_alpha_beta3": 40},
        "prodigy": {"betas": (0.8, 0.95), "eps": 1e-6, "d_coef": 0.5},
        "sgd": {"momentum": 0.7, "nesterov": True},
    }[name]
    assert {key: group[key] for key in expected} == expected
    assert group["weight_decay"] == 0.2
    if name == "came":
        assert optimizer.clip_threshold == 3.0


@pytest.mark.parametrize("warmup", [0, 4])
def test_ademamix_takes_the_steps_of_its_paper(warmup):
    """Pagliardini et al. 2024, arXiv 2409.03137, algorithm 1 and equations of appendix A.1, written out."""
    rate, decay, eps, alpha, betas, steps = 0.01, 0.1, 1e-8, 5.0, (0.9, 0.99, 0.999), 6
    start, gradients = torch.randn(8, dtype=torch.float64), torch.randn(steps, 8, dtype=torch.float64)
    param = nn.Parameter(start.clone())
    config = OptimizerConfig(
        name="ademamix", learning_rate=rate, weight_decay=decay, eps=eps, beta2=betas[1], ademamix_beta3=betas[2],
        ademamix_warmup=warmup,
    )  # fmt: skip
    optimizer = create_optimizer(config, [ParamGroup("all", [param])])
    expected, fast, slow, squares = start.clone(), 0.0, 0.0, 0.0
    for step, gradient in enumerate(gradients, start=1):
        param.grad = gradient.clone()
        optimizer.step()
        share = min(1.0, step / warmup) if warmup else 1.0
        first, last = math.log(betas[0]), math.log(betas[2])
        beta3 = math.exp(first * last / ((1 - share) * last + share * first))
        fast = betas[0] * fast + (1 - betas[0]) * gradient
        slow = beta3 * slow + (1 - beta3) * gradient
        squares = betas[1] * squares + (1 - betas[1]) * gradient**2
        root = (squares / (1 - betas[1] ** step)).sqrt() + eps
        expected -= rate * ((fast / (1 - betas[0] ** step) + share * alpha * slow) / root + decay * expected)
        torch.testing.assert_close(param.detach(), expected, rtol=1e-9, atol=0)


@pytest.mark.parametrize("warmup", [False, True])
def test_adafactor_relative_to_the_weights_takes_the_relative_steps_of_transformers(warmup):
    models = [least_squares()[0].double() for _ in range(2)]
    _, inputs, targets = least_squares()
    config = OptimizerConfig(name="adafactor", learning_rate=0.01, weight_decay=0.0, adafactor_scale_parameter=True)
    ours = create_optimizer(config, [ParamGroup("all", list(models[0].parameters()))])
    theirs = Adafactor(models[1].parameters(), relative_step=True, scale_parameter=True, warmup_init=warmup)
    for step in range(5):
        for group in ours.param_groups:
            group["lr"] = group["initial_lr"] * ((step + 1) / 10_000 if warmup else 1)
        for model, optimizer in zip(models, (ours, theirs), strict=True):
            (model(inputs.double()) - targets).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
    starts = [param.double() for param in least_squares()[0].parameters()]
    for own, other, start in zip(*(model.parameters() for model in models), starts, strict=True):
        torch.testing.assert_close(own - start, other - start, rtol=1e-6, atol=0)
        assert not torch.equal(own, start)


@pytest.mark.parametrize("scale", [0.0, 0.03])
def test_a_rate_is_the_same_size_of_step_to_adafactor_as_to_adamw(scale):
    def moved(name):
        torch.manual_seed(0)
        param = nn.Parameter(scale * torch.randn(64, 64))
        optimizer = create_optimizer(
            OptimizerConfig(name=name, learning_rate=1e-3, weight_decay=0.0), [ParamGroup("all", [param])]
        )
        before = param.detach().clone()
        for _ in range(10):
            param.grad = torch.randn(64, 64) + 1
            optimizer.step()
        return (param.detach() - before).norm().item()

    assert 0.5 < moved("adafactor") / moved("adamw") < 2


@pytest.mark.parametrize(
    ("name", "module", "package"),
    [
        ("adamw_8bit", "bitsandbytes", "bitsandbytes"),
        ("lion_8bit", "bitsandbytes", "bitsandbytes"),
        ("schedule_free", "schedulefree", "schedulefree"),
        ("lion", "pytorch_optimizer", "pytorch-optimizer"),
        ("came", "pytorch_optimizer", "pytorch-optimizer"),
        ("ademamix", "pytorch_optimizer", "pytorch-optimizer"),
        ("prodigy", "prodigyopt", "prodigyopt"),
        ("other", "pytorch_optimizer", "pytorch-optimizer"),
    ],
)
def test_a_missing_package_is_named_in_a_sentence(name, module, package, monkeypatch):
    monkeypatch.setitem(sys.modules, module, None)  # as if it were not installed
    with pytest.raises(TrainingError, match=f"optimizer.name '{name}' needs the package {package}"):
        create_optimizer(OptimizerConfig(name=name), [ParamGroup("all", [nn.Parameter(torch.zeros(2))])])


def test_groups_keep_their_own_rates_and_decays_and_all_take_the_factor():
    first, second = nn.Parameter(torch.zeros(2)), nn.Parameter(torch.zeros(2))
    groups = [ParamGroup("first", [first], 0.5, weight_decay=0.0), ParamGroup("second", [second])]
    config = OptimizerConfig(learning_rate=0.1, weight_decay=0.3)
    optimizer = create_optimizer(config, groups, learning_rate_factor=2.0)
    assert [(g["name"], g["lr"], g["initial_lr"], g["weight_decay"]) for g in optimizer.param_groups] == [
        ("first", 1.0, 1.0, 0.0),
        ("second", 0.2, 0.2, 0.3),
    ]


@pytest.mark.parametrize("name", [name for name in CONFIGS if name != "prodigy"], indirect=True)
def test_a_group_without_a_rate_stays(name):
    first, second = (nn.Parameter(torch.ones(64, 64)) for _ in range(2))
    optimizer = create_optimizer(CONFIGS[name], [ParamGroup("first", [first]), ParamGroup("second", [second])])
    optimizer.param_groups[1]["lr"] = 0.0
    for _ in range(3):
        (first.square().sum() + second.square().sum()).backward()
        optimizer.step()
        optimizer.zero_grad()
    assert torch.equal(second, torch.ones(64, 64))
    assert not torch.equal(first, second)


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("name", CONFIGS, indirect=True)
def test_an_optimizer_goes_on_from_its_state_bit_for_bit(name, layout):
    if name.endswith("_8bit") and layout is torch.channels_last and not torch.cuda.is_available():
        pytest.skip("bitsandbytes 0.50.2 makes a channels-last weight contiguous on the CPU, but not its state")

    def make():
        torch.manual_seed(3)
        model = nn.Conv2d(16, 32, 3).to(memory_format=layout)
        names = {param: key for key, param in model.named_parameters()}
        return model, names, create_optimizer(CONFIGS[name], [ParamGroup("all", list(model.parameters()))])

    inputs, targets = torch.randn(2, 16, 6, 6), torch.randn(2, 32, 4, 4)
    straight, _, optimizer = make()
    descend(straight, optimizer, inputs, targets, 6)

    first, names, optimizer = make()
    descend(first, optimizer, inputs, targets, 3)
    tensors, numbers = optimizer_state(optimizer, names)
    # as in a backup: contiguous, and plain JSON
    tensors = {key: value.clone(memory_format=torch.contiguous_format) for key, value in tensors.items()}
    numbers = json.loads(json.dumps(numbers, allow_nan=False))

    second, names, optimizer = make()
    second.load_state_dict(first.state_dict())
    check_same_optimizer(optimizer, numbers)
    load_optimizer_state(optimizer, names, tensors, numbers)
    descend(second, optimizer, inputs, targets, 3)
    assert torch.equal(second.weight, straight.weight)
    assert torch.equal(second.bias, straight.bias)


@pytest.mark.parametrize("name", LIBRARY_OPTIMIZERS)
def test_every_optimizer_of_the_package_trains_and_goes_on_from_its_state_bit_for_bit(name):
    rates = {True: (1.0, None), False: (1e-3, 2e-3)}[LIBRARY_OPTIMIZERS[name].finds_own_step]
    config = OptimizerConfig(name="other", other_name=name, learning_rate=rates[0])
    inputs, targets = torch.randn(6, 8, 6, 6), torch.randn(6, 4)

    def make(of=None):
        torch.manual_seed(3)
        model = nn.Sequential(
            nn.Conv2d(8, 16, 3), nn.Flatten(), nn.Linear(256, 32), nn.LayerNorm(32), nn.Linear(32, 4, bias=False)
        )
        model.load_state_dict(of.state_dict() if of else model.state_dict())
        params = list(model.parameters())
        groups = [ParamGroup("first", params[:3]), ParamGroup("second", params[3:], rates[1])]
        return model, {param: key for key, param in model.named_parameters()}, create_optimizer(config, groups)

    straight, names, optimizer = make()
    before = torch.get_rng_state()
    descend(straight, optimizer, inputs, targets, 3)
    assert torch.equal(torch.get_rng_state(), before)  # ranks would draw different numbers, and resumed runs too
    tensors, numbers = optimizer_state(optimizer, names)
    num_values = sum(value.nbytes for value in tensors.values()) / 4 / sum(map(torch.Tensor.numel, names))
    assert num_values == pytest.approx(LIBRARY_OPTIMIZERS[name].states, abs=0.75)
    tensors = {key: value.clone() for key, value in tensors.items()}
    numbers = json.loads(json.dumps(numbers, allow_nan=False))
    second, names, resumed = make(straight)
    descend(straight, optimizer, inputs, targets, 3)
    check_same_optimizer(resumed, numbers)
    load_optimizer_state(resumed, names, tensors, numbers)
    descend(second, resumed, inputs, targets, 3)
    for key, value in straight.state_dict().items():
        assert torch.equal(value, second.state_dict()[key])
        assert value.isfinite().all()
    assert not torch.equal(straight[0].weight, make()[0][0].weight)


def test_muon_is_told_which_weights_are_matrices():
    model = nn.Sequential(nn.Conv2d(2, 2, 3), nn.LayerNorm(2), nn.Linear(2, 2))
    config = OptimizerConfig(
        name="other", other_name="Muon", learning_rate=0.02, weight_decay=0.3,
        other_arguments="momentum=0.8, adamw_lr=1e-3, adamw_betas=(0.8, 0.9)",
    )  # fmt: skip
    optimizer = create_optimizer(config, [ParamGroup("unet", list(model.parameters()))], learning_rate_factor=2.0)
    others, matrices = optimizer.param_groups
    assert {param.dim() for param in others["params"]} == {1}
    assert {param.dim() for param in matrices["params"]} == {2, 4}
    assert (others["name"], others["use_muon"], others["betas"]) == ("unet", False, (0.8, 0.9))
    assert (others["lr"], others["initial_lr"], others["weight_decay"]) == pytest.approx((2e-3, 2e-3, 0.3))
    assert (matrices["lr"], matrices["initial_lr"], matrices["momentum"]) == (0.04, 0.04, 0.8)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [("momentun=0.9", "Muon has no argument 'momentun'; it has momentum"), ("momentum=2.0", r"Muon says '.*momentum")],
)
def test_arguments_that_an_optimizer_does_not_take_are_refused(arguments, said):
    with pytest.raises(TrainingError, match=said):
        check_optimizer_packages(OptimizerConfig(name="other", other_name="Muon", other_arguments=arguments))


def test_the_state_of_another_optimizer_is_refused():
    parameter = nn.Parameter(torch.zeros(2))
    adamw, adafactor = (create_optimizer(CONFIGS[n], [ParamGroup("all", [parameter])]) for n in ("adamw", "adafactor"))
    _, numbers = optimizer_state(adafactor, {parameter: "p"})
    with pytest.raises(TrainingError, match=r"Adafactor, but optimizer\.name selects AdamW"):
        check_same_optimizer(adamw, numbers)


def test_the_state_of_other_groups_is_refused():
    params = [nn.Parameter(torch.zeros(2)) for _ in range(2)]
    one = create_optimizer(CONFIGS["adamw"], [ParamGroup("all", params)])
    two = create_optimizer(CONFIGS["adamw"], [ParamGroup("a", params[:1]), ParamGroup("b", params[1:])])
    _, numbers = optimizer_state(two, dict.fromkeys(params, "p"))
    with pytest.raises(TrainingError, match="2 parameter groups, this one has 1"):
        check_same_optimizer(one, numbers)


def test_the_schedule_free_average_is_the_one_of_the_package():
    model, inputs, targets = least_squares()
    optimizer = create_optimizer(CONFIGS["schedule_free"], [ParamGroup("all", list(model.parameters()))])
    assert averaged_weights(optimizer) == {}  # before the first step there is no average
    descend(model, optimizer, inputs, targets, 20)
    trained = model.weight.detach().clone()
    average = averaged_weights(optimizer)[model.weight]
    with swap_weights(averaged_weights(optimizer)):
        assert torch.equal(model.weight, average)
    assert torch.equal(model.weight, trained)
    optimizer.eval()
    assert torch.equal(model.weight, average)
    assert not torch.equal(average, trained)


def test_optimizers_without_an_average_of_their_own_have_none():
    group = ParamGroup("all", [nn.Parameter(torch.zeros(1))])
    assert averaged_weights(create_optimizer(CONFIGS["adamw"], [group])) is None


def test_the_8_bit_optimizers_keep_their_moments_in_8_bits():
    pytest.importorskip("bitsandbytes", reason="an optional package")
    model, inputs, targets = least_squares()
    optimizer = create_optimizer(CONFIGS["adamw_8bit"], [ParamGroup("all", list(model.parameters()))])
    descend(model, optimizer, inputs, targets, 1)
    state = optimizer.state[model.weight]
    assert (state["state1"].dtype, state["state2"].dtype) == (torch.uint8, torch.uint8)


@pytest.mark.parametrize(
    ("kind", "options", "on_host"),
    [
        (torch.optim.Adam, {}, {"step"}),
        (torch.optim.Adam, {"capturable": True}, set()),
        (torch.optim.NAdam, {}, {"step"}),  # mu_product
        (torch.optim.ASGD, {}, {"step"}),  # eta and mu
        (torch.optim.ASGD, {"capturable": True}, set()),
    ],
)
@pytest.mark.parametrize("shape", [(2,), ()])
def test_after_resuming_only_a_step_that_is_counted_on_the_host_is_there(kind, options, on_host, shape):
    first = nn.Parameter(torch.ones(shape))
    optimizer = kind([first])
    first.grad = torch.ones(shape)
    optimizer.step()
    tensors, numbers = optimizer_state(optimizer, {first: "weight"})
    there = nn.Parameter(torch.empty(shape, device="meta"))  # for a device on which no values are read
    resumed = kind([there], **options)
    load_optimizer_state(resumed, {there: "weight"}, tensors, numbers)
    state = resumed.state[there]
    assert {key for key, value in state.items() if value.device.type == "cpu"} == on_host
    assert state.keys() == optimizer.state[first].keys()
