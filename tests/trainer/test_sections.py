"""Training a model that makes videos section by section: on several ranks, resumed, with a clip that is too short."""

import pytest

from modules.config.files import save_config
from modules.data.errors import DataError
from tests.support.exact_runs import assert_two_ranks_are_exact
from tests.support.videos import write_video

FAMILY = "helios"
RUN = (f"family={FAMILY}", "data.bucket_step=16", "data.resolution=32", "data.frames=66", "data.clips=start")
WHOLE = ("batch_size=2", "batch_size_mode=global", "model.weight_dtype=float64", "max_steps=3", "cache_dir={cache}")


@pytest.fixture
def settings(make_config, tiny_model, tmp_path):
    """A function that writes settings to NAME.yaml: clips of two sections and of one, and one that is too short."""
    for number, count in enumerate((66, 66, 40, 20)):
        path = write_video(tmp_path / "clips" / f"{number}.mp4", count, size=(32, 32), fps=24, first=number)
        path.with_suffix(".txt").write_text("a cat", encoding="utf-8")

    def make(name, *overrides):
        folders = (f"concepts.0.path={tmp_path / 'clips'}", f"workspace_dir={tmp_path / name}")
        whole = (each.format(cache=tmp_path / "cache") for each in WHOLE)
        config = make_config(*RUN, *whole, f"model.base={tiny_model(FAMILY)}", *folders, *overrides)
        save_config(config, tmp_path / f"{name}.yaml")
        return config

    return make


def test_two_ranks_give_the_curve_of_one_and_go_on_exactly(settings, two_ranks, tmp_path):
    assert_two_ranks_are_exact(settings, two_ranks, tmp_path, break_after=2)


def test_clips_shorter_than_a_section_are_left_out_and_named(settings, train, tmp_path):
    trainer = train(settings("run", "max_steps=1", "backup.at_end=false"))
    warnings = "\n".join(trainer.callbacks.warnings)
    assert "3.mp4 is left out: it has fewer than 33 frames, and Helios learns from videos" in warnings
    for number in range(3):
        (tmp_path / "clips" / f"{number}.mp4").unlink()
    with pytest.raises(DataError, match=r"3\.mp4 has fewer than 33 frames, as all others have, but Helios learns from"):
        train(settings("other"))
