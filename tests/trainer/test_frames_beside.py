"""Models of videos that some clips are given their first frame in, beside latents that all have noise."""

from dataclasses import replace

import pytest
from diffusers import MotifVideoImage2VideoPipeline
from PIL import Image

from modules.config.files import save_config
from modules.families.registry import FAMILIES
from tests.support import rank_scenarios
from tests.support.RankPool import run_alone

NAME = "motif_video"


@pytest.fixture
def config(make_config, tiny_model, tmp_path):
    """Of six clips in two folders, of 9 frames each."""
    for clip in range(6):
        folder = tmp_path / "clips" / f"clip{clip}"
        folder.mkdir(parents=True)
        for number in range(9):
            Image.effect_noise((48, 32), 20 + 10 * number + clip).convert("RGB").save(folder / f"{number}.png")

    def make(name, *overrides):
        paths = (f"family={NAME}", f"model.base={tiny_model(NAME)}", f"concepts.0.path={tmp_path / 'clips'}")
        data = ("concepts.0.frame_folders_fps=24", "data.frames=9", "data.bucket_step=16", "data.bucketing=false")
        shape = ("data.width=48", "data.height=32", "data.image_to_video=0.5", "batch_size=3", "max_steps=2")
        run = ("method=lora", "optimizer.learning_rate=1e-12", "backup.at_end=false")
        made = make_config(*run, *paths, *data, *shape, f"workspace_dir={tmp_path / name}", *overrides)
        save_config(made, tmp_path / f"{name}.yaml")
        return made

    return make


def test_clips_with_and_without_their_first_frame_pass_apart_and_a_sample_starts_from_one(
    config, train, tmp_path, monkeypatch
):
    family, seen, images = FAMILIES[NAME], [], []
    look = MotifVideoImage2VideoPipeline._get_image_embeds

    def spy_inputs(call):
        seen.append((call.beside("first_frame"), call.beside("image_features"), len(call.latents)))
        return family.inputs(call)

    def spy_look(image_encoder, feature_extractor, image, device):
        images.append(image)
        return look(image_encoder, feature_extractor, image, device)

    monkeypatch.setitem(FAMILIES, NAME, replace(family, inputs=spy_inputs))
    monkeypatch.setattr(MotifVideoImage2VideoPipeline, "_get_image_embeds", staticmethod(spy_look))
    first = tmp_path / "clips" / "clip0" / "0.png"
    sample = f"{{prompt: a cat, reference: {first}, width: 48, height: 32, frames: 5, steps: 2}}"
    train(config("run", "sampling.at_end=true", f"sampling.samples=[{sample}]"))
    assert sum(rows for *_, rows in seen) == 6
    assert {(frame is None, features is None) for frame, features, _ in seen} == {(True, True), (False, False)}
    assert all(frame.shape[2] == 1 for frame, *_ in seen if frame is not None)
    assert len(images) == 7  # of each clip for the cache, and that of the sample
    assert list((tmp_path / "run" / "samples").rglob("*.mp4"))


def test_two_ranks_equal_one_where_some_clips_are_given_their_first_frame(config, two_ranks, tmp_path):
    for name in ("one", "two"):
        config(name, "batch_size=6", "batch_size_mode=global", "optimizer.learning_rate=1e-3")
    alone = run_alone(rank_scenarios.train, config=str(tmp_path / "one.yaml"))
    first, second = two_ranks.run(rank_scenarios.train, config=str(tmp_path / "two.yaml"))
    assert first["digest"] == second["digest"]
    assert first["losses"] == pytest.approx(alone["losses"], rel=1e-4)
