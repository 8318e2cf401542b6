"""What families say that their denoisers see beside text and latents."""

import pytest

from modules.families.conditions import FirstFrame, Layers, References
from modules.families.registry import FAMILIES


@pytest.mark.parametrize("family", FAMILIES.values(), ids=FAMILIES)
def test_a_family_has_one_condition_of_a_kind_and_those_that_it_builds_on(family):
    kinds = [type(one) for one in family.conditions]
    assert len(set(kinds)) == len(kinds)
    if Layers in kinds:
        assert family.condition(References) == References(needed=True)  # the image itself
    if first := family.condition(FirstFrame):
        assert family.frame_step
        assert bool(first.components) == (first.features is not None)
        assert first.needed or first.beside or not (first.encode or first.components)
        assert first.needed or not first.last
        assert not (first.beside and (first.needed or first.clean))
        assert first.encode or not first.beside
