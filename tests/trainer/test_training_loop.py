from __future__ import annotations

import json
import math
from dataclasses import replace
from itertools import count
from types import SimpleNamespace

import pytest
import torch
from torch import nn
from torch.nn.functional import mse_loss

from modules.config.EmaConfig import EmaConfig
from modules.config.OptimizerConfig import OptimizerConfig
from modules.config.ScheduleConfig import ScheduleConfig
from modules.distributed.Runtime import Runtime
from modules.trainer.Action import Action
from modules.trainer.Ema import Ema
from modules.trainer.MemoryReading import MemoryReading
from modules.trainer.optimizers import ParamGroup
from modules.trainer.Step import Step
from modules.trainer.TrainingError import TrainingError
from modules.trainer.Trigger import Trigger
from tests.support.make_loop import make_loop
from tests.support.OperationCounter import OperationCounter
from tests.support.Recorder import Recorder
from tests.support.SyncCounter import SyncCounter

CPU = torch.device("cpu")
ADAMW = OptimizerConfig(name="adamw", learning_rate=1e-2, weight_decay=0.1, max_grad_norm=0.5)
OPTIMIZERS = {
    "adamw": ADAMW,
    "adafactor": OptimizerConfig(name="adafactor", learning_rate=1e-2),
    "prodigy": OptimizerConfig(name="prodigy", learning_rate=1.0),
    "schedule_free": OptimizerConfig(name="schedule_free", learning_rate=1e-2),
    "lion": OptimizerConfig(name="lion", learning_rate=1e-3),
    "came": OptimizerConfig(name="came", learning_rate=1e-3),
    "ademamix": OptimizerConfig(name="ademamix", learning_rate=1e-3, ademamix_warmup=10),
    "sgd": OptimizerConfig(name="sgd", learning_rate=1e-2),
}


class ConvNet(nn.Module):
    """A convolution, so that memory formats matter, a norm with buffers and a linear layer."""

    def __init__(self, dropout: float = 0.0):
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3)
        self.norm = nn.BatchNorm2d(4)
        self.dropout = nn.Dropout(dropout)
        self.linear = nn.Linear(4, 2)

    def forward(self, images):
        features = torch.tanh(self.norm(self.conv(images))).mean((2, 3))
        return self.linear(self.dropout(features))


def small_net(dtype=torch.float32) -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3)).to(dtype)


def conv_net(dropout: float = 0.0) -> nn.Module:
    torch.manual_seed(1)
    return ConvNet(dropout).to(memory_format=torch.channels_last)


def batches(count: int, size: int = 8, inputs: tuple[int, ...] = (4,), outputs: int = 3, dtype=torch.float32) -> list:
    generator = torch.Generator().manual_seed(2)
    return [
        (
            torch.randn(size, *inputs, generator=generator, dtype=dtype),
            torch.randn(size, outputs, generator=generator, dtype=dtype),
        )
        for _ in range(count)
    ]


def squared_error(model, batch):
    inputs, targets = batch
    losses = (model(inputs) - targets).square().mean(1)
    return losses.sum(), len(inputs), {"largest": losses.max() * len(inputs)}


def loop_over(model, step_fn=squared_error, total_steps=100, **options):
    return make_loop(model, step_fn, total_steps, **{"optimizer": ADAMW, **options})


def conv_steps(count: int) -> list[Step]:
    return [Step([batch]) for batch in batches(count, inputs=(3, 6, 6), outputs=2)]


def copied(state):
    tensors, data = state
    copy = {file: {name: tensor.clone() for name, tensor in group.items()} for file, group in tensors.items()}
    return copy, json.loads(json.dumps(data))


def assert_same_state(first, second):
    assert first[1] == second[1]
    assert first[0].keys() == second[0].keys()
    for file, tensors in first[0].items():
        assert tensors.keys() == second[0][file].keys()
        for name, tensor in tensors.items():
            assert torch.equal(tensor, second[0][file][name]), f"{file}/{name}"


# --- the arithmetic of a step -----------------------------------------------------------------------------------------


def test_a_run_equals_a_handwritten_loop():
    data = batches(30, dtype=torch.float64)
    loop = loop_over(
        small_net(torch.float64), total_steps=30, schedule=ScheduleConfig(name="linear", warmup=5, final_share=0.1)
    )
    loop.fit(Step([batch]) for batch in data)

    model = small_net(torch.float64)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.1)
    for step, (inputs, targets) in enumerate(data):
        share = (step + 1) / 5 if step < 5 else 1 - 0.9 * (step - 5) / 25
        optimizer.param_groups[0]["lr"] = 1e-2 * share
        mse_loss(model(inputs), targets).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()
        optimizer.zero_grad()

    for own, expected in zip(loop.model.parameters(), model.parameters(), strict=True):
        torch.testing.assert_close(own, expected, rtol=1e-12, atol=1e-12)


