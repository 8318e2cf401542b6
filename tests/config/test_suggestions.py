"""What a message offers in place of an unknown name."""

import pytest

from modules.config.suggestions import in_place_of

MANY = [f"family{number}-{method}" for number in range(60) for method in ("lora", "full")]


@pytest.mark.parametrize(
    ("name", "known", "end"),
    [
        ("familly7-lora", MANY, "did you mean family7-lora?"),
        ("nosuch", MANY, "docs/presets.md lists them."),
        ("", MANY, "docs/presets.md lists them."),
        ("nccll", ["nccl", "gloo", "auto"], "did you mean nccl?"),
        ("mpi", ["nccl", "gloo", "auto"], "use auto, gloo or nccl."),
        ("mpi", ["gloo"], "use gloo."),
    ],
)
def test_the_nearest_names_few_names_or_where_all_are(name, known, end):
    assert in_place_of(name, known, "docs/presets.md") == end


def test_parts_of_names_find_three_of_them():
    assert in_place_of("FULL", MANY, "docs/presets.md") == (
        "did you mean family0-full, family1-full or family10-full? docs/presets.md lists all."
    )
