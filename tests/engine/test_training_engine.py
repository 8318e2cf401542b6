"""TrainingEngine on one device: training, evaluation, checkpoints and errors."""

from __future__ import annotations

import json
import math

import pytest
import torch
from torch import nn
from torch.optim.lr_scheduler import (
    ChainedScheduler,
    CosineAnnealingLR,
    LambdaLR,
    LinearLR,
    MultiStepLR,
    OneCycleLR,
    ReduceLROnPlateau,
    SequentialLR,
    StepLR,
)
from torch.utils.data import DataLoader

from modules.config.errors import UserError
from modules.engine.RankContext import RankContext, enter_rank
from modules.machine.devices import Gpu
from modules.session.TrainCallbacks import TrainCallbacks
from modules.trainer import TrainingEngine, launch_distributed_training
from modules.weights.safe import load_tensors
from tests.support.engine_data import Augmented, Stream, accuracy, adamw, points, small_net


@pytest.fixture
def make_engine(tmp_path):
    """Returns a function that makes an engine which writes to a folder of this test."""

    def make(model: nn.Module | None = None, **options) -> TrainingEngine:
        return TrainingEngine(model or small_net(), **{"device": "cpu", "output_dir": tmp_path, **options})

    return make


def train(engine, data=None, num_epochs=3, batch_size=16, **options):
    options = {"criterion": nn.CrossEntropyLoss(), "optimizer": adamw(engine), **options}
    loader = DataLoader(points() if data is None else data, batch_size=batch_size, shuffle=not isinstance(data, Stream))
    return engine.train(loader, num_epochs=num_epochs, **options)


def weights(engine):
    return torch.cat([value.double().flatten() for value in engine.model.state_dict().values()])


def same(first, second) -> bool:
    return torch.equal(weights(first), weights(second))


# --- training ---------------------------------------------------------------------------------------------------------


def test_training_equals_a_handwritten_loop(make_engine):
    engine = make_engine()
    data = list(DataLoader(points(), batch_size=16))
    optimizer = adamw(engine)
    scheduler = CosineAnnealingLR(optimizer, 3)
    history = engine.train(
        data,
        optimizer=optimizer,
        criterion=nn.CrossEntropyLoss(),
        scheduler=scheduler,
        num_epochs=3,
        clip_grad_norm=0.5,
    )

    model = small_net()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    scheduler = CosineAnnealingLR(optimizer, 3)
    losses = []
    for _ in range(3):
        total = 0.0
        for inputs, target in data:
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(inputs), target)
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
            optimizer.step()
            total += loss.item() * len(target)
        scheduler.step()
        losses.append(total / 103)
    assert history["train_loss"] == pytest.approx(losses, rel=1e-9)
    expected = torch.cat([value.double().flatten() for value in model.state_dict().values()])
    torch.testing.assert_close(weights(engine), expected, rtol=1e-9, atol=1e-12)


def test_accumulation_with_an_uneven_last_batch_equals_the_large_batch(make_engine):
    curves = [
        train(
            make_engine(small_net(norm=False), experiment_name=str(size)),
            batch_size=size,
            gradient_accumulation_steps=48 // size,
        )["train_loss"]
        for size in (48, 16, 6)
    ]
    assert curves[1] == pytest.approx(curves[0], rel=1e-12)
    assert curves[2] == pytest.approx(curves[0], rel=1e-12)


def test_a_step_function_may_return_loss_samples_and_metrics(make_engine):
    def step_fn(model, batch):
        output = model(batch[0])
        right = accuracy(output, batch[1])
        metrics = {"accuracy": right.mean(), "pair": (right.sum(), 2 * len(right))}
        return nn.functional.cross_entropy(output, batch[1]), len(right), metrics

    plain = train(make_engine(experiment_name="plain"), metrics={"accuracy": accuracy})
    own = train(make_engine(experiment_name="own"), criterion=None, step_fn=step_fn)
    assert own["train_loss"] == pytest.approx(plain["train_loss"], rel=1e-12)
    assert own["accuracy"] == pytest.approx(plain["accuracy"], rel=1e-12)
    assert own["pair"] == pytest.approx([value / 2 for value in own["accuracy"]])


def test_a_step_function_may_return_only_the_loss(make_engine):
    def step_fn(model, batch):
        return nn.functional.cross_entropy(model(batch[0]), batch[1])

    plain = train(make_engine(experiment_name="plain"))
    own = train(make_engine(experiment_name="own"), criterion=None, step_fn=step_fn)
    assert own["train_loss"] == plain["train_loss"]


