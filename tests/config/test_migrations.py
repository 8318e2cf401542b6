"""Old settings files are migrated step by step to the current version; newer ones are refused."""

import pytest

from modules.config.errors import ConfigError
from modules.config.files import config_from_values
from modules.config.migrations import CURRENT_VERSION, MIGRATIONS, migrate
from modules.config.presets import load_preset, merge_values


def rename_rate(values: dict) -> dict:
    values["learning_rate"] = values.pop("rate")
    return values


def double_epochs(values: dict) -> dict:
    return {**values, "epochs": values["epochs"] * 2}


STEPS = {1: rename_rate, 2: double_epochs}


def test_steps_run_one_after_another_from_the_files_version():
    assert migrate({"config_version": 1, "rate": 1, "epochs": 2}, STEPS, 3) == {
        "config_version": 3,
        "learning_rate": 1,
        "epochs": 4,
    }
    assert migrate({"config_version": 2, "epochs": 2}, STEPS, 3)["epochs"] == 4
    assert migrate({"config_version": 3, "epochs": 2}, STEPS, 3)["epochs"] == 2


def test_the_given_values_stay_as_they_are():
    values = {"config_version": 1, "rate": 1, "epochs": 2}
    migrate(values, STEPS, 3)
    assert values == {"config_version": 1, "rate": 1, "epochs": 2}


def test_a_missing_version_means_todays():
    assert migrate({"epochs": 2}, STEPS, 3) == {"epochs": 2, "config_version": 3}


def test_a_newer_version_is_refused():
    with pytest.raises(ConfigError) as caught:
        migrate({"config_version": 7})
    assert str(caught.value) == "config_version 7 is newer than this Chorus understands (2): update Chorus."


def test_an_older_version_without_a_step_is_refused():
    with pytest.raises(ConfigError, match="config_version 0 is too old for this Chorus"):
        migrate({"config_version": 0})


@pytest.mark.parametrize("version", ["1", 1.0, True, None, [], "x" * 5000])
def test_a_version_that_is_no_number_is_refused(version):
    with pytest.raises(ConfigError, match="it must be a whole number") as caught:
        migrate({"config_version": version})
    assert len(str(caught.value)) < 200


@pytest.mark.parametrize("version", [16**9000, -(16**9000)], ids=["newer", "older"])
def test_a_huge_version_is_refused(version):
    with pytest.raises(ConfigError, match="config_version a huge number is"):
        migrate({"config_version": version})


def test_every_older_version_has_its_step():
    assert sorted(MIGRATIONS) == list(range(1, CURRENT_VERSION))


def test_files_of_version_1_keep_the_timesteps_that_they_meant():
    frozen = {"config_version": 1, "family": "wan22_a14b", "diffusion": {"timesteps": "family", "shift": 2.0}}
    kept = config_from_values(frozen).diffusion
    assert (kept.timesteps, kept.shift, kept.expert_share) == ("family", 2.0, None)
    assert config_from_values({"config_version": 1, "family": "zimage"}).diffusion.timesteps == "uniform"
    new = config_from_values({"family": "wan22_a14b"}).diffusion
    assert (new.timesteps, new.expert_share) == ("trained", 0.5)
    over_preset = merge_values(load_preset("zimage-lora"), migrate({"config_version": 1, "epochs": 3}))
    assert config_from_values(over_preset).diffusion.timesteps == "trained"
    with pytest.raises(ConfigError, match="diffusion"):
        config_from_values({"config_version": 1, "diffusion": 3})
