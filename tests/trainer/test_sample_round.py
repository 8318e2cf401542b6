"""What becomes of a run where its samples don't fit into the GPU's memory."""

from __future__ import annotations

import weakref

import pytest
import torch

SAMPLE = (
    "sampling.samples.0.prompt=a photo of a cat",
    "sampling.samples.0.width=32",
    "sampling.samples.0.height=32",
    "sampling.samples.0.steps=1",
)


@pytest.mark.parametrize("kind", [torch.OutOfMemoryError, torch.AcceleratorError])
def test_samples_that_do_not_fit_are_a_warning_and_what_they_held_is_given_back(kind, make_config, start, monkeypatch):
    def fail(*arguments):
        latents = torch.zeros(8)
        held.append(weakref.ref(latents))
        raise kind("CUDA error: out of memory")

    held, freed = [], []
    monkeypatch.setattr("modules.trainer.SampleRound.make_pictures", fail)
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: freed.append(held[0]() is None))
    trainer = start(make_config(*SAMPLE))
    trainer.sample()
    assert freed == [True]
    assert [text for text in trainer.callbacks.warnings if "lower sampling.batch_size" in text]
