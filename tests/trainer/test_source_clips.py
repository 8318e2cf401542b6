"""Training a model that sees a clip beside each clip: on several ranks, resumed, and in samples."""

import av
import pytest
from PIL import Image

from modules.config.files import save_config
from scripts import sample
from tests.support import rank_scenarios
from tests.support.exact_runs import assert_two_ranks_are_exact
from tests.support.RankPool import run_alone
from tests.support.videos import write_video

FAMILY = "lucy_edit"
OPTIONAL = "ltx2"  # goes without source clips, too
RUN = (f"family={FAMILY}", "data.bucket_step=32", "data.resolution=64", "data.frames=9", "data.clips=chunks")
WHOLE = ("batch_size=4", "batch_size_mode=global", "model.weight_dtype=float64", "max_steps=6")


@pytest.fixture
def settings(make_config, tiny_model, tmp_path):
    """A function that writes settings to NAME.yaml: five clips and three images, each with a source, or other ones."""
    for folder, first in (("after", 0), ("before", 20), ("others", 0)):
        write_video(tmp_path / folder / "long.mp4", 48, fps=24, first=first)
        (tmp_path / folder / "long.txt").write_text("make it darker", encoding="utf-8")
        for number in range(3):
            Image.effect_noise((64, 48), 50 + 20 * number).convert("RGB").save(tmp_path / folder / f"{number}.png")

    def make(name, *overrides, sources="before"):
        folders = f"concepts.0.path={tmp_path / 'after'}", f"concepts.0.source_folder={tmp_path / sources}"
        base = f"model.base={tiny_model(FAMILY)}"
        config = make_config(*RUN, *WHOLE, base, *folders, f"workspace_dir={tmp_path / name}", *overrides)
        save_config(config, tmp_path / f"{name}.yaml")
        return config

    return make


def test_two_ranks_give_the_curve_of_one_go_on_exactly_and_sources_change_what_is_learned(
    settings, two_ranks, tmp_path
):
    losses = assert_two_ranks_are_exact(settings, two_ranks, tmp_path, break_after=3)
    settings("other", "backup.at_end=false", sources="others")
    other = run_alone(rank_scenarios.train, config=str(tmp_path / "other.yaml"))
    assert other["losses"] != pytest.approx(losses, rel=1e-4)


@pytest.mark.parametrize("family", [FAMILY, OPTIONAL])
def test_a_run_samples_from_the_source_of_a_clip_and_from_a_named_one(family, settings, tiny_model, train, tmp_path):
    size = "width: 64, height: 64, steps: 2, guidance: 1, frames: 9"
    samples = f"[{{{size}}}, {{prompt: make it darker, reference: {tmp_path / 'others' / 'long.mp4'}, {size}}}]"
    run = ["max_steps=1", "model.weight_dtype=float32", f"sampling.samples={samples}", AT_END]
    run += [f"family={family}", f"model.base={tiny_model(family)}"]
    run += [f"concepts.1.path={tmp_path / 'others'}"] if family == OPTIONAL else []  # without sources
    train(settings("run", *run))
    videos = sorted((tmp_path / "run" / "samples").rglob("*.mp4"))
    assert [frames_of(video) for video in videos] == [9, 9]
    assert videos[0].read_bytes() != videos[1].read_bytes()


def test_a_video_is_edited_on_the_command_line(settings, tiny_model, tmp_path, capsys):
    settings("none")
    base = ("--base", str(tiny_model(FAMILY)), "--prompt", "make it darker", "--steps", "1", "--width", "64")
    options = (*base, "--height", "64", "--frames", "9", "--out", str(tmp_path / "out"))
    assert sample.main([*options, "--reference", str(tmp_path / "before" / "long.mp4")]) == 0
    (video,) = (tmp_path / "out").glob("*.mp4")
    assert frames_of(video) == 9
    assert sample.main([*options]) == 2
    assert "--reference: Lucy-Edit makes videos of videos; name one." in capsys.readouterr().err
    assert sample.main([*options, "--reference", str(tmp_path / "before" / "long.txt")]) == 2
    assert "long.txt can't be read" in capsys.readouterr().err


AT_END = "sampling.at_end=true"


def frames_of(path):
    with av.open(str(path)) as container:
        return len([*container.decode(video=0)])
