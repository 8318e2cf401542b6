"""The presets train, on tiny models of their families."""

from __future__ import annotations

import numpy as np
import pytest

from modules.config.files import apply_overrides, config_from_values
from modules.config.presets import list_presets, load_preset

# Of the changes by memory each kind once: accumulation, bfloat16 weights with Adafactor, checkpointing of the VAE.
VARIANTS = ("sdxl-lora-8gb", "sd15-full-8gb", "sd15-vae-8gb")
NAMES = [*(preset.name for preset in list_presets() if preset.name != "demo"), *VARIANTS]
SMALL = ("max_steps=5", "data.resolution=32", "data.bucket_step=16", "output.format=diffusers", "tensorboard=false")
WORD = ("embeddings.0.placeholder=number", "embeddings.0.initial_text=dog")  # "number" is in the default captions


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_five_steps_of_a_preset_train(name, train, picture_folder, tmp_path, request):
    values = load_preset(name)
    paths = {
        "workspace_dir": tmp_path / "run",
        "cache_dir": tmp_path / "cache",
        "model.base": request.getfixturevalue(f"tiny_{values['family']}"),
        "concepts.0.path": picture_folder(),
    }
    changes = [f"{path}={value}" for path, value in paths.items()]
    words = WORD if values["method"] == "embedding" else ()
    trainer = train(config_from_values(apply_overrides(values, [*changes, *SMALL, *words]), name))
    assert trainer.step == 5
    assert np.isfinite(trainer.callbacks.losses).all()
    assert trainer.callbacks.saved