def test_the_fused_float32_step_equals_the_loop_to_rounding():
    data = batches(20)
    loop = loop_over(small_net(), total_steps=20)
    loop.fit(Step([batch]) for batch in data)

    model = small_net()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, weight_decay=0.1, foreach=False)
    for inputs, targets in data:
        mse_loss(model(inputs), targets).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()
        optimizer.zero_grad()

    assert loop._divides_gradients(loop.optimizer)  # otherwise this would not test the fused path
    for own, expected in zip(loop.model.parameters(), model.parameters(), strict=True):
        torch.testing.assert_close(own, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("sizes", [(8,), (4, 4), (2, 6)], ids=str)
@pytest.mark.parametrize("name", ["adamw", "adafactor"])
def test_a_step_does_not_depend_on_its_micro_batches(sizes, name):
    optimizer = OPTIMIZERS[name]
    data = batches(5, dtype=torch.float64)
    whole = loop_over(small_net(torch.float64), optimizer=optimizer)
    whole.fit(Step([batch]) for batch in data)
    cut = loop_over(small_net(torch.float64), optimizer=optimizer)
    cut.fit(Step(list(zip(*(part.split(sizes) for part in batch), strict=True))) for batch in data)
    for own, expected in zip(cut.model.parameters(), whole.model.parameters(), strict=True):
        torch.testing.assert_close(own, expected, rtol=1e-12, atol=1e-12)


def test_padding_does_not_change_the_step():
    def with_weight(model, batch):
        *data, weight = batch
        loss_sum, count, metrics = squared_error(model, data)
        return loss_sum * weight, count * weight, {name: value * weight for name, value in metrics.items()}

    first, second = batches(2, dtype=torch.float64)
    alone = loop_over(small_net(torch.float64), with_weight)
    alone.train_step(Step([(*first, 1)]))
    padded = loop_over(small_net(torch.float64), with_weight)
    padded.train_step(Step([(*first, 1), (*second, 0)]))
    for own, expected in zip(padded.model.parameters(), alone.model.parameters(), strict=True):
        assert torch.equal(own, expected)


def test_clipping_can_be_disabled():
    optimizer = OptimizerConfig(learning_rate=1e-2, weight_decay=0.0, max_grad_norm=0.0)
    loop = loop_over(small_net(torch.float64), optimizer=optimizer)
    (inputs, targets) = batches(1, dtype=torch.float64)[0]
    loop.train_step(Step([(inputs * 50, targets * 50)]))
    model = small_net(torch.float64)
    mse_loss(model(inputs * 50), targets * 50).backward()
    expected = model[0].weight.grad * 0.1  # the first moment after one step, with beta1 0.9
    moment = loop.optimizer.torch.state[loop.model[0].weight]["exp_avg"]
    torch.testing.assert_close(moment, expected, rtol=1e-12, atol=0)


def test_frozen_parameters_do_not_change():
    model = small_net()
    model[0].requires_grad_(False)
    before = model[0].weight.clone()
    loop = loop_over(model)
    loop.fit(Step([batch]) for batch in batches(3))
    assert torch.equal(model[0].weight, before)
    assert "0.weight" not in loop.state()[0]["model"]


def test_a_model_without_trainable_parameters_is_refused():
    with pytest.raises(TrainingError, match="no trainable parameter"):
        loop_over(small_net().requires_grad_(False))


def test_groups_have_their_own_learning_rates_and_share_the_schedule():
    model = small_net()
    groups = [
        ParamGroup("first", list(model[0].parameters()), 1e-3),
        ParamGroup("second", list(model[2].parameters())),
    ]
    recorder = Recorder()
    loop = loop_over(
        model, groups=groups, callbacks=recorder, total_steps=4,
        schedule=ScheduleConfig(name="linear"), learning_rate_factor=2.0,
    )  # fmt: skip
    loop.fit(Step([batch]) for batch in batches(4))
    assert [info.lr for info in recorder.steps] == pytest.approx([2e-3, 1.5e-3, 1e-3, 0.5e-3])
    assert [info.metrics["lr/second"] for info in recorder.steps] == pytest.approx([2e-2, 1.5e-2, 1e-2, 0.5e-2])


# --- precision --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_mixed_precision_uses_low_precision_and_trains_well(precision):
    seen = set()

    def step_fn(model, batch):
        seen.add(model(batch[0]).dtype)
        return squared_error(model, batch)

    recorder = Recorder()
    loop = loop_over(small_net(), step_fn, mixed_precision=precision, callbacks=recorder)
    loop.fit(Step([batches(1)[0]]) for _ in range(40))
    assert seen == {torch.bfloat16 if precision == "bf16" else torch.float16}
    assert all(param.dtype == torch.float32 for param in loop.model.parameters())
    finite = [loss for loss in recorder.losses if loss is not None]
    assert len(finite) >= 35
    assert finite[-1] < 0.7 * finite[0]


@pytest.mark.parametrize("optimizer", ["adamw", "adafactor"])
def test_the_gradient_is_unscaled(optimizer):
    norms = []
    for precision in ("no", "fp16"):
        recorder = Recorder()
        loop = loop_over(small_net(), mixed_precision=precision, callbacks=recorder, optimizer=OPTIMIZERS[optimizer])
        if precision == "fp16":
            loop.loss_scaler.load_state_dict({"value": 1024.0, "good_steps": 0.0})
        loop.fit(Step([batch]) for batch in batches(3))
        norms.append([info.grad_norm for info in recorder.steps])
    assert norms[1] == pytest.approx(norms[0], rel=1e-2)


def overflowing(model, batch):
    """Its gradient overflows fp16 at the initial loss scale, but not at a smaller one."""
    inputs, targets = batch
    losses = (model(inputs) - targets).square().mean(1)
    return losses.sum() * 8.0, len(inputs), {}


def test_fp16_overflow_skips_the_step_and_halves_the_scale():
    recorder = Recorder()
    loop = loop_over(small_net(), overflowing, mixed_precision="fp16", callbacks=recorder)
    scale = loop.loss_scaler.value.item()
    before = copied(loop.state())
    loop.train_step(Step([batches(1)[0]]))
    assert loop.loss_scaler.value.item() == scale / 2
    assert all(torch.equal(value, loop.state()[0]["model"][name]) for name, value in before[0]["model"].items())
    loop.fit(Step([batch]) for batch in batches(15))
    losses = recorder.losses
    assert losses[0] is None
    assert losses[-1] is not None
    assert recorder.warnings == []  # adapting the scale is not an error


def test_the_loss_scale_grows_after_enough_good_steps():
    loop = loop_over(small_net(), mixed_precision="fp16")
    loop.loss_scaler.load_state_dict({"value": 16.0, "good_steps": 1999.0})
    loop.train_step(Step([batches(1)[0]]))
    assert loop.loss_scaler.state_dict() == {"value": 32.0, "good_steps": 0.0}


# --- what is not finite -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("optimizer", OPTIMIZERS.values(), ids=OPTIMIZERS)
@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_loss_that_is_not_finite_changes_nothing(optimizer, bad):
    recorder = Recorder()
    loop = loop_over(small_net(), optimizer=optimizer, callbacks=recorder)
    good = batches(3)
    loop.fit(Step([batch]) for batch in good)
    before = copied(loop.state())
    poisoned = (good[0][0].clone(), good[0][1])
    poisoned[0][0, 0] = bad
    loop.fit([Step([good[1], poisoned])])
    after = copied(loop.state())
    assert recorder.losses[-1] is None
    assert any("Step 4 was skipped" in text for text in recorder.warnings)
    for file in ("model", "optimizer"):
        for name, value in before[0][file].items():
            assert torch.equal(value, after[0][file][name]), f"{file}/{name}"
    assert before[1]["optimizer"]["state"] == after[1]["optimizer"]["state"]
    loop.fit([Step([good[2]])])
    assert recorder.losses[-1] is not None


@pytest.mark.parametrize("optimizer", OPTIMIZERS.values(), ids=OPTIMIZERS)
def test_a_skipped_first_step_does_not_affect_later_ones(optimizer):
    data = batches(3)
    poisoned = (data[0][0] * math.nan, data[0][1])
    late = loop_over(small_net(), optimizer=optimizer)
    late.fit([Step([poisoned]), Step([data[1]]), Step([data[2]])])
    plain = loop_over(small_net(), optimizer=optimizer)
    plain.fit([Step([data[1]]), Step([data[2]])])
    for own, expected in zip(late.model.parameters(), plain.model.parameters(), strict=True):
        assert torch.equal(own, expected)


def test_a_gradient_that_is_not_finite_skips_the_step_too():
    def infinite_slope(model, batch):
        loss_sum, count, metrics = squared_error(model, batch)
        zero = (model[2].bias[0] - model[2].bias[0].detach()).abs()
        return loss_sum + zero.sqrt(), count, metrics

    recorder = Recorder()
    loop = loop_over(small_net(), infinite_slope, callbacks=recorder)
    before = copied(loop.state())
    loop.fit([Step([batches(1)[0]])])
    assert loop.model[2].bias.isfinite().all()
    assert all(torch.equal(value, loop.state()[0]["model"][name]) for name, value in before[0]["model"].items())
    assert recorder.steps[0].grad_norm is None
    assert len(recorder.warnings) == 1


def test_twenty_five_bad_steps_in_a_row_end_the_training():
    inputs, targets = batches(1)[0]
    loop = loop_over(small_net())
    with pytest.raises(TrainingError, match="25 steps in a row"):
        loop.fit(Step([(inputs * math.nan, targets)]) for _ in range(40))
    assert loop.step <= 26


def test_twenty_four_bad_steps_and_a_good_one_do_not():
    inputs, targets = batches(1)[0]
    loop = loop_over(small_net())
    for _ in range(2):
        loop.fit(Step([(inputs * math.nan, targets)]) for _ in range(24))
        loop.fit([Step([(inputs, targets)])])
    assert loop.step == 50


# --- dropout inside the model -----------------------------------------------------------------------------------------


def drawn_numbers(seed: int) -> list[float]:
    """The numbers from torch's generator in each micro-batch of three steps."""
    drawn = []

    def step_fn(model, batch):
        drawn.append(torch.rand(()).item())
        return squared_error(model, batch)

    loop = loop_over(small_net(), step_fn, seed=seed)
    loop.fit(Step([batch, batch]) for batch in batches(3))
    return drawn


def test_dropout_differs_in_every_micro_batch_and_is_reproducible():
    first = drawn_numbers(seed=1)
    assert len(set(first)) == 6
    torch.manual_seed(123)
    assert drawn_numbers(seed=1) == first
    assert not set(drawn_numbers(seed=2)) & set(first)


# --- figures ----------------------------------------------------------------------------------------------------------


def test_loss_and_metrics_are_means_over_the_samples_of_the_step():
    def counted(model, batch):
        values = batch
        zero = sum(param.sum() for param in model.parameters()) * 0
        return values.sum() + zero, len(values), {"double": 2 * values.sum(), "one": torch.tensor(float(len(values)))}

    recorder = Recorder()
    loop = loop_over(small_net(), counted, callbacks=recorder)
    loop.fit([Step([torch.tensor([1.0, 2.0]), torch.tensor([6.0])])])
    info = recorder.steps[0]
    assert (info.loss, info.samples) == (3.0, 3)
    assert info.metrics["double"] == 6.0
    assert info.metrics["one"] == 1.0


def test_every_rank_clips_with_the_norm_of_rank_0():
    class OtherRank(Runtime):
        """A rank whose GPU computes half the norm of rank 0."""

        def sum(self, values, main_value):
            return values, main_value * 2

    changes, norms = [], []
    for runtime in (Runtime(CPU), OtherRank(CPU)):
        recorder = Recorder()
        sgd = OptimizerConfig(name="sgd", learning_rate=1.0, weight_decay=0.0, max_grad_norm=0.1)
        loop = make_loop(small_net(), squared_error, 1, optimizer=sgd, callbacks=recorder, runtime=runtime)
        loop.fit([Step(batches(1))])
        changes.append(loop.model[0].weight.detach() - small_net()[0].weight)
        norms.append(recorder.steps[0].grad_norm)
    assert norms[1] == pytest.approx(2 * norms[0])
    torch.testing.assert_close(changes[1], changes[0] / 2, rtol=1e-2, atol=1e-7)


def test_the_gradient_norm_is_that_of_the_mean_loss_before_clipping():
    recorder = Recorder()
    loop = loop_over(small_net(torch.float64), callbacks=recorder)
    batch = batches(1, dtype=torch.float64)[0]
    loop.fit([Step([batch])])
    model = small_net(torch.float64)
    mse_loss(model(batch[0]), batch[1]).backward()
    expected = torch.stack([param.grad.norm() for param in model.parameters()]).norm().item()
    assert recorder.steps[0].grad_norm == pytest.approx(expected, rel=1e-12)


def test_steps_are_reported_in_order_each_once_with_epochs_from_one():
    recorder = Recorder()
    loop = loop_over(small_net(), callbacks=recorder)
    data = batches(1)[0]
    loop.fit(Step([data], epoch=e, index=i, ends_epoch=i == 2) for e in range(2) for i in range(3))
    assert [(info.epoch, info.step) for info in recorder.steps] == [(1, 1), (1, 2), (1, 3), (2, 4), (2, 5), (2, 6)]
    assert (loop.epoch, loop.step_in_epoch) == (2, 0)


def test_the_counter_detects_syncs():
    with SyncCounter() as counter:
        torch.ones(()).item()
        bool(torch.ones(()) > 0)
    assert counter.count == 2


@pytest.mark.parametrize("precision", ["no", "bf16", "fp16"])
def test_a_step_makes_no_sync(precision):
    loop = loop_over(small_net(), mixed_precision=precision, ema=EmaConfig(enabled=True))
    data = batches(4)
    loop.train_step(Step([data[0]]))  # creates the optimizer's state
    with SyncCounter() as counter:
        for batch in data[1:]:
            loop.train_step(Step([batch, batch]))
    # the late report calls `tolist` once per step, on a copy that has long arrived
    assert counter.count == 0


def test_beside_its_passes_and_the_optimizer_a_step_makes_few_operations():
    """Each takes microseconds of the host and, on a GPU, a kernel."""
    loop, (batch,) = loop_over(small_net()), batches(1)
    loop.train_step(Step([batch]))
    loop.optimizer.step = lambda step: None
    with OperationCounter() as step:
        loop.train_step(Step([batch]))
    with OperationCounter() as passes:
        squared_error(loop.model, batch)[0].backward()
    assert step.count - passes.count <= 26


@pytest.mark.gpu
@pytest.mark.parametrize("precision", ["no", "bf16", "fp16"])
def test_a_step_never_waits_for_the_gpu(precision):
    runtime = Runtime(torch.device("cuda", 0))
    ema = EmaConfig(enabled=True)
    loop = loop_over(small_net(), runtime=runtime, mixed_precision=precision, ema=ema)
    data = [tuple(part.cuda() for part in batch) for batch in batches(4)]
    loop.train_step(Step([data[0]]))
    before = torch.cuda.get_sync_debug_mode()
    torch.cuda.set_sync_debug_mode("error")
    try:
        for batch in data[1:]:
            loop.train_step(Step([batch, batch]))
    finally:
        torch.cuda.set_sync_debug_mode(before)


# --- commands and actions ---------------------------------------------------------------------------------------------


def test_a_stop_takes_effect_at_the_next_step():
    recorder = Recorder()
    loop = loop_over(small_net(), callbacks=recorder)

    def steps():
        for number, batch in enumerate(batches(10)):
            if number == 3:
                loop.commands.stop()
            yield Step([batch])

    loop.fit(steps())
    assert loop.stopped
    assert loop.step in (4, 5)  # read one step late
    assert len(recorder.steps) == loop.step


def test_a_finished_run_was_not_stopped():
    loop = loop_over(small_net())
    loop.fit(Step([batch]) for batch in batches(3))
    assert not loop.stopped


def test_a_command_runs_its_action_once_between_steps():
    loop = loop_over(small_net())
    done = []
    for name in ("sample", "save", "backup"):
        loop.actions[name] = Action(Trigger(0, "never"), lambda name=name: done.append((name, loop.step)))

    def steps():
        for number, batch in enumerate(batches(12)):
            for asked, command in ((2, "sample"), (5, "backup"), (8, "save")):
                if number == asked:
                    getattr(loop.commands, command)()
            yield Step([batch])

    loop.fit(steps())
    assert [name for name, _ in done] == ["sample", "backup", "save"]
    assert all(asked < step <= asked + 2 for (_, step), asked in zip(done, (2, 5, 8), strict=True))


def test_a_command_in_the_last_step_is_still_served():
    loop = loop_over(small_net())
    done = []
    loop.actions["sample"] = Action(Trigger(0, "never"), lambda: done.append(loop.step))

    def steps():
        for number, batch in enumerate(batches(5)):
            if number == 4:
                loop.commands.sample()
            yield Step([batch])

    loop.fit(steps())
    assert done == [5]


def test_actions_requested_with_a_stop_run_before_it():
    loop = loop_over(small_net())
    done = []
    loop.actions["sample"] = Action(Trigger(0, "never"), lambda: done.append(loop.step))
    loop.commands.sample()
    loop.commands.stop()
    loop.fit(Step([batch]) for batch in batches(5))
    assert len(done) == 1
    assert loop.stopped


def test_actions_run_at_their_steps_after_the_previous_step_is_reported():
    recorder = Recorder()
    loop = loop_over(small_net(), callbacks=recorder)
    seen = []
    loop.actions["save"] = Action(Trigger(3, "steps"), lambda: seen.append((loop.step, len(recorder.steps))))
    loop.fit(Step([batch]) for batch in batches(7))
    assert seen == [(3, 3), (6, 6)]


def test_actions_run_at_the_end_of_epochs():
    loop = loop_over(small_net())
    seen = []
    loop.actions["save"] = Action(Trigger(2, "epochs"), lambda: seen.append(loop.step))
    data = batches(1)[0]
    loop.fit(Step([data], epoch=e, index=i, ends_epoch=i == 1) for e in range(5) for i in range(2))
    assert seen == [4, 8]


def test_actions_by_the_clock_run_once_each_time(monkeypatch):
    now = [0.0]
    monkeypatch.setattr("modules.trainer.Trigger.time.monotonic", lambda: now[0])
    loop = loop_over(small_net())
    seen = []
    loop.actions["backup"] = Action(Trigger(1, "minutes"), lambda: seen.append(loop.step))

    def steps():
        for batch in batches(12):
            now[0] += 10
            yield Step([batch])

    loop.fit(steps())
    assert len(seen) == 1  # 120 s, and each request is read one step late
    assert seen[0] in (6, 7, 8)


# --- average ----------------------------------------------------------------------------------------------------------


def test_the_average_follows_its_formula():
    loop = loop_over(small_net(torch.float64), ema=EmaConfig(enabled=True, decay=0.7))
    expected = loop.model[0].weight.detach().clone()
    for number, batch in enumerate(batches(25, dtype=torch.float64), start=1):
        loop.train_step(Step([batch]))
        decay = min(0.7, (1 + number) / (10 + number))
        expected = decay * expected + (1 - decay) * loop.model[0].weight.detach()
    torch.testing.assert_close(loop.ema.averages["0.weight"], expected, rtol=1e-12, atol=1e-14)


def test_the_averages_are_applied_only_inside_the_block():
    loop = loop_over(small_net(), ema=EmaConfig(enabled=True))
    loop.fit(Step([batch]) for batch in batches(5))
    weight, average = loop.model[0].weight.detach().clone(), loop.ema.averages["0.weight"].clone()
    assert not torch.equal(weight, average)
    with pytest.raises(RuntimeError, match="inside"):
        raise_inside_the_averages(loop, average)
    assert torch.equal(loop.model[0].weight, weight)
    assert torch.equal(loop.ema.averages["0.weight"], average)


def raise_inside_the_averages(loop, average):
    with loop.ema.applied():
        assert torch.equal(loop.model[0].weight, average)
        raise RuntimeError("inside")


@pytest.mark.parametrize("ema", [EmaConfig(), EmaConfig(enabled=True)], ids=["off", "on"])
def test_a_schedule_free_optimizer_always_gives_its_own_average(ema):
    loop = loop_over(small_net(), optimizer=OPTIMIZERS["schedule_free"], ema=ema)
    loop.fit(Step([batch]) for batch in batches(5))
    trained = loop.model[0].weight.detach().clone()
    state = loop.optimizer.torch.state[loop.model[0].weight]
    expected = trained + (1 - 1 / 0.9) * (state["z"] - trained)  # Defazio et al. 2024: y = (1 - beta) z + beta x
    for averaged in (False, True):
        with loop.inference_weights(averaged):
            torch.testing.assert_close(loop.model[0].weight.detach(), expected, rtol=1e-5, atol=1e-7)
            assert not torch.equal(loop.model[0].weight, trained)
        assert torch.equal(loop.model[0].weight, trained)


def test_inference_weights_are_averaged_only_on_request():
    loop = loop_over(small_net(), ema=EmaConfig(enabled=True))
    loop.fit(Step([batch]) for batch in batches(5))
    weight, average = loop.model[0].weight.detach().clone(), loop.ema.averages["0.weight"]
    with loop.inference_weights():
        assert torch.equal(loop.model[0].weight, average)
    with loop.inference_weights(averaged=False):
        assert torch.equal(loop.model[0].weight, weight)


# --- bfloat16 weights -------------------------------------------------------------------------------------------------


ROUNDED = [name for name in OPTIMIZERS if name != "prodigy"]


@pytest.mark.parametrize("name", ROUNDED)
def test_a_run_with_stochastic_rounding_resumes_bit_for_bit(name):
    optimizer = replace(OPTIMIZERS[name], stochastic_rounding=True)
    data = [(inputs.bfloat16(), targets.bfloat16()) for inputs, targets in batches(8)]

    def make():
        return loop_over(small_net(torch.bfloat16), optimizer=optimizer)

    straight = make()
    straight.fit(Step([batch]) for batch in data)
    first = make()
    first.fit(Step([batch]) for batch in data[:4])
    saved = copied(first.state())
    second = make()
    torch.manual_seed(99)
    second.load_state(*saved)
    second.fit(Step([batch]) for batch in data[4:])
    assert_same_state(copied(second.state()), copied(straight.state()))


@pytest.mark.parametrize("name", ROUNDED)
def test_a_skipped_step_does_not_round(name):
    optimizer = replace(OPTIMIZERS[name], stochastic_rounding=True)
    loop = loop_over(small_net(torch.bfloat16), optimizer=optimizer)
    inputs, targets = (part.bfloat16() for part in batches(1)[0])
    loop.fit([Step([(inputs, targets)])])
    before = copied(loop.state())[0]["model"]
    loop.fit([Step([(inputs * math.nan, targets)])])
    assert all(torch.equal(value, before[key]) for key, value in copied(loop.state())[0]["model"].items())


# --- checkpoints ------------------------------------------------------------------------------------------------------


def test_the_smoothed_loss_continues_after_a_resume_also_of_an_old_backup():
    data = batches(6)
    straight = loop_over(small_net(), callbacks=Recorder())
    straight.fit(Step([batch]) for batch in data)
    first = loop_over(small_net())
    first.fit(Step([batch]) for batch in data[:3])
    tensors, state = copied(first.state())
    smoothed = {}
    for version in ("new", "old"):
        resumed = loop_over(small_net(), callbacks=Recorder())
        if version == "old":
            del state["smooth_loss_weight"]
        resumed.load_state(tensors, state)
        resumed.fit(Step([batch]) for batch in data[3:])
        smoothed[version] = [info.smooth_loss for info in resumed.callbacks.steps]
    assert smoothed["new"] == [info.smooth_loss for info in straight.callbacks.steps[3:]]
    assert smoothed["old"][0] == pytest.approx(0.98 * state["smooth_loss"] + 0.02 * resumed.callbacks.steps[0].loss)


@pytest.mark.parametrize("precision", ["no", "fp16"])
@pytest.mark.parametrize("optimizer", OPTIMIZERS.values(), ids=OPTIMIZERS)
def test_training_resumes_from_its_state_bit_for_bit(optimizer, precision):
    data = conv_steps(12)
    settings = {
        "optimizer": optimizer,
        "ema": EmaConfig(enabled=True, decay=0.9),
        "schedule": ScheduleConfig(name="cosine", warmup=3),
        "mixed_precision": precision,
        "total_steps": 12,
    }
    straight = loop_over(conv_net(dropout=0.3), **settings)
    straight.fit(data)

    first = loop_over(conv_net(dropout=0.3), **settings)
    first.fit(data[:6])
    saved = copied(first.state())
    second = loop_over(conv_net(dropout=0.3), **settings)
    torch.manual_seed(99)  # the state of the generator must not matter
    second.load_state(*saved)
    assert_same_state(copied(second.state()), saved)
    second.fit(data[6:])
    assert_same_state(copied(second.state()), copied(straight.state()))
    assert second.model.conv.weight.is_contiguous(memory_format=torch.channels_last)


def test_the_state_is_plain_json(tmp_path):
    for optimizer in OPTIMIZERS.values():
        loop = loop_over(conv_net(), optimizer=optimizer)
        loop.fit(conv_steps(2))
        tensors, data = loop.state()
        assert json.loads(json.dumps(data, allow_nan=False))["step"] == 2
        assert all(isinstance(tensor, torch.Tensor) for group in tensors.values() for tensor in group.values())


def test_a_state_of_other_parameters_is_refused_and_changes_nothing():
    source = loop_over(conv_net())
    source.fit(conv_steps(1))
    state = copied(source.state())
    loop = loop_over(small_net())
    before = copied(loop.state())
    with pytest.raises(TrainingError, match="trainable parameters of the backup"):
        loop.load_state(*state)
    assert_same_state(copied(loop.state()), before)


def test_a_state_of_other_shapes_is_refused_and_changes_nothing():
    source = loop_over(nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 3)))
    source.fit(Step([batch]) for batch in batches(1))
    loop = loop_over(small_net())
    before = copied(loop.state())
    with pytest.raises(TrainingError, match="trainable parameters of the backup"):
        loop.load_state(*copied(source.state()))
    assert_same_state(copied(loop.state()), before)


