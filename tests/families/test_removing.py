"""Removing a family touches its file, its presets and its tiny model; all else is made anew."""

import pytest

from tests.support.removed_family import declaring_files, remove

# What shows or presumes one family.
KNOWN = {
    "sd15": {"tests/config/test_validation.py: fails"},  # which tests settings of the default family
    "wan21": {"scripts/make_video_demo.py: wan21"},  # the demo is a tiny one
}


@pytest.mark.proof
@pytest.mark.parametrize("stem", declaring_files())
def test_nothing_else_is_edited(stem, tmp_path):
    assert set(remove(stem, tmp_path / "tree").outside) == KNOWN.get(stem, set())
