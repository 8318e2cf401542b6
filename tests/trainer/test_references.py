"""Training a model that sees reference images: on several ranks, and in samples."""

import numpy as np
import pytest
from diffusers import QwenImageEditPlusPipeline
from PIL import Image

from modules.config.files import save_config
from modules.config.SampleConfig import SampleConfig
from modules.data.epoch_plan import MicroBatch
from modules.families.registry import FAMILIES
from modules.sampling.generation import generate_images, image_requests
from scripts import sample
from tests.families.test_conformance import load_pipe
from tests.support import rank_scenarios
from tests.support.RankPool import run_alone

RUN = ("data.bucket_step=16", "backup.at_end=false", "max_steps=6")
# whose text encoder sees them, too
EDITS = "qwen_image_edit_plus"


@pytest.fixture
def references(tmp_path):
    """Of the first images one of the same size or another, of the third two, of the others none."""
    folder = tmp_path / "references"
    folder.mkdir()
    sizes = {"000.png": (32, 32), "001.png": (64, 32), "002_0.png": (32, 32), "002_1.png": (32, 64)}
    for number, (name, size) in enumerate(sizes.items()):
        Image.effect_noise(size, 50 + 40 * number).convert("RGB").save(folder / name)
    return folder


@pytest.fixture
def settings_of(make_config, tiny_model, tmp_path):
    """A function that writes the settings of a run and returns the arguments of its scenario."""

    def write(family, name, *overrides):
        model = (f"family={family}", f"model.base={tiny_model(family)}", f"workspace_dir={tmp_path / name}")
        save_config(make_config(*RUN, *model, *overrides), tmp_path / f"{name}.yaml")
        return {"config": str(tmp_path / f"{name}.yaml")}

    return write


def test_two_ranks_equal_one_and_references_change_what_is_learned(settings_of, references, two_ranks):
    seen = (f"concepts.0.reference_folder={references}", "batch_size=4", "batch_size_mode=global")
    alone = run_alone(rank_scenarios.train, **settings_of("flux2_klein", "one", *seen))
    first, second = two_ranks.run(rank_scenarios.train, **settings_of("flux2_klein", "two", *seen))
    blind = run_alone(rank_scenarios.train, **settings_of("flux2_klein", "blind", *seen[1:]))
    assert first["digest"] == second["digest"]
    assert first["losses"] == pytest.approx(alone["losses"], rel=1e-4)
    assert blind["losses"] != pytest.approx(alone["losses"], rel=1e-4)


def test_ranks_that_share_the_weights_take_as_many_passes_however_unlike_the_references_are(
    settings_of, references, two_ranks
):
    """Validation, too. In a pass that the other rank does not make, a rank would wait for ever."""
    run = (
        "batch_size=4",
        "batch_size_mode=global",
        "max_steps=3",
        "data.validation_share=0.4",
        "validation.unit=steps",
    )
    seen = (f"concepts.0.reference_folder={references}", "validation.every=3", "validation.timesteps=1", *run)
    alone = run_alone(rank_scenarios.train, **settings_of("flux2_klein", "one", *seen))
    sync = {"strategy": "fsdp"}
    first, second = two_ranks.run(
        rank_scenarios.train, seconds=60, sync=sync, **settings_of("flux2_klein", "two", *seen)
    )
    assert first["digest"] == second["digest"]
    assert first["losses"] == pytest.approx(alone["losses"], rel=1e-4)


@pytest.fixture
def edits(picture_folder, tmp_path):
    """The settings of a concept whose images each have an image before the edit."""
    folder, before = picture_folder(name="after"), tmp_path / "before"
    before.mkdir()
    for number, path in enumerate(sorted(folder.glob("*.png"))):
        Image.effect_noise((32, 32 + 16 * number), 50).convert("RGB").save(before / path.name)
    return f"concepts.0.path={folder}", f"concepts.0.reference_folder={before}"


def test_two_ranks_equal_one_where_texts_see_references_and_half_of_the_captions_are_dropped(
    settings_of, edits, two_ranks, tmp_path
):
    run = (*edits, "data.caption_dropout=0.5", "batch_size=4", "batch_size_mode=global", "max_steps=3")
    alone = run_alone(rank_scenarios.train, **settings_of(EDITS, "one", *run))
    own_cache = f"cache_dir={tmp_path / 'cache of two'}"
    first, second = two_ranks.run(rank_scenarios.train, **settings_of(EDITS, "two", *run, own_cache))
    assert first["digest"] == second["digest"]
    assert first["losses"] == pytest.approx(alone["losses"], rel=1e-4)


