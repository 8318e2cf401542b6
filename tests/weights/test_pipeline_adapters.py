"""LoRAs of pipelines for which diffusers has no loader."""

from __future__ import annotations

import pytest
import torch
from diffusers import DiffusionPipeline
from peft import LoraConfig
from peft.tuners.tuners_utils import BaseTunerLayer

from modules.weights.errors import WeightsError
from modules.weights.load_pipeline import load_pipeline
from modules.weights.lora_files import AdaptedModel, load_lora, save_lora
from modules.weights.pipeline_adapters import add_adapter
from modules.weights.safe import load_tensors, save_tensors
from tests.support.short_training import load_into_model

BY_PEFT, BY_MODEL = "pixart_sigma", "ovis_image"  # of which only the second one's model loads adapters


def pipeline(folder, kind=DiffusionPipeline):
    return kind.from_pretrained(folder)


def written_lora(pipe, file, seed=0, **options):
    """The file of a LoRA with random weights, which the pipeline then has."""
    torch.manual_seed(seed)
    targets = ["to_q", "to_v", "net.2"]
    config = LoraConfig(r=3, lora_alpha=7, target_modules=targets, init_lora_weights=False, **options)
    add_adapter(pipe.transformer, config, "default")
    (saved,) = save_lora(file, AdaptedModel({"transformer": pipe.transformer}, type(pipe)))
    return saved


def differences(model):
    """Path -> what the active adapters add to the weight of a layer."""
    layers = {path: layer for path, layer in model.named_modules() if isinstance(layer, BaseTunerLayer)}
    return {path: sum(layer.get_delta_weight(name) for name in layer.active_adapters) for path, layer in layers.items()}


def assert_equal(found, expected):
    assert found.keys() == expected.keys()
    assert all(torch.allclose(found[path], expected[path], atol=1e-6) for path in expected)


@pytest.mark.parametrize("family", [BY_PEFT, BY_MODEL])
def test_a_saved_lora_is_the_same_in_a_plain_model_and_in_ours(family, tiny_model, tmp_path):
    trained, plain, ours = (pipeline(tiny_model(family)) for _ in range(3))
    file = written_lora(trained, tmp_path / "x", rank_pattern={"to_v": 2}, alpha_pattern={"to_v": 5})
    expected = differences(trained.transformer)
    assert len(expected) > 2
    load_into_model(plain.transformer, file)
    assert_equal(differences(plain.transformer), expected)
    load_lora(ours, file)
    assert_equal(differences(ours.transformer), expected)


@pytest.mark.parametrize("family", [BY_PEFT, BY_MODEL])
def test_several_loras_are_active_each_at_its_strength(family, tiny_model, tmp_path):
    files, alone = [], []
    for seed in range(2):
        pipe = pipeline(tiny_model(family))
        files.append(written_lora(pipe, tmp_path / str(seed), seed))
        alone.append(differences(pipe.transformer))
    strengths = (0.5, -2.0)
    pipe = load_pipeline(
        str(tiny_model(family)), dict(zip(map(str, files), strengths, strict=True)), torch.device("cpu")
    )
    expected = {path: strengths[0] * alone[0][path] + strengths[1] * alone[1][path] for path in alone[0]}
    assert_equal(differences(pipe.transformer), expected)


def test_a_file_with_more_than_plain_loras_is_refused(tiny_model, tmp_path):
    pipe = pipeline(tiny_model(BY_PEFT))
    file = written_lora(pipeline(tiny_model(BY_PEFT)), tmp_path / "x")
    tensors = load_tensors(file)
    bias = next(iter(tensors)).replace(".lora_A.weight", ".lora_B.bias")
    save_tensors(file, {**tensors, bias: torch.ones(4)})
    with pytest.raises(WeightsError, match=r"x\.safetensors': has more than plain LoRAs, such as 'transformer\."):
        load_lora(pipe, file)
    assert not hasattr(pipe.transformer, "peft_config")