def test_a_state_of_another_optimizer_is_refused():
    source = loop_over(small_net(), optimizer=OPTIMIZERS["adafactor"])
    source.fit(Step([batch]) for batch in batches(1))
    loop = loop_over(small_net())
    with pytest.raises(TrainingError, match="optimizer"):
        loop.load_state(*copied(source.state()))


def test_an_ema_enabled_on_resume_starts_at_the_weights_of_the_backup():
    source = loop_over(small_net())
    source.fit(Step([batch]) for batch in batches(5))
    loop = loop_over(small_net(), ema=EmaConfig(enabled=True))
    loop.load_state(*copied(source.state()))
    assert torch.equal(loop.ema.averages["0.weight"], source.model[0].weight)


def test_a_resumed_run_takes_its_learning_rates_from_the_settings():
    source = loop_over(small_net())
    source.fit(Step([batch]) for batch in batches(2))
    slower = OptimizerConfig(learning_rate=1e-3, weight_decay=0.0)
    loop = loop_over(small_net(), optimizer=slower)
    loop.load_state(*copied(source.state()))
    group = loop.optimizer.torch.param_groups[0]
    assert (group["initial_lr"], group["weight_decay"]) == (1e-3, 0.0)


@pytest.mark.parametrize(("before", "after"), [("fp16", "no"), ("no", "fp16")])
def test_a_resume_with_another_precision_starts_with_a_new_loss_scale(before, after):
    source = loop_over(small_net(), mixed_precision=before)
    source.fit([Step([batch]) for batch in batches(2)])
    loop = loop_over(small_net(), mixed_precision=after)
    fresh = loop.loss_scaler.value.clone()
    loop.load_state(*copied(source.state()))
    assert loop.loss_scaler.value == fresh


