"""Models of videos with sound learn that of the clips that have any, and their samples can be heard."""

import av
import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from modules.config.files import save_config
from modules.data.conditions import conditions_of
from modules.data.prepare import prepare_data
from modules.families.registry import FAMILIES
from scripts import sample
from tests.support import rank_scenarios
from tests.support.RankPool import run_alone
from tests.support.videos import write_sounding_video, write_video

FRAMES = {"minimax_h3": 22, "ltx2": 9, "kandinsky6": 9}
RUN = (
    "method=lora",
    "data.resolution=64",
    "data.bucket_step=32",
    "optimizer.learning_rate=1e-12",
)
RATES = {"minimax_h3": 32000, "ltx2": 24000, "kandinsky6": 44100}


@pytest.fixture
def clips(tmp_path):
    noise = np.random.default_rng(1).uniform(-0.5, 0.5, (2, 48000)).astype(np.float32)
    folder = tmp_path / "clips"
    write_sounding_video(folder / "loud.mp4", 22, noise, fps=24)
    write_video(folder / "mute.mp4", 22, fps=24)
    return folder


@pytest.fixture
def config(make_config, tiny_model, clips, tmp_path):
    def make(family, name, *overrides):
        paths = (f"family={family}", f"model.base={tiny_model(family)}", f"concepts.0.path={clips}")
        data = (f"data.frames={FRAMES[family]}", f"workspace_dir={tmp_path / name}")
        made = make_config(*RUN, *paths, *data, *overrides)
        save_config(made, tmp_path / f"{name}.yaml")
        return made

    return make


@pytest.mark.parametrize("family", FRAMES)
def test_the_sound_of_a_clip_is_learned_by_its_weight_and_silence_is_not(family, config, train):
    def losses(weight):
        data = ("batch_size=1", "max_steps=2", "backup.at_end=false", f"loss.sound_weight={weight}")
        return np.array(train(config(family, f"run{weight}", *data)).callbacks.losses)

    without, once, twice = (losses(weight) for weight in (0, 1, 2))
    of_mute, of_loud = sorted((once - without).round(4))
    assert (len(without), of_mute) == (2, 0)
    assert of_loud > 0.1
    assert twice - without == pytest.approx(2 * (once - without), rel=1e-3, abs=1e-5)


@pytest.mark.parametrize("family", ["minimax_h3", "ltx2"])
def test_two_ranks_equal_one_on_clips_with_and_without_sound(family, config, two_ranks, tmp_path):
    for name in ("one", "two"):
        config(family, name, "batch_size=2", "batch_size_mode=global", "max_steps=2", "backup.at_end=false")
    alone = run_alone(rank_scenarios.train, config=str(tmp_path / "one.yaml"))
    first, second = two_ranks.run(rank_scenarios.train, config=str(tmp_path / "two.yaml"))
    assert first["digest"] == second["digest"]
    assert first["losses"] == pytest.approx(alone["losses"], rel=1e-4)


def test_a_run_with_sound_goes_on_exactly_and_its_sample_is_heard(config, train, tmp_path):
    fast = ("batch_size=2", "optimizer.learning_rate=1e-3")
    whole = train(config("ltx2", "whole", *fast, "max_steps=3"))
    first = train(config("ltx2", "parts", *fast, "max_steps=2"))
    values = "[{prompt: a cat, width: 64, height: 64, steps: 2}, {prompt: a dog, frames: 1, steps: 2}]"
    sampling = ("sampling.at_end=true", f"sampling.samples={values}")
    rest = train(config("ltx2", "parts", *fast, "max_steps=3", *sampling), resume=True)
    assert first.callbacks.losses + rest.callbacks.losses == whole.callbacks.losses
    own, other = (load_file(tmp_path / name / "models" / "model.safetensors") for name in ("whole", "parts"))
    assert all(torch.equal(value, other[name]) for name, value in own.items())
    assert any("audio_attn1" in name and value.any() for name, value in own.items() if "lora_B" in name)
    (video,) = (tmp_path / "parts/samples").rglob("*.mp4")  # an image has no sound
    assert heard_in(video, RATES["ltx2"]) == pytest.approx(9 / 24, abs=1e-3)


def test_only_clips_with_an_audio_track_at_the_models_rate_pass_with_sound(config):
    def buckets(family, *overrides):
        dataset, found = prepare_data(config(family, "run", *overrides), FAMILIES[family])
        condition = next(one for one in conditions_of(FAMILIES[family]) if one.spec.name == "sound")
        counts = np.bincount(found.index).tolist()
        return dict(zip(found.names, counts, strict=True)), condition.describe(dataset)[1]

    assert buckets("ltx2") == ({"64x64x9": 1, "64x64x9 with sound": 1}, "of 1 of 2 clips")
    assert buckets("minimax_h3") == ({"64x64x22": 2}, "of 1 of 2 clips")  # which is shown silence
    assert buckets("ltx2", "data.fps=12") == ({"64x64x9": 2}, "none: no audio track at 24 frames/s")


@pytest.mark.parametrize("family", FRAMES)
def test_a_clip_with_its_sound_is_made_on_the_command_line(family, tiny_model, tmp_path):
    size = ("--width", "64", "--height", "64", "--steps", "2", "--frames", str(FRAMES[family]), "--count", "2")
    options = ("--prompt", "a cat", *size, "--guidance", "2", "--batch-size", "2")
    assert sample.main(["--base", str(tiny_model(family)), *options, "--out", str(tmp_path / "own")]) == 0
    videos = sorted((tmp_path / "own").glob("*.mp4"))
    assert len(videos) == 2
    for video in videos:
        assert heard_in(video, RATES[family]) == pytest.approx(FRAMES[family] / 24, abs=1e-3)
    if family == "ltx2":  # played at another rate than it is made for
        assert (
            sample.main(["--base", str(tiny_model(family)), *options, "--fps", "12", "--out", str(tmp_path / "slow")])
            == 0
        )
        with av.open(str(next((tmp_path / "slow").glob("*.mp4")))) as container:
            assert not container.streams.audio


def heard_in(video, rate):
    """How many seconds of sound that is not silent a video has, whose frames last as long."""
    with av.open(str(video)) as container:
        (track,), (frames,) = container.streams.audio, container.streams.video
        assert (track.codec_context.name, track.rate, track.layout.name) == ("aac", rate, "stereo")
        samples = np.concatenate([frame.to_ndarray() for frame in container.decode(audio=0)], 1)
        assert np.abs(samples).max() > 1e-4
        assert float(frames.duration * frames.time_base) == pytest.approx(
            float(track.duration * track.time_base), abs=1e-3
        )
        return float(track.duration * track.time_base)
