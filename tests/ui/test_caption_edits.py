"""The preview of an edit of many captions."""

import pytest

from modules.ui.models.caption_edits import around_change

TAGS = "a photo of ohwx cat, sleeping in the grass, {}blurred background"


@pytest.mark.parametrize(
    ("before", "added", "shown"),
    [
        (TAGS.format(""), ", red", "…blurred background, red"),
        (TAGS.format("") + ", on", ", red", "…blurred background, on, red"),
        (TAGS.format("x" * 7), ", red", f"…{'x' * 7}blurred background, red"),
        ("it goes on and on without a comma in a long sentence", " of a cat", "…comma in a long sentence of a cat"),
        ("x" * 60, "y", "…" + "x" * 20 + "y"),
        ("a short one", ", red", "a short one, red"),
        ("猫" * 60, "犬", "…" + "猫" * 20 + "犬"),
    ],
)
def test_a_preview_begins_with_a_whole_tag_or_word_before_the_change(before, added, shown):
    assert around_change(before, before + added) == (shown.removesuffix(added), shown)


def test_a_preview_of_a_text_that_is_removed_begins_alike():
    before, after = TAGS.format("beach, ") + ", red, sitting", TAGS.format("beach, ") + ", sitting"
    assert around_change(before, after) == ("…blurred background, red, sitting", "…blurred background, sitting")
