"""Complete runs of families with several text encoders: they train, resume exactly and sample."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

MODELS = {"sdxl": "tiny_sdxl", "sdxl v": "tiny_sdxl_v", "sd35 without T5": "tiny_sd35"}
METHODS = {
    "lora": ("method=lora", "text_encoder.train=true", "lora.targets=linear"),
    "full": ("method=full", "text_encoder.train=true", "optimizer.learning_rate=0.0001"),
}


def settings(model, request):
    family = "sdxl" if model.startswith("sdxl") else "sd3"
    return f"family={family}", f"model.base={request.getfixturevalue(MODELS[model])}", "data.bucket_step=16"


# Each once: test_resume.py resumes both methods to the bit.
@pytest.mark.parametrize(("model", "method"), [("sdxl", "lora"), ("sd35 without T5", "full")])
def test_a_run_that_was_interrupted_goes_on_exactly(model, method, make_config, train, tmp_path, request):
    options = (*settings(model, request), *METHODS[method], "batch_size=2", "data.resolution=32")
    whole = train(make_config(*options, "max_steps=4", f"workspace_dir={tmp_path / 'whole'}"))
    train(make_config(*options, "max_steps=2"))
    resumed = train(make_config(*options, "max_steps=4"), resume=True)
    assert resumed.step == 4
    assert whole.loop.trainable.keys() == resumed.loop.trainable.keys()
    assert {name.split(".")[0] for name in whole.loop.trainable} >= {"text_encoder", "text_encoder_2"}
    different = [n for n, value in whole.loop.trainable.items() if not torch.equal(value, resumed.loop.trainable[n])]
    assert different == []


@pytest.mark.parametrize("model", MODELS)
def test_cached_text_gives_the_steps_of_text_that_is_encoded_in_them(model, make_config, start, request, tmp_path):
    """With frozen text encoders, both ways must give the denoiser the same inputs."""
    options = (*settings(model, request), "batch_size=2", "data.caption_dropout=0")
    trainer = start(make_config(*options))
    step = next(trainer._steps())
    batch = step.micro_batches[0]
    assert batch.text is not None
    assert ("sizes" in batch.given) == model.startswith("sdxl")
    trainer.prepared.base.require(*trainer.prepared.base.family.text_components)
    with torch.no_grad():
        cached, _, _ = trainer.loop.model(batch)
        encoded, _, _ = trainer.loop.model(replace(batch, text=None))
    assert torch.allclose(cached, encoded, rtol=1e-5)
