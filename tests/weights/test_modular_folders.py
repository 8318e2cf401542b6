"""Models that diffusers has as blocks only: their folders have another index, and are read and written as they are."""

from __future__ import annotations

import json
import shutil

import diffusers
import numpy as np
import pytest
import torch

from modules.config.model_index import MODULAR_INDEX, read_model_index
from modules.families.registry import FAMILIES
from modules.methods.registry import METHODS
from modules.sampling.generation import ImageRequest, run_pipeline
from modules.ui.models.base_model import base_bytes, examine_base
from modules.weights.errors import WeightsError
from modules.weights.inspect import check_base
from modules.weights.load_pipeline import load_pipeline
from modules.weights.processors import load_processors
from modules.weights.safe import load_tensors
from tests.support.prepared import prepared

REQUEST = ImageRequest("a cat", "the sky", 3, 48, 32, steps=2, guidance=3.0)
WITHOUT_UPSAMPLER = {"anima": False, "flux3": True}  # whether a block has to go that rewrites prompts


@pytest.fixture
def folder(tiny_model):
    return tiny_model("anima")


def picture_of_blocks(folder, family):
    """What diffusers' own blocks make. FLUX.3's take one prompt."""
    pipeline = diffusers.ModularPipeline.from_pretrained(str(folder))
    if WITHOUT_UPSAMPLER[family]:
        blocks = pipeline.blocks
        blocks.sub_blocks.pop("prompt_upsampler")
        pipeline = blocks.init_pipeline(str(folder))
    processors = load_processors(folder, read_model_index(folder))  # which diffusers would only load with torchvision
    names = [name for name in pipeline.pretrained_component_names if name not in processors]
    pipeline.load_components(names)
    guider = diffusers.ClassifierFreeGuidance(guidance_scale=REQUEST.guidance)
    pipeline.update_components(guider=guider, **processors)
    pipeline.set_progress_bar_config(disable=True)
    prompts = {"prompt": REQUEST.prompt, "negative_prompt": REQUEST.negative_prompt}
    return pipeline(
        **{name: text if family == "flux3" else [text] for name, text in prompts.items()},
        width=48,
        height=32,
        num_inference_steps=2,
        generator=[torch.Generator().manual_seed(3)],
        output="images",
    )[0]


def our_image(folder):
    (image,) = run_pipeline(load_pipeline(str(folder), {}, torch.device("cpu")), [REQUEST])
    return image


def difference(one, other):
    """The largest of two images, in 1/255. 1 is a value at the edge of rounding: matrix products may depend in the last
    bit on where weights lie, which differs by the file and by who has read it."""
    return np.abs(np.asarray(one, int) - np.asarray(other, int)).max()


@pytest.mark.parametrize("family", WITHOUT_UPSAMPLER)
def test_our_pipeline_makes_the_image_of_diffusers_blocks(family, tiny_model):
    ours = our_image(tiny_model(family))  # loading it patches what the blocks need, too
    assert difference(ours, picture_of_blocks(tiny_model(family), family)) <= 1
    assert len(set(ours.tobytes())) > 50


@pytest.mark.parametrize("family", WITHOUT_UPSAMPLER)
def test_a_saved_model_is_read_by_diffusers_blocks(family, tiny_model, tmp_path):
    folder = tiny_model(family)
    base, config = prepared(folder, "full", family, model={"channels_last": False}, output={"format": "diffusers"})
    with torch.no_grad():
        for param in base.module("transformer").parameters():
            param.mul_(1.1)
    (saved,) = METHODS["full"].save(base, config, tmp_path, "x", {})
    ours = our_image(saved)
    moved = shutil.move(saved, tmp_path / "moved")
    assert difference(ours, picture_of_blocks(moved, family)) <= 1
    assert difference(ours, picture_of_blocks(folder, family)) > 1
    assert str(tmp_path) not in (moved / MODULAR_INDEX).read_text()


