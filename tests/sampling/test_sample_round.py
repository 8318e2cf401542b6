"""A round generates together what fits in memory, and errors during it don't end the run."""

from __future__ import annotations

import contextlib
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from diffusers import UNet2DConditionModel
from PIL import Image

from modules.config.ModelConfig import ModelConfig
from modules.config.SampleConfig import SampleConfig
from modules.config.SamplingConfig import SamplingConfig
from modules.distributed.Runtime import Runtime
from modules.families.registry import FAMILIES
from modules.sampling import SampleRound as module
from modules.sampling.SamplePrompts import SamplePrompts
from modules.sampling.SampleRound import SampleRound
from modules.session.TrainCommands import TrainCommands
from modules.weights.BaseModel import BaseModel
from tests.support.Recorder import Recorder

ALLOCATOR = "[enforce fail at alloc_cpu.cpp:127] err == 0. DefaultCPUAllocator: can't allocate memory: you tried ..."


@pytest.fixture
def make(tmp_path, monkeypatch):
    """Returns a function that makes one sample, which fails with an error, and returns the recorded callbacks."""

    def make(error: Exception) -> Recorder:
        def fail(*arguments):
            raise error

        monkeypatch.setattr(module, "generate_images", fail)
        base = SimpleNamespace(config=SimpleNamespace(least_clip_skip=0), family=FAMILIES["sd15"])
        prompts = SimpleNamespace(
            base=base, encode=lambda batches, beat: None, pipeline=contextlib.nullcontext, one_at_a_time=False
        )
        settings = SamplingConfig(samples=[SampleConfig(prompt="a cat")])
        told = Recorder()
        sample_round = SampleRound(settings, prompts, Runtime(torch.device("cpu")), told, TrainCommands())
        sample_round.make(tmp_path, 1, contextlib.nullcontext)
        return told

    return make


@pytest.mark.parametrize("error", [torch.OutOfMemoryError(), MemoryError(), RuntimeError(ALLOCATOR)])
def test_running_out_of_memory_while_sampling_is_a_warning(error, make):
    told = make(error)
    assert [text.partition(":")[0] for text in told.warnings] == [
        "Not enough memory for the samples, even one at a time"
    ]


def test_other_errors_are_not_treated_as_out_of_memory(make):
    with pytest.raises(RuntimeError, match="size mismatch"):
        make(RuntimeError("size mismatch"))


# --- together or one at a time ----------------------------------------------------------------------------------------

MOST_ROWS = 2  # of the denoiser that fit in memory: an image, as guidance doubles it


@pytest.fixture
def make_round(tiny_sd15, tmp_path, monkeypatch):
    """Returns a function that makes a round of a cat, a dog of another size and a fox.

    It gives their pixels, the rows of each pass of the denoiser, and the warnings.
    """
    forward = UNet2DConditionModel.forward
    sizes = {"a cat": 32, "a dog": 40, "a fox": 32}
    samples = [SampleConfig(prompt, width=size, height=32, steps=2) for prompt, size in sizes.items()]

    def make(name: str, prompts: SamplePrompts, most_rows: int = 99):
        def limited(self, sample, *args, **kwargs):
            rows.append(len(sample))
            if len(sample) > most_rows:
                raise torch.OutOfMemoryError("CUDA out of memory.")
            return forward(self, sample, *args, **kwargs)

        rows: list[int] = []
        monkeypatch.setattr(UNet2DConditionModel, "forward", limited)
        told, folder = Recorder(), tmp_path / name
        sample_round = SampleRound(
            SamplingConfig(samples=samples), prompts, Runtime(torch.device("cpu")), told, TrainCommands()
        )
        sample_round.make(folder, 1, contextlib.nullcontext)
        files = sorted(folder.glob("*.png"))
        assert [file.name.split("_seed")[0] for file in files] == ["000_a cat", "001_a dog", "002_a fox"]
        return [np.asarray(Image.open(file), np.float32) / 255 for file in files], rows, told.warnings

    return make


@pytest.fixture
def prompts(tiny_sd15) -> SamplePrompts:
    return SamplePrompts(BaseModel(FAMILIES["sd15"], ModelConfig(base=str(tiny_sd15)), torch.device("cpu")))


def test_what_does_not_fit_together_is_the_same_one_at_a_time_and_is_not_tried_again(make_round, prompts):
    together, rows, warnings = make_round("together", prompts)
    assert (rows, warnings) == ([4, 4, 2, 2], [])  # the cat and the fox, then the dog
    alone, rows, warnings = make_round("alone", prompts, MOST_ROWS)
    assert rows == [4, *[2] * 6]
    assert [text.partition(":")[0] for text in warnings] == ["Not enough memory to generate 4 samples at once"]
    for one, other in zip(together, alone, strict=True):
        np.testing.assert_allclose(one, other, atol=0.005)
    _, rows, warnings = make_round("later", prompts, MOST_ROWS)
    assert (rows, warnings) == ([2] * 6, [])
