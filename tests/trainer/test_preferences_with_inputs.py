"""Preferences among what models make of images: of references, and of sources of edits."""

import pytest
from PIL import Image

from modules.config.files import save_config
from tests.support import rank_scenarios
from tests.support.pictures import write_negatives
from tests.support.RankPool import run_alone

RUN = ("method=preference", "batch_size=2", "batch_size_mode=global", "model.weight_dtype=float64")
SEEN = {"flux1_kontext": ("reference_folder", 16), "lucy_edit": ("source_folder", 32)}


@pytest.fixture
def settings(make_config, picture_folder, tiny_model, tmp_path):
    """A function that writes the settings of a run to NAME.yaml, and returns the arguments of its scenario."""
    chosen = picture_folder(((48, 32),) * 4, name="chosen")
    rejected = write_negatives(tmp_path / "rejected", chosen)

    beside = tmp_path / "beside"
    beside.mkdir()
    for path in sorted(chosen.glob("*.png")):
        Image.effect_noise((48, 32), 60).convert("RGB").save(beside / path.name)

    def write(family, name, *overrides):
        setting, step = SEEN[family]
        folders = (f"path={chosen}", f"pair_folder={rejected}", f"{setting}={beside}")
        values = (f"family={family}", f"model.base={tiny_model(family)}", f"data.bucket_step={step}")
        values += tuple(f"concepts.0.{value}" for value in folders)
        save_config(
            make_config(*RUN, *values, f"workspace_dir={tmp_path / name}", *overrides), tmp_path / f"{name}.yaml"
        )
        return {"config": str(tmp_path / f"{name}.yaml")}

    return write


@pytest.mark.parametrize("family", SEEN)
def test_two_ranks_and_a_resumed_run_give_the_losses_of_one(family, settings, two_ranks):
    alone = run_alone(rank_scenarios.train, **settings(family, "one", "max_steps=2", "backup.at_end=false"))
    first = two_ranks.run(rank_scenarios.train, **settings(family, "two", "max_steps=1"))[0]
    rest, other = two_ranks.run(rank_scenarios.train, **settings(family, "two", "max_steps=2"), resume=True)
    # half of beta, 1000, multiplies the rounding of what is in float32 whatever the weights are in
    assert first["losses"] + rest["losses"] == pytest.approx(alone["losses"], rel=2e-4)
    assert rest["losses"] != pytest.approx(first["losses"], rel=1e-3)
    assert rest["digest"] == other["digest"]