@pytest.mark.parametrize("accumulation", [1, 2])
def test_a_training_metric_with_counts_is_the_mean_over_the_epoch(accumulation, make_engine):
    def of_class_one(output, target):
        return (target * torch.arange(len(target))).sum(), target.sum()

    data = list(DataLoader(points(), batch_size=16))
    engine = make_engine()
    options = {"criterion": nn.CrossEntropyLoss(), "metrics": {"figure": of_class_one}}
    trained = engine.train(
        data, optimizer=adamw(engine), num_epochs=1, gradient_accumulation_steps=accumulation, **options
    )
    assert trained["figure"] == [pytest.approx(engine.evaluate(data)["figure"])]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, None])
def test_mixed_precision_is_close_to_full_precision(dtype, make_engine):
    full = train(make_engine(small_net().float(), experiment_name="full"), floats())
    mixed = train(make_engine(small_net().float(), experiment_name="mixed", use_amp=True, amp_dtype=dtype), floats())
    assert mixed["train_loss"] != full["train_loss"]
    # float16 training starts with skipped steps until the loss scale fits
    assert mixed["train_loss"] == pytest.approx(full["train_loss"], rel=0.15)


def floats():
    return [(inputs.float(), target) for inputs, target in points()]


def test_a_second_training_starts_with_the_current_weights(make_engine):
    engine = make_engine()
    first = train(engine)
    second = train(engine, optimizer=torch.optim.SGD(engine.model.parameters(), lr=0.1))
    assert second["train_loss"][0] < first["train_loss"][0] * 0.9
    assert len(second["train_loss"]) == 3


# --- schedulers -------------------------------------------------------------------------------------------------------


def test_a_scheduler_steps_after_each_epoch_or_each_step(make_engine):
    by_epoch, by_step = make_engine(experiment_name="epoch"), make_engine(experiment_name="step")
    rates = []

    class Watch(TrainCallbacks):
        def on_step(self, info):
            rates.append(info.lr)

    optimizer = adamw(by_epoch)
    history = train(by_epoch, optimizer=optimizer, scheduler=LambdaLR(optimizer, lambda n: 0.5**n))
    assert history["lr"] == pytest.approx([1e-2, 5e-3, 2.5e-3])
    optimizer = adamw(by_step)
    scheduler = OneCycleLR(optimizer, 1e-2, total_steps=21)
    train(by_step, optimizer=optimizer, scheduler=scheduler, scheduler_interval="step", callbacks=Watch())
    assert len(set(rates)) == 21


def test_a_plateau_scheduler_gets_the_monitored_metric(make_engine):
    engine = make_engine()
    optimizer = adamw(engine)
    scheduler = ReduceLROnPlateau(optimizer, mode="max", factor=0.1, patience=0)
    loader = DataLoader(points(), batch_size=16)
    history = train(
        engine, optimizer=optimizer, scheduler=scheduler, val_loader=loader, monitor="odd", num_epochs=4,
        metrics={"odd": lambda output, target: (torch.tensor(0.0), 1)},
    )  # fmt: skip
    assert history["lr"] == pytest.approx([1e-2, 1e-2, 1e-3, 1e-4])
    assert scheduler.best == 0.0


# --- measuring --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("fused", [False, True])
def test_only_the_parameters_of_the_optimizer_count_for_clipping_and_skipping(fused, make_engine):
    def run(name, freezes):
        model = small_net(norm=False)
        model[0].requires_grad_(not freezes)
        data = [(inputs.clone(), target) for inputs, target in DataLoader(points(), batch_size=16)]
        data[1][0][3] = math.nan
        engine = make_engine(model, experiment_name=name)
        optimizer = torch.optim.AdamW(model[-1].parameters(), lr=1e-2, fused=fused)
        norms = Norms()
        options = {"optimizer": optimizer, "criterion": nn.CrossEntropyLoss(), "callbacks": norms}
        engine.train(data, num_epochs=5, clip_grad_norm=0.1, **options)
        return engine, norms.values

    frozen, norms = run("frozen", freezes=True)
    head, norms_of_head = run("head", freezes=False)
    assert [step for step, norm in enumerate(norms, 1) if norm is None] == [2, 9, 16, 23, 30]
    assert norms_of_head == norms
    assert same(frozen, head)