def test_the_averages_of_half_precision_weights_keep_small_updates():
    weight = torch.nn.Parameter(torch.ones(4, dtype=torch.bfloat16))
    ema = Ema({"weight": weight}, decay=0.999)
    with torch.no_grad():
        weight.fill_(1.25)
    for step in range(10_000, 12_000):
        ema.update(step)
    assert ema.averages["weight"].min() > 1.2
    with ema.applied():
        assert weight.dtype == torch.bfloat16
        assert weight.min() > 1.2


@pytest.mark.parametrize(
    ("platform", "kernel", "gigabytes", "warnings"),
    [
        ("win32", "11", 13, 1),
        ("win32", "11", 11, 0),
        ("linux", "6.6.87.2-microsoft-standard-WSL2", 13, 1),
        ("linux", "6.8.0-60-generic", 13, 0),
    ],
)
def test_on_windows_spilling_into_system_memory_is_warned_about_once(
    platform, kernel, gigabytes, warnings, monkeypatch
):
    callbacks = Recorder()
    monkeypatch.setattr("modules.trainer.MemoryReading.sys", SimpleNamespace(platform=platform))
    monkeypatch.setattr("modules.machine.wsl.platform", SimpleNamespace(release=lambda: kernel))
    for name in ("memory_allocated", "max_memory_allocated", "memory_reserved"):
        monkeypatch.setattr(torch.cuda, name, lambda device: gigabytes * 10**9)
    card = SimpleNamespace(total_memory=12 * 10**9)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: card)
    clock = count()  # a reading is kept for a second
    monkeypatch.setattr("modules.trainer.MemoryReading.time", SimpleNamespace(monotonic=lambda: next(clock)))
    memory = MemoryReading(torch.device("cuda", 0), callbacks)
    for _ in range(3):
        assert memory.read() == (gigabytes * 10**9, gigabytes * 10**9)
    text = "Training uses 13.0 GB and cuda:0 has 12.0 GB: Windows keeps the rest"
    assert [warning[: len(text)] for warning in callbacks.warnings] == [text] * warnings
