"""Training a model that paints a part of an image: on several ranks, resumed, and in samples and files."""

from pathlib import Path

import diffusers
import numpy as np
import pytest
import torch
from diffusers import StableDiffusionInpaintPipeline
from PIL import Image

from modules.config.files import save_config
from modules.families.registry import FAMILIES
from modules.sampling.generation import ImageRequest, generate_images, run_pipeline
from modules.weights.errors import WeightsError
from modules.weights.lora_files import load_lora
from modules.weights.single_file import save_single_file
from scripts import sample
from tests.families.test_conformance import load_pipe
from tests.support import rank_scenarios
from tests.support.RankPool import run_alone
from tests.support.short_training import load_plainly

FAMILY = FAMILIES["sd15_inpaint"]


@pytest.fixture
def run(tiny_model):
    base = f"model.base={tiny_model('sd15_inpaint')}"
    return ("family=sd15_inpaint", base, "data.inpainting_variants=2", "max_steps=6")


@pytest.fixture
def image(tmp_path):
    Image.effect_noise((32, 48), 80).convert("RGB").save(tmp_path / "image.png")
    return tmp_path / "image.png"


@pytest.mark.parametrize("family", ["sd15_inpaint", "flux1_fill"])
def test_two_ranks_equal_one_and_masks_change_what_is_learned(
    make_config, run, two_ranks, tiny_model, tmp_path, family
):
    run = (*run, f"family={family}", f"model.base={tiny_model(family)}", "data.bucket_step=16")

    def settings(name, *overrides):
        options = (f"workspace_dir={tmp_path / name}", "batch_size=4", "batch_size_mode=global", "backup.at_end=false")
        save_config(make_config(*run, *options, *overrides), tmp_path / f"{name}.yaml")
        return {"config": str(tmp_path / f"{name}.yaml")}

    alone = run_alone(rank_scenarios.train, **settings("one"))
    first, second = two_ranks.run(rank_scenarios.train, **settings("two"))
    whole = run_alone(rank_scenarios.train, **settings("whole", "data.inpainting_whole=1"))
    assert first["digest"] == second["digest"]
    assert first["losses"] == pytest.approx(alone["losses"], rel=1e-4)
    assert whole["losses"] != pytest.approx(alone["losses"], rel=1e-4)


def test_a_resumed_run_draws_the_masks_of_an_undisturbed_one(make_config, run, train, tmp_path):
    whole = train(make_config(*run, f"workspace_dir={tmp_path / 'whole'}"))
    train(make_config(*run, "max_steps=3"))
    resumed = train(make_config(*run), resume=True)
    assert resumed.step == 6
    assert resumed.callbacks.losses == whole.callbacks.losses[3:]


def test_a_saved_lora_paints_the_same_in_a_plain_pipeline(make_config, run, train, tiny_model, image, tmp_path):
    mask = Image.new("L", (32, 48))
    mask.paste(255, (4, 4, 20, 30))
    mask.save(tmp_path / "image-mask.png")  # beside the image
    trainer = train(make_config(*run, "backup.at_end=false", "optimizer.learning_rate=0.02"))
    request = ImageRequest("a cat", "", 3, 32, 48, steps=2, guidance=3.0, references=(str(image),))
    with trainer.prepared.base.using(*trainer.prepared.base.component_names) as pipe:
        (ours,) = run_pipeline(pipe, [request])
    plain = load_pipe(FAMILY, str(tiny_model("sd15_inpaint")))

    def painted():
        generator = torch.Generator().manual_seed(3)
        size = {"width": 32, "height": 48, "num_inference_steps": 2, "guidance_scale": 3.0}
        images = {"image": Image.open(image), "mask_image": mask}
        return np.asarray(plain(prompt="a cat", generator=generator, **size, **images).images[0], int)

    untrained = painted()
    load_plainly(plain, trainer.callbacks.saved[0])
    assert np.abs(painted() - np.asarray(ours, int)).max() <= 1
    assert np.abs(untrained - np.asarray(ours, int)).max() > 2


def test_a_sample_does_not_paint_in_an_image_that_is_left_out(make_config, run, train):
    samples = "sampling.samples=[{width: 32, height: 32, steps: 1, guidance: 1}]"
    config = make_config(*run, "max_steps=1", "backup.at_end=false", "sampling.at_start=true", samples)
    damaged = Path(config.concepts[0].path) / "000.png"
    damaged.write_bytes(damaged.read_bytes()[:60])
    config.data.max_unreadable_share = 0.5
    trainer = train(config)
    (sample,) = trainer.prepared.sampling.samples
    assert sample.reference == str(damaged.with_name("001.png"))
    assert sample.prompt == damaged.with_name("001.txt").read_text(encoding="utf-8")