def test_a_fused_optimizer_is_the_programs_own_again_after_the_training(make_engine):
    """PyTorch's kernel reads the divisor of the gradients from attributes of the optimizer."""
    engine = make_engine(nn.Linear(4, 2))  # in float64, the loop divides itself
    optimizer = torch.optim.SGD(engine.model.parameters(), lr=1.0, fused=True)
    data = [(inputs.float(), target) for inputs, target in DataLoader(points(), batch_size=16)]
    engine.train(data, criterion=nn.CrossEntropyLoss(), optimizer=optimizer, num_epochs=1, clip_grad_norm=1e-3)
    before = weights(engine)
    for parameter in engine.model.parameters():
        parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    torch.testing.assert_close(before - weights(engine), torch.ones(10, dtype=torch.float64), atol=1e-5, rtol=0)


class Norms(TrainCallbacks):
    def __init__(self):
        self.values = []

    def on_step(self, info):
        self.values.append(info.grad_norm)


def test_validation_counts_every_sample_once(make_engine):
    engine = make_engine()
    train(engine)
    loaders = (DataLoader(points(), batch_size=size) for size in (7, 103))
    figures = [engine.evaluate(loader, metrics={"accuracy": accuracy}) for loader in loaders]
    assert figures[0] == pytest.approx(figures[1], rel=1e-12)
    engine.model.eval()
    inputs, target = points().tensors
    assert figures[0]["loss"] == pytest.approx(nn.functional.cross_entropy(engine.model(inputs), target).item())


def test_validation_does_not_affect_training(make_engine):
    without, with_it = make_engine(experiment_name="without"), make_engine(experiment_name="with")
    train(without)
    train(with_it, val_loader=DataLoader(Augmented(), batch_size=10))
    assert same(without, with_it)
    assert with_it.model.training


def test_the_averaged_weights_are_evaluated_and_saved(make_engine):
    engine = make_engine(use_ema=True, ema_decay=0.5)
    loader = DataLoader(points(), batch_size=50)
    history = train(engine, val_loader=loader)
    saved = load_tensors(engine.last_checkpoint / "model.safetensors")
    plain = weights(engine)
    bare = small_net()
    bare.load_state_dict(saved)
    assert not torch.equal(torch.cat([value.double().flatten() for value in bare.state_dict().values()]), plain)
    bare.eval()
    inputs, target = points().tensors
    assert nn.functional.cross_entropy(bare(inputs), target).item() == pytest.approx(history["val_loss"][-1], rel=1e-12)
    torch.testing.assert_close(engine.predict(loader), bare(inputs))


def test_predictions_are_in_the_order_of_the_samples(make_engine):
    engine = make_engine()
    inputs = points().tensors[0]
    engine.model.eval()
    torch.testing.assert_close(engine.predict(DataLoader(inputs, batch_size=10)), engine.model(inputs))
    torch.testing.assert_close(engine.predict(DataLoader(points(), batch_size=10)), engine.model(inputs))


class Mean:
    """Has the interface of torchmetrics objects."""

    def __init__(self):
        self.reset()

    def reset(self):
        self.total, self.count = 0.0, 0

    def update(self, output, target):
        self.total, self.count = self.total + accuracy(output, target).sum(), self.count + len(target)

    def compute(self):
        return self.total / self.count


class Values(Mean):
    def compute(self):
        return torch.zeros(3)


def test_torchmetrics_objects_are_evaluated(make_engine):
    engine = make_engine()
    loader = DataLoader(points(), batch_size=10)
    history = train(engine, val_loader=loader, metrics={"plain": accuracy, "object": Mean()})
    assert history["object"] == pytest.approx(history["plain"])


# --- checkpoints ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("data", [Augmented, Stream])
@pytest.mark.parametrize("ema", [False, True])
def test_a_resumed_training_equals_an_uninterrupted_one_bit_for_bit(data, ema, make_engine):
    def run(name, epochs, **options):
        engine = make_engine(experiment_name=name, use_ema=ema)
        optimizer = adamw(engine)
        scheduler = CosineAnnealingLR(optimizer, 4)
        loader = DataLoader(points(), batch_size=50)
        return engine, train(
            engine, data(), epochs, optimizer=optimizer, scheduler=scheduler, val_loader=loader, **options
        )

    whole, whole_history = run("whole", 4)
    run("parts", 2)
    parts, history = run("parts", 4, resume=True)
    assert same(whole, parts)
    assert dict(history) == dict(whole_history)


def warmed_up_steps(optimizer):
    return SequentialLR(optimizer, [LinearLR(optimizer, 0.1, total_iters=1), MultiStepLR(optimizer, [1, 2])], [1])


def chained_steps(optimizer):
    return ChainedScheduler([MultiStepLR(optimizer, [2, 3]), StepLR(optimizer, 2)])


