"""Complete runs on an NVIDIA GPU with models so small that most of the time is start-up."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from modules.distributed.Runtime import Runtime
from modules.families.registry import FAMILIES
from modules.machine.devices import list_gpus
from modules.session.TrainCommands import TrainCommands
from modules.trainer.GenericTrainer import GenericTrainer
from scripts.gpu.cases import NotHere
from scripts.gpu.families import train_family
from tests.support.Recorder import Recorder

pytestmark = pytest.mark.gpu

SAMPLE = (
    "sampling.samples.0.prompt=a photo of a cat",
    "sampling.samples.0.width=32",
    "sampling.samples.0.height=32",
    "sampling.samples.0.steps=2",
)
SPARE_BYTES = 64 * 2**20


def test_the_driver_and_torch_count_the_gpus_alike():
    devices = map(torch.cuda.get_device_properties, range(torch.cuda.device_count()))
    assert [gpu.uuid.removeprefix("GPU-") for gpu in list_gpus()] == [str(device.uuid) for device in devices]


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
@pytest.mark.parametrize("family", FAMILIES)
def test_a_run_trains_validates_samples_and_saves(family, precision):
    if precision == "bf16" and not torch.cuda.is_bf16_supported(including_emulation=False):
        pytest.skip("this GPU does not compute in bfloat16")
    try:
        found = train_family(family, "cuda:0", precision)
    except NotHere as reason:
        pytest.skip(str(reason))
    assert found["problems"] == []


def test_the_gpu_gives_the_curve_of_the_cpu(make_config, tmp_path):
    curves = []
    for device in ("cpu", "cuda:0"):
        config = make_config(f"workspace_dir={tmp_path / device[:4]}", "max_steps=8", "model.mixed_precision=no")
        trainer = GenericTrainer(config, Recorder(), TrainCommands(), Runtime(torch.device(device)))
        trainer.start()
        trainer.train()
        trainer.end()
        curves.append(trainer.callbacks.losses)
    assert np.std(curves[0]) > 1e-3  # a flat curve would prove nothing
    assert curves[1] == pytest.approx(curves[0], rel=1e-2)  # up to the rounding of TF32


def test_a_run_goes_on_where_it_was_interrupted(make_config, train, tmp_path):
    """Up to rounding: GPU kernels may sum in a different order each time."""
    options = ("batch_size=2", "ema.enabled=true", "model.mixed_precision=no")
    whole = train(make_config(*options, "max_steps=6", f"workspace_dir={tmp_path / 'whole'}"))
    train(make_config(*options, "max_steps=3"))
    resumed = train(make_config(*options, "max_steps=6"), resume=True)
    assert resumed.callbacks.losses == pytest.approx(whole.callbacks.losses[3:], rel=1e-4)


def test_samples_that_do_not_fit_into_the_memory_do_not_end_the_run(make_config, start):
    settings = (*SAMPLE, "sampling.samples.0.width=4096", "sampling.samples.0.height=4096")
    trainer = start(make_config(*settings, "sampling.every=2", "sampling.unit=steps", "max_steps=5"))
    total = torch.cuda.get_device_properties(0).total_memory
    torch.cuda.set_per_process_memory_fraction((torch.cuda.memory_reserved(0) + SPARE_BYTES) / total, 0)
    try:
        trainer.train()
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0, 0)
    trainer.end()
    assert trainer.step == 5
    assert any("memory" in warning for warning in trainer.callbacks.warnings)


def test_compiled_blocks_train_on_pictures_of_several_sizes_and_sample(make_config, train):
    pytest.importorskip("triton", reason="torch compiles for GPUs with it")
    trainer = train(make_config("model.compile=blocks", "batch_size=4", "max_steps=6", "sampling.at_end=true", *SAMPLE))
    assert len(trainer.prepared.source.buckets.shapes) == 3
    assert np.isfinite(trainer.callbacks.losses).all()
    assert trainer.callbacks.samples


def test_an_8_bit_optimizer_trains_and_goes_on(make_config, train):
    pytest.importorskip("bitsandbytes", reason="an optional package")
    train(make_config("optimizer.name=adamw_8bit", "max_steps=2"))
    resumed = train(make_config("optimizer.name=adamw_8bit", "max_steps=4"), resume=True)
    assert resumed.step == 4
    assert np.isfinite(resumed.callbacks.losses).all()
