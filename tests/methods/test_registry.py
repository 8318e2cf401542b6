"""What the settings offer is what there is."""

from typing import get_args

from modules.config.methods import METHODS as FACTS
from modules.config.TrainConfig import TrainConfig
from modules.families.registry import FAMILIES
from modules.methods.registry import METHODS


def test_the_settings_offer_every_family_and_no_other():
    assert set(get_args(TrainConfig.__annotations__["family"])) == set(FAMILIES)


def test_every_method_has_the_name_of_its_file_and_of_its_facts():
    assert {name: method.name for name, method in METHODS.items()} == {name: name for name in FACTS}