@pytest.mark.parametrize("make_scheduler", [warmed_up_steps, chained_steps])
def test_a_scheduler_made_of_others_resumes_exactly(make_scheduler, make_engine):
    def rates(name, epochs, **options):
        engine = make_engine(experiment_name=name)
        optimizer = adamw(engine)
        scheduler = make_scheduler(optimizer)
        return train(engine, num_epochs=epochs, optimizer=optimizer, scheduler=scheduler, **options)["lr"]

    rates("parts", 1)
    assert rates("parts", 5, resume=True) == rates("whole", 5)


def run_to_stop(engine, loader, stop_at=0, **options):
    """Two epochs of `engine`, unless a stop is requested when step `stop_at` is reported; the context of the rank."""
    context = RankContext()
    enter_rank(context)

    class Stop(TrainCallbacks):
        def on_step(self, info):
            if info.step == stop_at:
                context.commands.stop()

    options = {"optimizer": adamw(engine), "criterion": nn.CrossEntropyLoss(), **options}
    engine.train(loader, num_epochs=2, callbacks=Stop(), **options)
    enter_rank(RankContext())
    return context


@pytest.mark.parametrize("data", [Augmented, Stream])
@pytest.mark.parametrize("workers", [0, 2])
def test_a_training_stopped_within_an_epoch_resumes_exactly(data, workers, make_engine):
    def run(name, **options):
        engine = make_engine(experiment_name=name)
        return engine, run_to_stop(engine, DataLoader(data(), batch_size=16, num_workers=workers), **options)

    whole, _ = run("whole")
    _, context = run("parts", stop_at=3)
    assert context.stopped
    assert 3 <= context.step < 7
    parts, _ = run("parts", resume=True)
    assert same(whole, parts)
    assert dict(parts.history) == dict(whole.history)


@pytest.mark.parametrize("stop_at", [2, 3, 4, 5])  # which comes into effect some steps later
def test_a_stop_around_the_end_of_an_epoch_loses_nothing_of_the_epoch(stop_at, make_engine):
    def run(name, **options):
        engine = make_engine(experiment_name=name)
        optimizer = adamw(engine)
        scheduler = LambdaLR(optimizer, lambda epoch: 0.1**epoch)
        loaders = DataLoader(points(), batch_size=16), DataLoader(points(), batch_size=50)
        options = {"optimizer": optimizer, "scheduler": scheduler, "val_loader": loaders[1], **options}
        return engine, run_to_stop(engine, loaders[0], **options)

    whole, _ = run("whole")
    _, context = run("parts", stop_at=stop_at)
    assert context.stopped
    parts, _ = run("parts", resume=True)
    assert dict(parts.history) == dict(whole.history)
    assert same(whole, parts)


def test_the_monitored_metric_selects_the_best_epoch(make_engine):
    engine = make_engine()
    values = iter([0.1, 0.9, 0.3])
    loader = DataLoader(points(), batch_size=103)
    history = train(
        engine,
        val_loader=loader,
        monitor="score",
        metrics={"score": lambda output, target: (torch.tensor(next(values)), 1)},
    )
    assert history.best_epoch == 2
    assert json.loads((engine.best_checkpoint / "state.json").read_text())["epoch"] == 2
    assert json.loads((engine.last_checkpoint / "state.json").read_text())["epoch"] == 3


@pytest.mark.parametrize(
    ("name", "best"), [("mae", 3), ("val_rmse", 3), ("wordErrorRate", 3), ("accuracy", 2), ("macro_f1", 2)]
)
def test_what_is_better_is_told_by_the_usual_names(name, best, make_engine):
    values = iter([0.5, 0.9, 0.3])
    metrics = {name: lambda output, target: (torch.tensor(next(values)), 1)}
    history = train(make_engine(), val_loader=DataLoader(points(), batch_size=103), monitor=name, metrics=metrics)
    assert history.best_epoch == best


def test_the_history_is_written_and_can_be_plotted(make_engine, tmp_path):
    engine = make_engine()
    history = train(engine)
    written = json.loads((engine.folder / "history.json").read_text())
    assert written["values"] == {"train_loss": history["train_loss"], "lr": [1e-2] * 3}
    assert list((engine.folder / "tensorboard").iterdir())
    pytest.importorskip("matplotlib")
    history.plot(tmp_path / "curves.png")
    assert (tmp_path / "curves.png").stat().st_size > 1000


def test_without_matplotlib_plotting_says_what_to_install(make_engine, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "matplotlib.figure", None)
    with pytest.raises(UserError, match="pip install matplotlib"):
        make_engine().history.plot("curves.png")


