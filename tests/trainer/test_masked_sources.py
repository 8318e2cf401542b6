"""Training a model that sees masks of source clips: on several ranks, resumed, and in samples."""

import numpy as np
import pytest
from PIL import Image

from modules.config.files import save_config
from scripts import sample
from tests.support import rank_scenarios
from tests.support.exact_runs import assert_two_ranks_are_exact
from tests.support.RankPool import run_alone
from tests.support.videos import write_video

FAMILY = "wan21_vace"
RUN = (f"family={FAMILY}", "data.bucket_step=16", "data.resolution=32", "data.frames=5", "data.clips=chunks")
WHOLE = ("batch_size=4", "batch_size_mode=global", "model.weight_dtype=float64", "max_steps=4")


@pytest.fixture
def settings(make_config, tiny_model, tmp_path):
    """A function that writes settings to NAME.yaml: three clips and two images with sources, of which some have masks.

    In steps of four there are clips with a mask for each frame, without one, and images.
    """
    for folder, first in (("after", 0), ("before", 20)):
        for name, count in (("masked", 10), ("whole", 5)):
            write_video(tmp_path / folder / f"{name}.mp4", count, first=first)
            (tmp_path / folder / f"{name}.txt").write_text("a cat", encoding="utf-8")
        for number in range(2):
            Image.effect_noise((64, 48), 50 + 20 * number).convert("RGB").save(tmp_path / folder / f"{number}.png")
    write_video(tmp_path / "masks" / "masked.mp4", 10, first=20)
    Image.fromarray(np.eye(48, 64, dtype=bool)).save(tmp_path / "masks" / "1.png")

    def make(name, *overrides):
        folders = {"path": "after", "source_folder": "before", "mask_folder": "masks"}
        concept = (f"concepts.0.{setting}={tmp_path / folder}" for setting, folder in folders.items())
        base = f"model.base={tiny_model(FAMILY)}"
        config = make_config(*RUN, *WHOLE, base, *concept, f"workspace_dir={tmp_path / name}", *overrides)
        save_config(config, tmp_path / f"{name}.yaml")
        return config

    return make


def test_two_ranks_give_the_curve_of_one_and_go_on_exactly(settings, two_ranks, tmp_path):
    losses = assert_two_ranks_are_exact(settings, two_ranks, tmp_path, break_after=2)
    settings("unmasked", "backup.at_end=false", "concepts.0.mask_folder=")
    unmasked = run_alone(rank_scenarios.train, config=str(tmp_path / "unmasked.yaml"))
    assert unmasked["losses"] != pytest.approx(losses, rel=1e-4)


def test_samples_have_masks_in_a_run_and_on_the_command_line(settings, train, tiny_model, tmp_path, capsys):
    before, masks = tmp_path / "before", tmp_path / "masks"
    size = "width: 48, height: 32, steps: 1, guidance: 2.0, frames: 5"
    named = f"prompt: a cat, reference: {before / 'masked.mp4'}"
    samples = f"[{{{named}, mask: {masks / 'masked.mp4'}, count: 2, {size}}}, {{{named}, {size}}}]"
    options = "model.weight_dtype=float32", "max_steps=1", "sampling.batch_size=2", "sampling.at_end=true"
    train(settings("run", *options, f"sampling.samples={samples}"))
    videos = sorted((tmp_path / "run" / "samples").rglob("*.mp4"))
    assert len({video.read_bytes() for video in videos}) == len(videos) == 3
    base = ["--base", str(tiny_model(FAMILY)), "--prompt", "a cat", "--steps", "1", "--frames", "5"]
    options = [*base, "--reference", str(before / "masked.mp4"), "--out", str(tmp_path / "out")]
    assert sample.main([*options, "--mask", str(masks / "1.png"), "--count", "2"]) == 0
    assert len({video.read_bytes() for video in (tmp_path / "out").glob("*.mp4")}) == 2
    capsys.readouterr()
    assert sample.main([*options, "--mask", str(masks / "none.png")]) == 2
    assert "none.png: it can't be read" in capsys.readouterr().err
    write_video(masks / "short.mp4", 3)
    assert sample.main([*options, "--mask", str(masks / "short.mp4")]) == 2
    assert "this mask has 3 frames, and the video 5" in capsys.readouterr().err
