"""Optimizers by name, which the step function steps by `engine.backward`."""

from __future__ import annotations

import shutil

import pytest
import torch
from torch import nn
from torch.nn.functional import binary_cross_entropy_with_logits
from torch.optim.lr_scheduler import ReduceLROnPlateau, StepLR
from torch.utils.data import DataLoader

from modules.config.errors import UserError
from modules.session.TrainCallbacks import TrainCallbacks
from modules.trainer import TrainingEngine
from modules.weights.safe import load_tensors
from tests.support.engine_data import points
from tests.support.several_optimizers import Pair, make_optimizers, train_pair, train_unused


@pytest.fixture
def engine(tmp_path):
    return TrainingEngine(Pair(), device="cpu", output_dir=tmp_path)


def weights(model):
    return torch.cat([param.detach().double().flatten() for param in model.parameters()])


def train(engine, step_fn, **options):
    options = {"optimizer": make_optimizers(engine.model), "num_epochs": 2, "callbacks": TrainCallbacks(), **options}
    loader = DataLoader(points(40), batch_size=options.pop("batch_size", 16))
    return engine.train(loader, step_fn=step_fn, **options)


def both(engine):
    """A step function in which the second loss depends on the weights that the first step has changed."""

    def step(model, batch):
        inputs, target = batch
        engine.backward(model.first_loss(inputs, target), "first")
        loss = model.second_loss(inputs, target)
        engine.backward(loss, "second")
        return loss

    return step


# --- as by hand -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("precision", ["double", "float", "bfloat16"])
def test_steps_are_those_of_a_loop_by_hand(precision, fused, tmp_path):
    """With clipping and a schedule; under autocast, the second loss must not see copies of the old weights."""
    amp, dtype = precision == "bfloat16", torch.float64 if precision == "double" else torch.float32
    data = [(inputs.to(dtype), target) for inputs, target in points(40)]
    hand = Pair().to(dtype)
    optimizers = make_optimizers(hand, fused)
    schedulers = [StepLR(optimizer, 2, gamma=0.5) for optimizer in optimizers.values()]
    for _ in range(2):
        for inputs, target in DataLoader(data, batch_size=16):
            losses = {"first": hand.first_loss, "second": hand.second_loss}
            for (name, optimizer), scheduler in zip(optimizers.items(), schedulers, strict=True):
                with torch.autocast("cpu", torch.bfloat16, enabled=amp):
                    loss = losses[name](inputs, target)
                optimizer.zero_grad()
                loss.backward()
                nn.utils.clip_grad_norm_(optimizer.param_groups[0]["params"], 0.05)
                optimizer.step()
                scheduler.step()
    engine = TrainingEngine(Pair().to(dtype), device="cpu", output_dir=tmp_path, use_amp=amp, amp_dtype=torch.bfloat16)
    optimizers = make_optimizers(engine.model, fused)
    engine.train(
        DataLoader(data, batch_size=16),
        optimizer=optimizers,
        step_fn=both(engine),
        scheduler={name: StepLR(optimizer, 2, gamma=0.5) for name, optimizer in optimizers.items()},
        scheduler_interval="step",
        clip_grad_norm=0.05,
        num_epochs=2,
    )
    torch.testing.assert_close(weights(engine.model), weights(hand), rtol=1e-5, atol=1e-6)


def test_two_ranks_with_a_last_step_of_one_sample_equal_one(two_ranks, tmp_path):
    one = train_pair(None, str(tmp_path / "one"), world_size=1)
    first, second = two_ranks.run(train_pair, folder=str(tmp_path / "two"), world_size=2)
    assert first == second
    assert first == pytest.approx(one, rel=1e-9)


def test_ranks_may_share_the_state_of_all_optimizers(two_ranks, tmp_path):
    straight = train_pair(None, str(tmp_path / "one"), world_size=1)
    folder = str(tmp_path / "two")
    two_ranks.run(train_pair, folder=folder, world_size=2, epochs=1, strategy="zero1")
    (checkpoint,) = (tmp_path / "two" / "experiment" / "checkpoints" / "last").iterdir()
    parts = [{key.rpartition("/")[0] for key in load_tensors(file)} for file in sorted(checkpoint.glob("optimizer-*"))]
    of_first = {f"first.{layer}.{kind}" for layer in (0, 2) for kind in ("weight", "bias")}
    of_second = {name.replace("first", "second") for name in of_first}
    assert parts[0] | parts[1] == of_first | of_second
    assert not parts[0] & parts[1]
    for part in parts:  # of each optimizer
        assert part & of_first
        assert part & of_second
    shutil.copytree(folder, tmp_path / "again")
    for found in two_ranks.run(train_pair, folder=folder, world_size=2, strategy="zero1", resume=True):
        assert found == pytest.approx(straight, rel=1e-9)
    assert train_pair(None, str(tmp_path / "again"), 1, resume=True) == pytest.approx(straight, rel=1e-9)