def test_a_training_continues_in_another_engine_from_its_state_dict(make_engine):
    first = make_engine(experiment_name="first")
    train(first, num_epochs=2)
    state = {
        "tensors": {f: {n: t.clone() for n, t in group.items()} for f, group in first.state_dict()["tensors"].items()},
        "data": first.state_dict()["data"],
    }
    second = make_engine(experiment_name="second")
    second.load_state_dict(state)
    assert same(first, second)
    history = train(second, num_epochs=3)
    assert len(history["train_loss"]) == 3
    whole = make_engine(experiment_name="whole")
    train(whole)
    assert same(whole, second)


def test_a_killed_training_resumes_from_the_checkpoint_of_a_step(make_engine):
    whole = make_engine(experiment_name="whole")
    train(whole, Augmented())
    killed = make_engine(experiment_name="killed")

    class Kill(TrainCallbacks):
        def on_step(self, info):
            if info.step == 6:
                raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(killed, Augmented(), callbacks=Kill(), save_every_steps=2)
    resumed = make_engine(experiment_name="killed")
    train(resumed, Augmented(), resume="last")
    assert same(whole, resumed)


def test_what_a_killed_training_was_writing_is_removed(make_engine):
    engine = make_engine()
    train(engine, num_epochs=1)
    half = engine.last_checkpoint.with_name("step-9.tmp-2147483647-00000000")  # of a process that is gone
    half.mkdir()
    train(make_engine(), num_epochs=2, resume=True)
    assert not half.exists()


@pytest.mark.parametrize("save_last", [True, False])
def test_a_checkpoint_of_the_last_step_of_an_epoch_has_the_whole_epoch(save_last, make_engine):
    def run(name, epochs, **options):
        engine = make_engine(experiment_name=name)
        optimizer = adamw(engine)
        options = {"optimizer": optimizer, "scheduler": StepLR(optimizer, 1, gamma=0.5), **options}
        train(engine, num_epochs=epochs, batch_size=26, save_last=save_last, **options)  # in 4 steps
        return engine

    whole = run("whole", 3)
    run("parts", 2, save_every_steps=4)
    parts = run("parts", 3, save_every_steps=4, resume=True)
    assert dict(parts.history) == dict(whole.history)
    assert same(whole, parts)


@pytest.mark.parametrize("epochs", [3, 4])
def test_a_training_that_goes_back_replaces_the_later_checkpoints(epochs, make_engine):
    def run(data, epochs, **options):
        engine = make_engine()
        optimizer = adamw(engine)
        scheduler = StepLR(optimizer, 1, gamma=0.5)  # by this rate, the first epoch is the best one
        train(engine, data, epochs, optimizer=optimizer, scheduler=scheduler, monitor="lr", mode="max", **options)
        return engine

    first = run(None, 4)
    second = run(Augmented(), epochs, resume="best")
    assert first.best_checkpoint == second.best_checkpoint
    assert [path.parent for path in second.folder.glob("checkpoints/last/*/state.json")] == [second.last_checkpoint]
    saved = load_tensors(second.last_checkpoint / "model.safetensors")
    assert all(torch.equal(saved[name], value) for name, value in second.model.state_dict().items())


# --- refusals ---------------------------------------------------------------------------------------------------------


class Trained(nn.Module):
    """A criterion with a weight that is to be trained."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(2))


class ZeroRedundancyOptimizer(torch.optim.SGD):
    """Named as torch's, which needs ranks."""


class OwnSchedule:
    def step(self, epoch):
        raise AssertionError("this is never called")


