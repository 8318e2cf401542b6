"""Models of videos with sound learn that of the clips that have any."""

import numpy as np
import pytest

from modules.config.files import save_config
from tests.support import rank_scenarios
from tests.support.RankPool import run_alone
from tests.support.videos import write_sounding_video, write_video

RUN = (
    "family=minimax_h3",
    "method=lora",
    "data.resolution=64",
    "data.bucket_step=32",
    "data.frames=22",
    "optimizer.learning_rate=1e-12",
)


@pytest.fixture
def config(make_config, tiny_model, tmp_path):
    noise = np.random.default_rng(1).uniform(-0.5, 0.5, (2, 48000)).astype(np.float32)
    clips = tmp_path / "clips"
    write_sounding_video(clips / "loud.mp4", 22, noise, fps=24)
    write_video(clips / "mute.mp4", 22, fps=24)

    def make(name, *overrides):
        paths = (f"model.base={tiny_model('minimax_h3')}", f"concepts.0.path={clips}", "backup.at_end=false")
        made = make_config(*RUN, *paths, f"workspace_dir={tmp_path / name}", *overrides)
        save_config(made, tmp_path / f"{name}.yaml")
        return made

    return make


def test_the_sound_of_a_clip_is_learned_by_its_weight_and_silence_is_not(config, train):
    def losses(weight):
        data = ("batch_size=1", "max_steps=2", f"loss.sound_weight={weight}")
        return np.array(train(config(f"run{weight}", *data)).callbacks.losses)

    without, once, twice = (losses(weight) for weight in (0, 1, 2))
    of_mute, of_loud = sorted((once - without).round(4))
    assert (len(without), of_mute) == (2, 0)
    assert of_loud > 0.1
    assert twice - without == pytest.approx(2 * (once - without), rel=1e-3, abs=1e-5)


def test_two_ranks_equal_one_on_clips_with_and_without_sound(config, two_ranks, tmp_path):
    for name in ("one", "two"):
        config(name, "batch_size=2", "batch_size_mode=global", "max_steps=2")
    alone = run_alone(rank_scenarios.train, config=str(tmp_path / "one.yaml"))
    first, second = two_ranks.run(rank_scenarios.train, config=str(tmp_path / "two.yaml"))
    assert first["digest"] == second["digest"]
    assert first["losses"] == pytest.approx(alone["losses"], rel=1e-4)
