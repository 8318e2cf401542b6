from __future__ import annotations

import sys
from dataclasses import replace

import pytest

from modules.config.batch_size import scientific
from modules.config.errors import UserError
from modules.config.files import config_from_values
from modules.config.presets import ROOT
from modules.machine.devices import list_gpus
from modules.machine.Machine import Machine
from modules.machine.run_shape import run_shape, shape_lines
from tests.support.fake_nvml import eight_gpus


@pytest.fixture
def gpus(monkeypatch):
    monkeypatch.setitem(sys.modules, "pynvml", eight_gpus())
    return list_gpus({})


def multi_gpu(**values):
    return config_from_values({"enable_multi_gpu": True, "distributed_backend": "auto", **values})


def lines_of(config, ranks, samples=None):
    return dict(shape_lines(shape_on(config, ranks, samples), config))


def shape_on(config, ranks, samples=None):
    """The shape of a run on a number of ranks of each machine."""
    return run_shape(replace(config, world_size=ranks), Machine(cores=ranks), samples)


def messages(problems):
    return " ".join(problem.message for problem in problems)


def test_without_a_dataset_the_steps_are_not_said_to_be_counted():
    assert lines_of(multi_gpu(), 2)["Steps"] == "known once there is a folder of images"
    assert lines_of(multi_gpu(concepts=[{"path": "cats"}]), 2)["Steps"] == "the images are not counted yet"


def test_ranks_multiply_a_batch_size_per_device_and_scale_the_rate_by_its_rule():
    config = multi_gpu(batch_size=4, gradient_accumulation_steps=2, epochs=10)
    lines = lines_of(config, 4, samples=1000)
    assert lines["Processes"] == "4 on 1 machine"
    assert lines["Batch"] == "4 per device x 4 devices x 2 accumulation = 32 images a step"
    assert lines["Steps"] == "1,000 samples: 32 steps an epoch x 10 epochs = 320 steps (one device: 1,250)"
    limited = lines_of(replace(config, max_steps=100), 4, samples=1000)
    assert limited["Steps"].startswith(
        "1,000 samples: 32 steps an epoch x 10 epochs = 320 steps, limited to 100 by Max steps"
    )
    assert lines["Learning rate"] == "1e-4 x sqrt(4) = 2e-4"


def test_the_rate_before_and_after_is_shown_for_each_part_that_trains():
    values = {"text_encoder": {"train": True, "learning_rate": 1e-5}, "lr_scaling": "linear"}
    text = lines_of(multi_gpu(**values), 3)["Learning rate"]
    assert text == "denoiser 1e-4 x 3 = 3e-4; text encoder 1e-5 x 3 = 3e-5"


@pytest.mark.parametrize(
    ("values", "why"),
    [
        ({"batch_size_mode": "global", "batch_size": 8}, "global batch"),
        ({"optimizer": {"name": "prodigy", "learning_rate": 1.0}}, "prodigy finds its own step"),
        ({"lr_scaling": "none"}, "rule: none"),
    ],
)
def test_a_rate_that_stays_is_shown_with_the_reason(values, why):
    text = lines_of(multi_gpu(**values), 4)["Learning rate"]
    assert "unchanged" in text
    assert why in text


def test_ranks_share_a_global_batch_and_the_steps_stay_those_of_one_device():
    shape = shape_on(multi_gpu(batch_size=32, batch_size_mode="global", epochs=1), 4, 100)
    assert (shape.local_batch, shape.batch, shape.batch_on_one) == (8, 32, 32)
    assert shape.steps == shape.steps_on_one == 4


def test_machines_multiply_the_ranks():
    shape = shape_on(multi_gpu(num_nodes=2, master_addr="10.0.0.1"), 8)
    assert (shape.num_ranks, shape.ranks_per_node) == (16, 8)


@pytest.mark.parametrize(
    ("rates", "shown"),
    [
        ([], [("denoiser", 1e-4), ("text encoder", 1e-5)]),
        ([3e-5], [("denoiser", 1e-4), ("text encoder 1", 3e-5), ("text encoder", 1e-5)]),
        ([3e-5, 2e-5], [("denoiser", 1e-4), ("text encoder 1", 3e-5), ("text encoder 2", 2e-5)]),
    ],
)
def test_the_rates_of_text_encoders_are_shown_one_by_one(rates, shown):
    text = {"train": True, "learning_rate": 1e-5, "learning_rates": rates}
    shape = shape_on(config_from_values({"family": "sdxl", "text_encoder": text}), 1)
    assert [(rate.part, rate.before) for rate in shape.rates] == shown


def test_max_steps_ends_the_epochs():
    assert shape_on(multi_gpu(max_steps=7), 2, 1000).steps == 7


def test_without_multi_gpu_one_device_trains_whatever_else_is_set(gpus):
    config = config_from_values({"num_nodes": 3, "device_indexes": [4, 5]})
    shape = run_shape(config, Machine(tuple(gpus), cores=8))
    assert shape.num_ranks == 1
    assert [gpu.index for gpu in shape.gpus] == [4]


@pytest.mark.parametrize("is_multi", [False, True])
def test_a_gpu_that_is_not_there_is_refused_with_one_device_too(is_multi, gpus):
    config = config_from_values({"enable_multi_gpu": is_multi, "device_indexes": [9]})
    with pytest.raises(UserError, match=r"device_indexes \[9\]: only 0 to 7 exist"):
        run_shape(config, Machine(tuple(gpus), cores=8))


def test_the_page_about_several_gpus_has_the_numbers_that_are_calculated():
    page = (ROOT / "docs" / "multi_gpu.md").read_text(encoding="utf-8")
    settings = multi_gpu(batch_size=4, gradient_accumulation_steps=2, epochs=10)
    for ranks in (1, 2, 4, 8):
        shapes = [shape_on(replace(settings, lr_scaling=rule), ranks, 800) for rule in ("sqrt", "linear", "none")]
        rates = " | ".join(scientific(shape.rates[0].after) for shape in shapes)
        assert f"\n| {ranks} | 4 x {ranks} x 2 = {shapes[0].batch} | {shapes[0].steps:,} | {rates} |\n" in page
        shape = shape_on(replace(settings, batch_size=32, batch_size_mode="global"), ranks, 800)
        rate = scientific(shape.rates[0].after)
        assert f"\n| {ranks} | {shape.batch} | {shape.local_batch:g} | {shape.steps} | {rate} |\n" in page