REFUSALS = {
    "batches of three": (
        {"train_loader": [(torch.zeros(2), torch.zeros(2), torch.zeros(2))]},
        "criterion is for batches of (inputs, target), but the loader yields tuple of 3: use step_fn(model, batch).",
    ),
    "no way to a loss": ({"criterion": None}, "pass exactly one of them"),
    "two ways to a loss": ({"step_fn": lambda model, batch: None}, "pass exactly one of them"),
    "a loss per sample": ({"criterion": nn.CrossEntropyLoss(reduction="none")}, "use reduction='mean'"),
    "no epochs": ({"num_epochs": 0}, "num_epochs 0: it must be at least 1."),
    "no end": ({"num_epochs": None}, "train: nothing says when to end; pass num_epochs or max_steps."),
    "no steps": ({"max_steps": 0}, "max_steps 0: it must be at least 1."),
    "no epoch with an accumulation": (
        {"gradient_accumulation_steps": {}},
        "gradient_accumulation_steps {}: it names no epoch; use a number, or a mapping such as {0: 8, 4: 2}.",
    ),
    "an accumulation before the first epoch": (
        {"gradient_accumulation_steps": {-1: 2}},
        "gradient_accumulation_steps: -1 is not a number of epochs; use whole numbers from 0, as in {0: 8, 4: 2}.",
    ),
    "an epoch that accumulates nothing": (
        {"gradient_accumulation_steps": {0: 1, 2: 0}},
        "gradient_accumulation_steps[2] 0: it must be at least 1.",
    ),
    "extra state without names": ({"extra_state": [1]}, "extra_state: list has no names; pass a dictionary"),
    "extra state of an object without one": (
        {"extra_state": {"buffer": [1]}},
        "extra_state 'buffer': list has no state_dict; pass an object with state_dict() and load_state_dict(state).",
    ),
    "no checkpoints to keep": ({"save_top_k": 0}, "save_top_k 0: it must be at least 1."),
    "validation without data": (
        {"validate_every_steps": 5},
        "validate_every_steps 5: nothing is held out; pass a val_loader.",
    ),
    "no batches": ({"train_loader": []}, "train_loader yields no batches"),
    "an object without validation": ({"metrics": {"f": Mean()}}, "torchmetrics objects need a val_loader"),
    "an unknown figure": ({"monitor": "f1"}, "monitor 'f1' is not among the metrics: train_loss, lr."),
    "another's optimizer": (
        {"optimizer": torch.optim.SGD(nn.Linear(1, 1).parameters(), lr=1.0)},
        "create it with model.parameters()",
    ),
    "no optimizer": ({"optimizer": "adam"}, "optimizer: str is not a torch optimizer"),
    "a dataset": ({"train_loader": points()}, "train_loader: TensorDataset is a dataset, which has no batches"),
    "no validation data": ({"val_loader": 3}, "val_loader: int yields no batches; pass a DataLoader."),
    "epochs as text": ({"num_epochs": "3"}, "num_epochs '3': it must be a whole number."),
    "a negative interval": ({"save_every_steps": -1}, "save_every_steps -1: it must be at least 1."),
    "a negative norm": ({"clip_grad_norm": -1}, "clip_grad_norm -1: it must be a positive number"),
    "a criterion's class": ({"criterion": nn.CrossEntropyLoss}, "pass an instance, such as CrossEntropyLoss()."),
    "a criterion's name": ({"criterion": "mse"}, "criterion: str can't be called; pass a function."),
    "a loss that is no tensor": ({"criterion": lambda output, target: 1.0}, "a scalar tensor"),
    "a loss by name": (
        {"criterion": None, "step_fn": lambda model, batch: {"loss": model(batch[0]).mean()}},
        "step_fn returned dict: return the loss, a scalar tensor, (loss, samples) or (loss, samples, metrics).",
    ),
    "a criterion to be trained": (
        {"criterion": Trained()},
        "criterion: Trained has trainable parameters, which are not the model's; make it a part of the model",
    ),
    "an optimizer that shards its state": (
        {"optimizer": ZeroRedundancyOptimizer},
        "ZeroRedundancyOptimizer has only a part of its state on each rank",
    ),
    "a figure that may be good or bad": (
        {"monitor": "oddness", "metrics": {"oddness": accuracy}},
        "monitor 'oddness': the name doesn't tell whether lower or higher values are better; pass mode='min' or 'max'.",
    ),
    "another mode": ({"mode": "low"}, "mode 'low': use 'min' if lower values of monitor are better, or 'max'."),
    "a plateau that looks the wrong way": (
        {"monitor": "accuracy", "metrics": {"accuracy": accuracy}, "scheduler": ReduceLROnPlateau},
        "scheduler: ReduceLROnPlateau has mode 'min', but of accuracy, higher values are better; create it with "
        "mode='max'.",
    ),
    "a scheduler with a step of its own": (
        {"scheduler": OwnSchedule()},
        "scheduler: OwnSchedule.step() needs arguments; pass an object whose step() passes them.",
    ),
    "a loss of nothing": (
        {"criterion": lambda output, target: torch.tensor(1.0)},
        "The loss does not depend on the trainable parameters of the model",
    ),
    "metrics without names": ({"metrics": [Mean()]}, "metrics: list has no names; pass a dictionary"),
    "a scheduler's class": ({"scheduler": StepLR}, "scheduler: the class StepLR is not a torch scheduler"),
    "another optimizer's scheduler": (
        {"scheduler": StepLR(torch.optim.SGD([torch.zeros(1)], lr=1.0), 1)},
        "scheduler: it changes another optimizer",
    ),
    "an unknown interval": ({"scheduler_interval": "batch"}, "scheduler_interval 'batch': use 'epoch' or 'step'."),
    "a plateau in each step": (
        {"scheduler": ReduceLROnPlateau, "scheduler_interval": "step"},
        "scheduler_interval 'step': ReduceLROnPlateau needs the metric of a whole epoch; use 'epoch'.",
    ),
    "an optimizer with a closure": (
        {"optimizer": torch.optim.LBFGS},
        "optimizer: LBFGS computes the loss several times per step",
    ),
    "a metric called loss": (
        {"metrics": {"loss": accuracy}},
        "metric 'loss': the engine has a figure of this name itself",
    ),
    "a metric called as the count of another one": (
        {"metrics": {"accuracy/count": accuracy}},
        "metric 'accuracy/count': the engine has a figure of this name itself",
    ),
    "a loss among the metrics of a step function": (
        {"criterion": None, "step_fn": lambda model, batch: (model(batch[0]).mean(), 1, {"loss": 2.0})},
        "metric 'loss': the engine has a figure of this name itself",
    ),
    "a callback that is a function": ({"callbacks": print}, "is not a TrainCallbacks; derive your class from it."),
    "a resume by number": ({"resume": 3}, "resume 3: use True, 'last', 'best' or the folder of a checkpoint."),
    "a resume from nowhere": ({"resume": "nowhere"}, "resume 'nowhere': it is not a complete checkpoint"),
    "an object with several values": (
        {"metrics": {"f": Values()}, "val_loader": DataLoader(points(), batch_size=16)},
        "metric 'f' computes a tensor of shape (3,), but the history has one number per epoch",
    ),
    "a metric without samples": (
        {"metrics": {"f": lambda output, target: torch.tensor(1.0)}},
        "metric 'f' returned Tensor without samples",
    ),
}


