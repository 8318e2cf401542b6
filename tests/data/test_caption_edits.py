"""Tags that are left out of captions, groups of tags, lower case, and alternatives in braces."""

from dataclasses import replace

import pytest

from modules.config.ConceptConfig import ConceptConfig
from modules.data.caption_edits import MAX_ALTERNATIVES, alternatives, without_removed_tags
from modules.data.captions import read_captions
from modules.data.concepts import caption_prompts
from modules.data.errors import DataError

CHOOSING = ConceptConfig(wildcards=True)


@pytest.mark.parametrize(
    ("removed", "caption", "expected"),
    [
        ("", "1girl, red hair , solo", "1girl, red hair , solo"),
        ("Solo, blue_.*", "1girl, solo, red hair, blue_eyes", "1girl, red hair"),
        (".+ hair", "1girl, red hair , chair", "1girl, chair"),
        ("hair", "1girl, red hair , solo", "1girl, red hair , solo"),  # whole tags only
        ("solo", "solo", ""),
        ("cat, (?i)Solo", "1girl, solo", "1girl"),  # flags of one expression
        (r"(c)at, (.)\1", "1girl, aa, ac", "1girl, ac"),  # groups count for each expression
    ],
)
def test_tags_are_removed_whole_or_by_a_regular_expression(removed, caption, expected):
    assert without_removed_tags(caption, ConceptConfig(removed_tags=removed)) == expected


@pytest.mark.parametrize(
    ("removed", "caption", "expected"),
    [
        ("clouds", "cat, blue sky; clouds", "cat, blue sky"),
        ("Blue sk.", "cat, blue sky; clouds; sun", "cat, clouds; sun"),
        ("clouds, blue sky", "cat, blue sky; clouds, red", "cat, red"),
        ("blue sky; .*", "cat, blue sky; clouds", "cat"),  # of a whole group
        ("sun", "cat , blue sky;clouds", "cat , blue sky;clouds"),
    ],
)
def test_tags_are_removed_from_groups_too(removed, caption, expected):
    assert without_removed_tags(caption, ConceptConfig(removed_tags=removed, secondary_separator=";")) == expected


def test_a_separator_of_kept_tags_is_no_part_of_a_caption(tmp_path):
    (tmp_path / "a.txt").write_text("sks, cat ||| red, solo ||| best")
    image = tmp_path / "a.png"
    fixed = ConceptConfig(kept_separator="|||", removed_tags="solo", caption_prefix="now,")
    assert read_captions(image, fixed) == ("now, sks, cat, red, best",)
    drawn = replace(fixed, shuffle_tags=True)
    assert read_captions(image, drawn) == ("now, sks, cat |||red||| best",)  # which the drawing needs
    assert caption_prompts([read_captions(image, drawn)], [drawn], 1) == ("now, sks, cat, red, best",)


def test_braces_stand_for_each_of_their_choices():
    assert alternatives("a {red|blue} cat, {sitting|}", CHOOSING) == (
        "a red cat, sitting", "a red cat,", "a blue cat, sitting", "a blue cat,"
    )  # fmt: skip
    assert alternatives("a {red|blue} cat", ConceptConfig()) == ("a {red|blue} cat",)
    for plain in ("a {cat}", "a | b", "a {b | c"):
        assert alternatives(plain, CHOOSING) == (plain,)


def test_too_many_choices_are_refused():
    most = "{a|b}" * 6
    assert len(alternatives(most, CHOOSING)) == MAX_ALTERNATIVES == 64
    with pytest.raises(DataError, match=r"stands for more than 64 texts: use fewer choices in braces\.$"):
        alternatives(most + "{a|b}", CHOOSING)


def test_a_file_gives_its_edited_captions_between_prefix_and_suffix(tmp_path):
    (tmp_path / "a.txt").write_text("solo, a {red|blue} cat\nsolo, a dog", encoding="utf-8")
    concept = ConceptConfig(
        path=str(tmp_path), caption_per_line=True, caption_prefix="sks,", removed_tags="solo", wildcards=True
    )
    assert read_captions(tmp_path / "a.png", concept) == ("sks, a red cat", "sks, a blue cat", "sks, a dog")


def test_tags_are_removed_from_each_of_the_alternatives(tmp_path):
    concept = ConceptConfig(removed_tags=".*_hair", wildcards=True, caption_prefix="{sks|me},", caption_suffix=", end")
    (tmp_path / "a.txt").write_text("{red_hair, smile|blue_hair}, cat")
    assert read_captions(tmp_path / "a.png", concept) == (
        "sks, smile, cat, end", "me, smile, cat, end", "sks, cat, end", "me, cat, end"
    )  # fmt: skip


def test_what_a_second_separator_joins_is_one_tag_until_it_is_trained(tmp_path):
    (tmp_path / "a.txt").write_text("Cat, blue sky; clouds, day")
    image = tmp_path / "a.png"
    fixed = ConceptConfig(secondary_separator=";", lower_case=True, caption_prefix="SKS,")
    assert read_captions(image, fixed) == ("SKS, cat, blue sky, clouds, day",)
    assert read_captions(image, replace(fixed, removed_tags="blue sky.*"))[0] == "SKS, cat, day"
    drawn = replace(fixed, shuffle_tags=True)
    assert read_captions(image, drawn) == ("SKS, cat, blue sky; clouds, day",)  # which the drawing needs