def test_flux3_needs_no_scheduler_no_upsampler_and_no_class_of_its_processor(tiny_model, tmp_path):
    """diffusers' blocks make the scheduler themselves, and the index may leave it to the files which class it is."""
    folder = shutil.copytree(tiny_model("flux3"), tmp_path / "published")
    index = json.loads((folder / MODULAR_INDEX).read_text())
    index["tokenizer"][2]["type_hint"] = ["transformers", "AutoProcessor"]
    index["prompt_upsampler"][2]["pretrained_model_name_or_path"] = "someone/upsampler"
    (folder / MODULAR_INDEX).write_text(json.dumps(index))
    assert read_model_index(folder).keys() & {"scheduler", "prompt_upsampler"} == set()
    assert our_image(folder).tobytes() == our_image(tiny_model("flux3")).tobytes()
    base, config = prepared(folder, "full", "flux3", output={"format": "diffusers"})
    assert base.pipe.scheduler.config.shift == diffusers.Flux3AutoBlocks().init_pipeline().scheduler.config.shift > 1
    (saved,) = METHODS["full"].save(base, config, tmp_path, "x", {})
    assert difference(our_image(saved), our_image(folder)) <= 1


def test_a_lora_of_minimax_h3_gives_diffusers_blocks_our_clip(tiny_model, tmp_path):
    """The folder has both transformers, as the published one: the LoRA is of the first, and says so."""
    folder = shutil.copytree(tiny_model("minimax_h3"), tmp_path / "published")
    shutil.copytree(folder / "transformer", folder / "transformer_ref")
    index = json.loads((folder / MODULAR_INDEX).read_text())
    for part, entry in index.items():
        if isinstance(entry, list):
            entry[2] |= {"pretrained_model_name_or_path": str(folder), "subfolder": part}
    kind = index["transformer"]
    index["transformer_ref"] = [*kind[:2], {**kind[2], "subfolder": "transformer_ref"}]
    (folder / MODULAR_INDEX).write_text(json.dumps(index))
    options = {"lora": {"rank": 4, "alpha": 10.0}, "output": {"format": "diffusers"}}
    base, config = prepared(folder, "lora", "minimax_h3", **options)
    with torch.no_grad():
        for param in base.module("transformer").parameters():
            param.add_(0.05 * param.requires_grad)
    assert "transformer_ref" not in base.component_names
    (file,) = METHODS["lora"].save(base, config, tmp_path, "x", {})
    assert {name.split(".")[0] for name in load_tensors(file)} == {"transformer"}

    processors = load_processors(folder, read_model_index(folder))
    blocks = diffusers.ModularPipeline.from_pretrained(str(folder), workflow="t2va")
    blocks.load_components([name for name in blocks.pretrained_component_names if name not in processors])
    blocks.update_components(**processors)
    assert getattr(blocks, "transformer_ref", None) is None
    blocks.set_progress_bar_config(disable=True)
    request = {"prompt": "a cat", "width": 64, "height": 32, "num_frames": 124, "output_type": "pt"}

    def theirs():  # 5 seconds are the shortest that they make
        generator = torch.Generator().manual_seed(3)
        return blocks(**request, num_inference_steps=3, generator=generator, output="videos")

    without = theirs()
    blocks.load_lora_weights(str(file.parent), weight_name=file.name)
    base.require(*base.component_names)
    base.pipe.set_progress_bar_config(disable=True)
    base.module("transformer").eval()
    ours = base.pipe(**request, num_inference_steps=2, generator=torch.Generator().manual_seed(3)).frames
    assert ours.shape == (1, 124, 3, 32, 64)
    assert (ours - theirs()).abs().max() <= 1e-4
    assert (ours - without).abs().max() > 1e-3


def test_a_distilled_flux3_is_refused(tiny_model, tmp_path):
    folder = shutil.copytree(tiny_model("flux3"), tmp_path / "distilled")
    config = json.loads((folder / "transformer" / "config.json").read_text())
    (folder / "transformer" / "config.json").write_text(json.dumps({**config, "flow_map": True}))
    with pytest.raises(WeightsError, match=r"a distilled FLUX.3.*choose another FLUX.3"):
        prepared(folder, "lora", "flux3")


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