@pytest.mark.parametrize("name", REFUSALS)
def test_an_error_names_the_remedy(name, make_engine):
    changes, message = REFUSALS[name]
    engine = make_engine()
    options = {
        "train_loader": DataLoader(points(), batch_size=16),
        "optimizer": adamw(engine),
        "criterion": nn.CrossEntropyLoss(),
        "num_epochs": 1,
        **changes,
    }
    if isinstance(options["optimizer"], type):
        options["optimizer"] = options["optimizer"](engine.model.parameters())
    if options.get("scheduler") is ReduceLROnPlateau:
        options["scheduler"] = ReduceLROnPlateau(options["optimizer"])
    with pytest.raises(UserError) as caught:
        engine.train(options.pop("train_loader"), **options)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (lambda: nn.Sequential(nn.LazyLinear(2)), "model: its lazy modules have no shapes yet; run one batch"),
        (lambda: nn.Sequential(nn.Embedding(4, 2, sparse=True)), "model: 0 has sparse gradients"),
        (lambda: nn.Linear, "model: the class Linear is not a torch module"),
    ],
)
def test_a_model_that_can_not_be_trained_is_refused(model, message, make_engine):
    with pytest.raises(UserError, match=message):
        make_engine(model())


def test_a_generator_is_used_up_after_one_epoch(make_engine):
    engine = make_engine()
    batches = iter(DataLoader(points(), batch_size=16))
    with pytest.raises(UserError, match="it is used up after one epoch; pass a DataLoader"):
        engine.train(batches, optimizer=adamw(engine), criterion=nn.CrossEntropyLoss(), num_epochs=2)


def test_steps_that_are_not_finite_name_the_arguments_of_the_engine(make_engine):
    def step_fn(model, batch):
        return model(batch[0]).mean() * float("nan")

    with pytest.raises(UserError, match="lower the optimizer's lr, or pass use_amp=False"):
        train(make_engine(), num_epochs=9, criterion=None, step_fn=step_fn)


def test_an_unknown_monitor_is_refused_before_the_first_step(make_engine):
    norms = Norms()
    loader = DataLoader(points(), batch_size=16)
    with pytest.raises(UserError, match="'f1' is not among the metrics: train_loss, lr, val_loss, accuracy"):
        train(make_engine(), val_loader=loader, metrics={"accuracy": accuracy}, monitor="f1", callbacks=norms)
    assert not norms.values


def test_checkpoints_of_an_earlier_training_are_not_overwritten(make_engine):
    train(make_engine())
    with pytest.raises(UserError, match="pass resume=True"):
        train(make_engine())