def test_a_sample_sees_its_reference_image_or_all_images_of_a_folder(tiny_model, references):
    pipe = load_pipe(FAMILIES["flux2_klein"], str(tiny_model("flux2_klein")))

    def image(reference):
        sample = SampleConfig(prompt="a cat", reference=str(reference), width=64, height=64, steps=2, guidance=1.0)
        ((request, image),) = generate_images(pipe, image_requests(sample), 1)
        return len(request.references), image.tobytes()

    counts, images = zip(*(image(path) for path in ("", references / "000.png", references)), strict=True)
    assert counts == (0, 1, 4)
    assert len(set(images)) == 3


@pytest.mark.parametrize("family", ["flux2_klein", "flux1_kontext"])
def test_a_run_draws_samples_from_references(make_config, tiny_model, references, train, tmp_path, family):
    def sampled(name, reference):
        values = f"[{{prompt: a cat, reference: {reference}, width: 64, height: 64, steps: 1, guidance: 1}}]"
        options = (f"family={family}", f"model.base={tiny_model(family)}", f"workspace_dir={tmp_path / name}")
        train(make_config(*RUN, *options, "max_steps=1", "sampling.at_start=true", f"sampling.samples={values}"))
        return next((tmp_path / name / "samples").rglob("*.png")).read_bytes()

    assert sampled("with", references / "000.png") != sampled("without", "''")


def test_texts_that_were_encoded_with_their_references_are_not_encoded_again(
    make_config, tiny_model, edits, start, tmp_path, monkeypatch
):
    def run(name, *overrides):
        model = (f"family={EDITS}", f"model.base={tiny_model(EDITS)}", f"workspace_dir={tmp_path / name}")
        start(make_config(*RUN, *edits, *model, "data.caption_dropout=0.1", *overrides))

    run("first")
    encoded, encode = [], QwenImageEditPlusPipeline.encode_prompt

    def counted(self, *args, **kwargs):
        encoded.append(kwargs["prompt"])
        return encode(self, *args, **kwargs)

    monkeypatch.setattr(QwenImageEditPlusPipeline, "encode_prompt", counted)
    run("second", "seed=5")
    assert not encoded
    Image.new("RGB", (40, 40), "red").save(tmp_path / "before" / "000.png")
    run("third")
    assert sorted(encoded) == [[" "], ["a photo of a cat, number 0"]]


def test_images_with_and_without_references_share_a_batch_where_the_model_can_do_without(
    make_config, tiny_model, references, train
):
    model = ("family=qwen_image21", f"model.base={tiny_model('qwen_image21')}", "data.bucket_step=32")
    options = (f"concepts.0.reference_folder={references}", "data.caption_dropout=0.3", "batch_size=4", "max_steps=2")
    trainer = train(make_config(*RUN, *model, *options))
    samples = np.array([[0, 0], [1, 0], [2, 0], [3, 0]])
    batch = trainer.prepared.source.batch(MicroBatch(samples, bucket=0, real=True), epoch=0)
    assert [len(own) for own in batch.given["references"]] == [1, 1, 2, 0]
    assert [mask.any().item() for mask in batch.text["image_pad_mask"]] == [True, True, True, False]
    assert np.isfinite(trainer.callbacks.losses).all()


def test_samples_without_a_prompt_take_it_and_the_reference_from_the_dataset(
    make_config, tiny_model, edits, train, tmp_path
):
    drawn = "[{width: 64, height: 64, steps: 1}, {width: 64, height: 64, steps: 1}]"
    model = (f"family={EDITS}", f"model.base={tiny_model(EDITS)}", "max_steps=1", f"sampling.samples={drawn}")
    trainer = train(make_config(*RUN, *edits, *model, "sampling.at_start=true"))
    asked = [request for sample in trainer.prepared.sampling.samples for request in image_requests(sample)]
    assert len({request.references for request in asked}) == 2
    one, other = trainer.callbacks.samples
    assert one.read_bytes() != other.read_bytes()


def test_an_image_is_made_from_a_reference_on_the_command_line(tiny_model, tiny_sd15, references, tmp_path, capsys):
    small = ("--prompt", "a cat", "--steps", "1", "--width", "64", "--height", "64", "--out", str(tmp_path / "out"))
    reference = ("--reference", str(references / "000.png"))
    for number, family in enumerate(("flux1_kontext", EDITS), start=1):
        assert sample.main(["--base", str(tiny_model(family)), *small, *reference]) == 0
        assert len(list((tmp_path / "out").glob("*.png"))) == number
    assert sample.main(["--base", str(tiny_model(EDITS)), *small]) == 2
    assert "--reference: Qwen-Image-Edit 2509, 2511 starts from an image; name one" in capsys.readouterr().err
    assert sample.main(["--base", str(tiny_sd15), *small, *reference]) == 2
    assert "--reference: Stable Diffusion 1.x / 2.x takes no reference images" in capsys.readouterr().err
