"""Models that diffusers has as blocks only: their folders have another index, and are read and written as they are."""

from __future__ import annotations

import json
import shutil

import diffusers
import pytest
import torch

from modules.config.model_index import MODULAR_INDEX
from modules.families.registry import FAMILIES
from modules.methods.registry import METHODS
from modules.trainer.sampling import ImageRequest, run_pipeline
from modules.ui.models.base_model import base_bytes, examine_base
from modules.weights.errors import WeightsError
from modules.weights.inspect import check_base
from modules.weights.load_pipeline import load_pipeline
from tests.support.prepared import prepared

REQUEST = ImageRequest("a cat", "the sky", 3, 48, 32, steps=2, guidance=3.0)


@pytest.fixture
def folder(tiny_model):
    return tiny_model("anima")


def picture_of_blocks(folder):
    """What diffusers' own blocks make."""
    blocks = diffusers.ModularPipeline.from_pretrained(str(folder))
    blocks.load_components()
    blocks.update_components(guider=diffusers.ClassifierFreeGuidance(guidance_scale=REQUEST.guidance))
    blocks.set_progress_bar_config(disable=True)
    return blocks(
        prompt=["a cat"],
        negative_prompt=["the sky"],
        width=48,
        height=32,
        num_inference_steps=2,
        generator=[torch.Generator().manual_seed(3)],
        output="images",
    )[0]


def test_our_pipeline_makes_the_image_of_diffusers_blocks(folder):
    pipe = load_pipeline(str(folder), {}, torch.device("cpu"))  # patches what the blocks need, too
    (ours,) = run_pipeline(pipe, [REQUEST])
    assert ours.tobytes() == picture_of_blocks(folder).tobytes()
    assert len(set(ours.tobytes())) > 50


def test_a_saved_model_is_read_by_diffusers_blocks(folder, tmp_path):
    base, config = prepared(folder, "full", "anima", model={"channels_last": False}, output={"format": "diffusers"})
    with torch.no_grad():
        for param in base.module("transformer").parameters():
            param.mul_(1.1)
    (saved,) = METHODS["full"].save(base, config, tmp_path, "x", {})
    (ours,) = run_pipeline(load_pipeline(str(saved), {}, torch.device("cpu")), [REQUEST])
    moved = shutil.move(saved, tmp_path / "moved")
    assert picture_of_blocks(moved).tobytes() == ours.tobytes() != picture_of_blocks(folder).tobytes()
    assert str(tmp_path) not in (moved / MODULAR_INDEX).read_text()


def test_a_folder_is_known_by_its_index_and_missing_parts_are_named(folder, tmp_path):
    info = check_base(str(folder), FAMILIES["anima"])
    assert (info.pipeline, info.detail) == ("AnimaModularPipeline", "an Anima model")
    assert examine_base(str(folder))[0].startswith("A diffusers folder: AnimaModularPipeline, ")
    assert base_bytes(str(folder)) == sum(file.stat().st_size for file in folder.rglob("*.safetensors"))
    lacking = shutil.copytree(folder, tmp_path / "lacking")
    shutil.rmtree(lacking / "t5_tokenizer")
    with pytest.raises(WeightsError, match="lacks the folder 't5_tokenizer'"):
        check_base(str(lacking), FAMILIES["anima"])
    index = json.loads((lacking / MODULAR_INDEX).read_text())
    index.pop("vae")
    index.pop("t5_tokenizer")
    (lacking / MODULAR_INDEX).write_text(json.dumps(index))
    with pytest.raises(WeightsError, match="has no vae, which Anima needs"):
        check_base(str(lacking), FAMILIES["anima"])