def test_without_a_last_checkpoint_the_best_one_is_named(make_engine):
    train(make_engine(), save_last=False)
    with pytest.raises(UserError, match="pass resume='best' to continue it"):
        train(make_engine(), resume=True)
    assert train(make_engine(), resume="best", num_epochs=4).num_epochs == 4


@pytest.mark.parametrize(
    ("make_optimizer", "message"),
    [
        (torch.optim.SGD, "the checkpoint was saved with AdamW (1 parameter group), but the optimizer is SGD (1"),
        (lambda params: torch.optim.AdamW([{"params": [p]} for p in params]), "but the optimizer is AdamW (6"),
    ],
)
def test_a_checkpoint_of_another_optimizer_is_refused(make_optimizer, message, make_engine):
    train(make_engine())
    engine = make_engine()
    with pytest.raises(UserError) as caught:
        train(engine, optimizer=make_optimizer(engine.model.parameters()), num_epochs=4, resume=True)
    assert message in str(caught.value)


def test_a_checkpoint_of_another_model_is_refused(make_engine):
    other = make_engine(nn.Linear(4, 2).double())
    train(other, num_epochs=1)
    with pytest.raises(UserError, match="another model"):
        make_engine().load_state_dict(other.state_dict())
    with pytest.raises(UserError, match="another model"):
        train(make_engine(), resume=True)
    with pytest.raises(UserError, match=r"not what TrainingEngine\.state_dict returned"):
        make_engine().load_state_dict(other.model.state_dict())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"model": nn.Linear}, "model: the class Linear is not a torch module"),
        ({"device": "gpu"}, "device 'gpu': use 'cpu', 'cuda' or the number of a GPU"),
        ({"device": "cuda:99"}, "device 'cuda:99': PyTorch finds"),
        ({"backend": "mpi", "distributed": True}, "backend 'mpi': use 'nccl', 'gloo' or None"),
        ({"ema_decay": 2.0}, "ema_decay 2.0: it must be at least 0 and less than 1."),
        ({"world_size": 2}, "TrainingEngine(world_size=2): several ranks need distributed=True."),
    ],
)
def test_an_engine_that_can_not_be_made_names_the_argument(options, message, make_engine):
    with pytest.raises(UserError) as caught:
        make_engine(**options)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"train_fn": "train"}, "train_fn: str can't be called; pass a function."),
        ({"train_fn": print, "backend": "mpi"}, "backend 'mpi': use 'nccl', 'gloo' or None"),
        ({"train_fn": print, "world_size": 0}, "world_size 0: it must be at least 1."),
        ({"train_fn": print, "world_size": 3}, "world_size 3: 2 GPUs are there, which NCCL's ranks can't share"),
    ],
)
def test_a_launch_that_can_not_begin_names_the_argument(options, message, monkeypatch):
    gpus = [Gpu(index, "A", str(index), None, index) for index in range(2)]
    monkeypatch.setattr("modules.engine.launch.list_gpus", lambda: gpus)
    with pytest.raises(UserError) as caught:
        launch_distributed_training(**options)
    assert message in str(caught.value)


def test_predictions_of_a_model_that_returns_no_tensor_are_refused(make_engine):
    class Named(nn.Linear):
        def forward(self, inputs):
            return {"logits": super().forward(inputs)}

    engine = make_engine(Named(4, 2).double())
    with pytest.raises(UserError, match=r"^predict: the model returns .*; wrap it in one that returns a tensor\.$"):
        engine.predict(DataLoader(points(), batch_size=10))


def test_predictions_of_nothing_are_refused(make_engine):
    with pytest.raises(UserError, match="loader yields no batches"):
        make_engine().predict([])


def test_an_unsupported_precision_is_refused(make_engine):
    with pytest.raises(UserError, match=r"amp_dtype torch\.int8"):
        make_engine(use_amp=True, amp_dtype=torch.int8)


def test_history_keeps_values_that_are_not_finite(make_engine):
    engine = make_engine()
    history = train(engine, num_epochs=1, metrics={"nan": lambda output, target: (torch.tensor(math.nan), 1)})
    assert math.isnan(history["nan"][0])
    assert json.loads((engine.folder / "history.json").read_text())["values"]["nan"] == [None]
    assert train(make_engine(), num_epochs=2, resume=True).num_epochs == 2


def test_importing_the_public_names_does_not_import_torch():
    import modules.trainer as package

    assert {name for name in package.__all__ if callable(getattr(package, name))} == set(package.__all__)
    with pytest.raises(AttributeError):
        package.nothing  # noqa: B018