@pytest.mark.parametrize("fused", [False, True])
def test_in_float16_steps_are_scaled_and_skipped_as_by_torchs_scaler(fused, tmp_path):
    """The loss is that of all samples of a step, as the engine scales it, so that the same steps overflow."""
    data = [(inputs.float(), target) for inputs, target in points(40)]
    hand, skipped = Pair().float(), 0
    optimizers = make_optimizers(hand, fused)
    scaler = torch.amp.GradScaler("cpu", init_scale=65536.0)
    for inputs, target in [batch for _ in range(4) for batch in DataLoader(data, batch_size=16)]:
        for name, optimizer in optimizers.items():
            with torch.autocast("cpu", torch.float16):
                loss = (hand.first_loss if name == "first" else hand.second_loss)(inputs, target)
            optimizer.zero_grad()
            scaler.scale(loss * len(inputs)).backward()
            scaler.unscale_(optimizer)
            params = optimizer.param_groups[0]["params"]
            torch._foreach_div_([param.grad for param in params], len(inputs))
            nn.utils.clip_grad_norm_(params, 0.05)
            scaler.step(optimizer)
        scale = scaler.get_scale()
        scaler.update()
        skipped += scaler.get_scale() < scale
    assert 0 < skipped < 12
    engine = TrainingEngine(Pair().float(), device="cpu", output_dir=tmp_path, use_amp=True, amp_dtype=torch.float16)
    optimizers = make_optimizers(engine.model, fused)
    engine.train(
        DataLoader(data, batch_size=16), optimizer=optimizers, step_fn=both(engine), clip_grad_norm=0.05, num_epochs=4
    )
    torch.testing.assert_close(weights(engine.model), weights(hand), rtol=1e-5, atol=1e-6)
    assert engine.state_dict()["data"]["loss_scale"]["value"] == scaler.get_scale()


def test_parameters_without_a_gradient_are_refused_on_ranks_unless_they_are_announced(two_ranks, tmp_path):
    for said, _ in two_ranks.run(train_unused, folder=str(tmp_path / "refused"), announced=False):
        assert "parameters of 'first' (first.0.weight, first.0.bias, first.2.bias) got no gradient" in said
        assert "pass unused_parameters=True" in said
    first, second = two_ranks.run(train_unused, folder=str(tmp_path / "announced"), announced=True)
    assert first == second
    assert first[0] == ""
    assert first[1] != torch.cat([param.flatten() for param in Pair().first.parameters()]).tolist()


def test_a_step_that_is_not_finite_is_skipped_alone(engine):
    before, warnings = weights(engine.model.first), []

    class Heard(TrainCallbacks):
        def on_warning(self, text):
            warnings.append(text)

    def step(model, batch):
        engine.backward(model.first_loss(*batch) * float("nan"), "first")
        loss = model.second_loss(*batch)
        engine.backward(loss, "second")
        return loss

    second = weights(engine.model.second)
    train(engine, step, num_epochs=1, callbacks=Heard())
    assert torch.equal(weights(engine.model.first), before)
    assert not torch.equal(weights(engine.model.second), second)
    assert len(warnings) == 3


def test_a_graph_that_two_losses_share_is_kept_on_request(engine):
    def step(model, batch):
        inputs, target = batch
        hidden = model.first(inputs)
        loss = binary_cross_entropy_with_logits(model.second(hidden)[:, 0], target.double())
        engine.backward(loss, "second", retain_graph=True)
        engine.backward(hidden.square().mean(), "first")
        return loss

    before = weights(engine.model.first)
    train(engine, step, num_epochs=1)
    assert not torch.equal(weights(engine.model.first), before)


# --- around it --------------------------------------------------------------------------------------------------------