def test_a_lora_of_the_model_without_a_mask_fits(make_config, run, train, tiny_model, tmp_path):
    (made, *_) = train(make_config("max_steps=1", "backup.at_end=false")).callbacks.saved
    load_lora(load_pipe(FAMILY, str(tiny_model("sd15_inpaint"))), made)
    resumed = train(make_config(*run, f"lora.start_from={made}", f"workspace_dir={tmp_path / 'further'}"))
    assert resumed.step == 6


def test_a_mask_says_where_a_sample_is_painted(tiny_model, image, tmp_path):
    pipe, seen = load_pipe(FAMILY, str(tiny_model("sd15_inpaint"))), []
    pipe.unet.register_forward_pre_hook(lambda module, args: seen.append(args[0][0, 4]))
    Image.new("L", (32, 48), 0).save(tmp_path / "black.png")
    with_alpha = Image.open(image).convert("RGBA")
    with_alpha.putalpha(255)
    with_alpha.save(tmp_path / "alpha.png")

    def shown(*references, mask=""):
        request = ImageRequest("a cat", "", 3, 32, 48, steps=1, guidance=1.0, references=references, mask=mask)
        list(generate_images(pipe, [request], 1))
        return seen.pop()

    assert shown().all()  # without an image, all of it
    middle = shown(str(image))
    assert middle.mean() == 0.25
    assert middle[6:18, 4:12].all()
    assert not shown(str(image), mask=str(tmp_path / "black.png")).any()
    assert shown(str(tmp_path / "alpha.png"), mask=str(tmp_path / "alpha.png")).all()


def test_a_run_samples_its_own_images_and_the_command_line_paints(
    make_config, run, train, tiny_model, image, tmp_path, capsys
):
    train(
        make_config(*run, "max_steps=1", "sampling.at_end=true", "sampling.samples=[{steps: 1}]", "backup.at_end=false")
    )
    assert len(list((tmp_path / "run" / "samples").rglob("*.png"))) == 1
    Image.new("L", (32, 48), 255).save(tmp_path / "white.png")
    options = (
        "--prompt",
        "a cat",
        "--steps",
        "1",
        "--out",
        str(tmp_path / "out"),
        "--mask",
        str(tmp_path / "white.png"),
    )
    assert sample.main(["--base", str(tiny_model("sd15_inpaint")), *options, "--reference", str(image)]) == 0
    (made,) = (tmp_path / "out").glob("*.png")
    assert Image.open(made).size == (32, 48)  # that of the image
    assert sample.main(["--base", str(tiny_model("sd15_inpaint")), *options]) == 2
    assert "there is no image to paint in; set --reference" in capsys.readouterr().err
    assert sample.main(["--base", str(tiny_model("sd15")), *options]) == 2
    assert "takes no mask; leave it out" in capsys.readouterr().err


@pytest.mark.parametrize("family", ["sd15_inpaint", "sdxl_inpaint"])
def test_a_single_file_trains_and_is_saved_as_one(make_config, run, train, tiny_model, tmp_path, family):
    folder, file = tiny_model(family), tmp_path / "x.safetensors"
    save_single_file(file, FAMILIES[family], load_pipe(FAMILIES[family], str(folder)).components)
    options = (f"model.base={file}", f"model.config_folder={folder}", "method=full", "output.format=single_file")
    trainer = train(make_config(*run, f"family={family}", *options, "backup.at_end=false", "max_steps=1"))
    kind, lacking = getattr(diffusers, FAMILIES[family].pipeline), dict.fromkeys(FAMILIES[family].unused)
    read = {"config": str(folder), "local_files_only": True, **lacking}
    base, saved = (kind.from_single_file(path, **read).unet.conv_in.weight for path in (file, *trainer.callbacks.saved))
    assert saved.shape[1] == 9
    assert torch.equal(saved, trainer.prepared.base.module("unet").conv_in.weight)
    assert not torch.equal(saved, base)


def test_a_model_without_channels_for_a_mask_is_refused(make_config, run, train, tiny_model, tmp_path):
    pipe = diffusers.StableDiffusionPipeline.from_pretrained(tiny_model("sd15"), safety_checker=None)
    StableDiffusionInpaintPipeline(**pipe.components, requires_safety_checker=False).save_pretrained(tmp_path / "four")
    with pytest.raises(WeightsError, match="is a U-Net with 4 input channels instead of 9, which can't be trained"):
        train(make_config(*run, f"model.base={tmp_path / 'four'}"))
