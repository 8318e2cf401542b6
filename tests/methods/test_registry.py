"""What the settings offer is what there is."""

from typing import get_args

from modules.config.TrainConfig import TrainConfig
from modules.families.registry import FAMILIES
from modules.methods.registry import METHODS


def test_the_settings_offer_every_family_and_no_other():
    assert set(get_args(TrainConfig.__annotations__["family"])) == set(FAMILIES)


def test_the_settings_offer_every_method_and_no_other():
    assert set(get_args(TrainConfig.__annotations__["method"])) == set(METHODS)
