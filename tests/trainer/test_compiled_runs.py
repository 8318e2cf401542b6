"""Runs with compiled blocks, from start to end."""

from __future__ import annotations

import shutil

import pytest
import torch

from modules.weights.safe import load_tensors
from tests.support.fitted_kernels import fitted


@pytest.fixture
def compiler():
    """Forgets, when called, what is compiled, as a new process has."""
    with torch.compiler.set_stance(force_backend=fitted):
        torch._dynamo.reset()
        yield torch._dynamo.reset
    torch._dynamo.reset()


def test_a_resumed_run_with_compiled_blocks_ends_bit_for_bit_as_one_without_a_break(
    compiler, make_config, train, tiny_model
):
    """Though it resumes with another size than the first, and kernels depend on the size that they are made for."""
    base = ("family=flux1", f"model.base={tiny_model('flux1')}", "data.bucket_step=16", "batch_size=6")
    settings = ("model.compile=blocks", "model.compile_sizes=all", "backup.every=1", "backup.unit=steps")
    config = make_config(*base, *settings, "max_steps=2")
    whole = train(config)
    expected = load_tensors(whole.run_folder.models_dir / "model.safetensors")
    assert [info.samples for info in whole.callbacks.steps] == [6, 5]
    newest, *_ = whole.backups.paths()
    shutil.rmtree(newest)
    compiler()
    resumed = train(config, resume=True)
    assert resumed.callbacks.losses == whole.callbacks.losses[1:]
    own = load_tensors(resumed.run_folder.models_dir / "model.safetensors")
    assert all(torch.equal(own[name], expected[name]) for name in expected)
