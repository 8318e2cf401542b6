"""Samples of a run's saved model, after its end."""

from pathlib import Path

from modules.config.ModelConfig import DENOISER_SETTINGS, ModelConfig
from modules.trainer.sample_model import as_saved


def test_a_saved_model_is_sampled_with_what_it_has_learned_and_not_with_the_parts_it_began_with():
    parts = ("vae", *(path.removeprefix("model.") for path in DENOISER_SETTINGS))
    given = {name: f"{name}.safetensors" for name in parts}
    model = as_saved(ModelConfig(base="base", **given), Path("models/my"))
    assert model == ModelConfig(base="models/my")