def test_evaluation_makes_no_steps(engine):
    step = both(engine)
    loader = DataLoader(points(40), batch_size=16)
    history = train(engine, step, val_loader=loader)
    before = weights(engine.model)
    assert engine.evaluate(loader)["loss"] == pytest.approx(history["val_loss"][-1])
    assert torch.equal(weights(engine.model), before)


def test_a_checkpoint_of_other_optimizers_is_refused(tmp_path):
    engine = TrainingEngine(Pair(), device="cpu", output_dir=tmp_path)
    train(engine, both(engine), num_epochs=1)
    again = TrainingEngine(Pair(), device="cpu", output_dir=tmp_path)
    single = torch.optim.AdamW(again.model.parameters())
    with pytest.raises(UserError, match="saved with the optimizers first, second; pass them by name"):
        train(again, lambda model, batch: model.second_loss(*batch), optimizer=single, resume=True)
    only = {"first": make_optimizers(again.model)["first"]}
    with pytest.raises(UserError, match="saved with the optimizers first, second, but the optimizers are first;"):
        train(again, both(again), optimizer=only, resume=True)


def direct_backward(engine):
    def step(model, batch):
        loss = model.first_loss(*batch)
        loss.backward()
        engine.backward(model.first_loss(*batch), "first")
        return loss

    return step


def with_loss(engine, make_loss, name="first", **options):
    def step(model, batch):
        engine.backward(make_loss(model, batch), name, **options)
        return make_loss(model, batch)

    return step


STEPS = {
    "no call": (lambda engine: lambda model, batch: model.first_loss(*batch), "it has made no optimizer step"),
    "unknown name": (
        lambda engine: with_loss(engine, lambda model, batch: model.first_loss(*batch), "third"),
        "there is no optimizer 'third'; those of train are first, second",
    ),
    "of another": (
        lambda engine: with_loss(engine, lambda model, batch: model.first_loss(*batch), "second"),
        "the loss for 'second' does not depend on the parameters of this optimizer",
    ),
    "own backward": (direct_backward, "'first' have a gradient already"),
}


@pytest.mark.parametrize("name", STEPS)
def test_a_step_function_that_goes_wrong_is_told(name, engine):
    make, message = STEPS[name]
    with pytest.raises(UserError, match=message):
        train(engine, make(engine))


ARGUMENTS = {
    "accumulation": ({"gradient_accumulation_steps": 2}, "optimizers by name make a step in each engine.backward"),
    "accumulation later": ({"gradient_accumulation_steps": {3: 2}}, "optimizers by name make a step"),
    "criterion": ({"criterion": nn.CrossEntropyLoss(), "step_fn": None}, "optimizers by name need a step_fn"),
    "none": ({"optimizer": {}}, "the mapping must have names"),
    "unnamed schedule": (lambda own: {"scheduler": StepLR(own["first"], 1)}, "pass {'first': scheduler}"),
    "schedule of none": (
        lambda own: {"scheduler": {"third": StepLR(own["first"], 1)}},
        "scheduler 'third': there is no optimizer of this name, only first, second",
    ),
    "schedule of another": (
        lambda own: {"scheduler": {"second": StepLR(own["first"], 1)}},
        "changes another optimizer",
    ),
    "plateau": (
        lambda own: {"scheduler": {"second": ReduceLROnPlateau(own["second"], mode="max")}, "mode": "min"},
        "ReduceLROnPlateau has mode 'max'",
    ),
    "shared": (
        lambda own: {"optimizer": {"first": own["first"], "again": own["first"]}},
        "both 'first' and 'again' have first.0.weight",
    ),
    "schedules of one": (
        lambda own: {"optimizer": own["first"], "scheduler": {"first": StepLR(own["first"], 1)}},
        "several need several optimizers",
    ),
    "single": (lambda own: {"optimizer": own["first"]}, "it is for optimizers that train gets by name"),
}


@pytest.mark.parametrize("name", ARGUMENTS)
def test_arguments_that_can_not_work_together_are_refused(name, engine):
    options, message = ARGUMENTS[name]
    optimizers = make_optimizers(engine.model)
    options = options(optimizers) if callable(options) else options
    with pytest.raises(UserError, match=message):
        train(engine, **{"step_fn": both(engine), "optimizer": optimizers, **options})


def test_a_call_outside_of_a_training_is_told(engine):
    with pytest.raises(UserError, match="there is no training yet"):
        engine.backward(torch.zeros(()), "first")
