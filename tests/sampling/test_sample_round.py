"""Errors during sampling that don't end the run."""

from __future__ import annotations

import contextlib
from types import SimpleNamespace

import pytest
import torch

from modules.config.SampleConfig import SampleConfig
from modules.config.SamplingConfig import SamplingConfig
from modules.distributed.Runtime import Runtime
from modules.sampling import SampleRound as module
from modules.sampling.SampleRound import SampleRound
from modules.session.TrainCommands import TrainCommands
from tests.support.Recorder import Recorder

ALLOCATOR = "[enforce fail at alloc_cpu.cpp:127] err == 0. DefaultCPUAllocator: can't allocate memory: you tried ..."


@pytest.fixture
def make(tmp_path, monkeypatch):
    """Returns a function that makes one sample, which fails with an error, and returns the recorded callbacks."""

    def make(error: Exception) -> Recorder:
        def fail(*arguments):
            raise error

        monkeypatch.setattr(module, "generate_images", fail)
        base = SimpleNamespace(config=SimpleNamespace(least_clip_skip=0))
        prompts = SimpleNamespace(base=base, encode=lambda batches, beat: None, pipeline=contextlib.nullcontext)
        settings = SamplingConfig(samples=[SampleConfig(prompt="a cat")])
        told = Recorder()
        sample_round = SampleRound(settings, prompts, Runtime(torch.device("cpu")), told, TrainCommands())
        sample_round.make(tmp_path, 1, contextlib.nullcontext())
        return told

    return make


@pytest.mark.parametrize("error", [torch.OutOfMemoryError(), MemoryError(), RuntimeError(ALLOCATOR)])
def test_running_out_of_memory_while_sampling_is_a_warning(error, make):
    told = make(error)
    assert [text.partition(":")[0] for text in told.warnings] == ["Not enough memory for the samples"]


def test_other_errors_are_not_treated_as_out_of_memory(make):
    with pytest.raises(RuntimeError, match="size mismatch"):
        make(RuntimeError("size mismatch"))
