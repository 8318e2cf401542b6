"""Edits of tags change what they should over a selection, and nothing else of a caption."""

from __future__ import annotations

import pytest

from modules.config.ConceptConfig import ConceptConfig
from modules.config.errors import UserError
from modules.curation import tag_edits
from modules.curation.tag_edits import Edit

TAGS = ConceptConfig()


def edited(edit, text: str, *arguments, concept: ConceptConfig = TAGS, **options) -> str:
    """The caption after an edit of it alone."""
    preview = edit({"a.png": text}, *arguments, concept, **options)
    return preview["a.png"].after if preview else text


def test_a_preview_has_before_and_after_of_what_changes_alone():
    texts = {"a.png": "cat, mat", "b.png": "dog", "c.png": ""}
    preview = tag_edits.add_tags(texts, ["mat"], TAGS)
    assert preview == {"b.png": Edit("dog", "dog, mat"), "c.png": Edit("", "mat")}
    assert tag_edits.edited_texts(preview) == {"b.png": "dog, mat", "c.png": "mat"}


@pytest.mark.parametrize(
    ("text", "place", "after"),
    [
        ("cat,mat", "end", "cat,mat, sky, big"),  # what was there is not rewritten
        ("cat,  Sky", "end", "cat,  Sky, big"),
        ("cat, ", "end", "cat, sky, big "),
        ("cat", "front", "sky, big, cat"),
        ("  ", "end", "  sky, big"),
    ],
)
def test_tags_are_added_where_they_lack(text, place, after):
    assert edited(tag_edits.add_tags, text, ["sky", " big "], place=place).rstrip() == after.rstrip()


@pytest.mark.parametrize(
    ("text", "after"),
    [
        ("cat, mat,hat", "cat,hat"),
        ("Mat, cat", "cat"),
        ("cat,\nmat", "cat"),
        ("mat", ""),
        ("a cat on a mat", "a cat on a mat"),
        ("mat, cat, MAT , doormat", "cat, doormat"),
    ],
)
def test_tags_are_removed_wherever_they_are(text, after):
    assert edited(tag_edits.remove_tags, text, ["mat"]) == after


def test_a_tag_takes_the_place_of_another_once():
    assert edited(tag_edits.replace_tag, "a,  grey hair ,b", "grey hair", "gray hair") == "a,  gray hair ,b"
    assert edited(tag_edits.replace_tag, "gray hair, grey hair", "grey hair", "gray hair") == "gray hair"
    assert edited(tag_edits.replace_tag, "Cat, mat", "cat", "cat") == "cat, mat"
    assert edited(tag_edits.replace_tag, "cat, mat", "cat", " ") == "mat"


def test_tags_move_to_the_front_in_the_order_that_is_asked_for():
    assert edited(tag_edits.move_to_front, "a,b, big Cat,sky", ["sky", "BIG cat", "none"]) == "sky, big Cat, a,b"
    assert edited(tag_edits.move_to_front, "sky,a", ["sky"]) == "sky,a"


def test_tags_are_sorted_by_name_or_frequency_behind_those_that_are_kept():
    assert edited(tag_edits.sort_tags, "c,B, a") == "a, B, c"
    assert edited(tag_edits.sort_tags, "a, b") == "a, b"
    assert edited(tag_edits.sort_tags, "a, b, c", counts={"c": 9, "b": 4}) == "c, b, a"
    assert edited(tag_edits.sort_tags, "sks, c, b", concept=ConceptConfig(keep_tags=1)) == "sks, b, c"


def test_duplicates_go_but_for_the_first():
    assert edited(tag_edits.deduplicate_tags, "cat, Mat,cat ,mat, hat") == "cat, Mat, hat"


def test_separators_are_tidied():
    assert edited(tag_edits.tidy_tags, ",cat ,, mat,") == "cat, mat"


def test_edits_in_turn_are_one_preview():
    texts = {"a.png": "cat ,Cat,, mat", "b.png": "dog, fog"}
    both = tag_edits.in_turn(texts, TAGS, tag_edits.deduplicate_tags, tag_edits.tidy_tags)
    assert both == {"a.png": Edit("cat ,Cat,, mat", "cat, mat")}


def test_a_trigger_word_comes_once_as_a_tag_or_a_word():
    assert edited(tag_edits.add_trigger, "a cat", "sks") == "sks, a cat"
    assert edited(tag_edits.add_trigger, "a cat", "sks", as_tag=False) == "sks a cat"
    assert edited(tag_edits.add_trigger, "a sks cat", "sks") == "a sks cat"
    assert edited(tag_edits.add_trigger, "asks a cat", "sks", place="end") == "asks a cat, sks"
    with pytest.raises(UserError, match="trigger word is empty"):
        edited(tag_edits.add_trigger, "a cat", " ")


def test_a_caption_is_copied_to_all_or_where_there_is_none():
    texts = {"a.png": "cat", "b.png": " "}
    assert tag_edits.edited_texts(tag_edits.copy_caption(texts, "dog", TAGS)) == {"a.png": "dog", "b.png": "dog"}
    assert list(tag_edits.copy_caption(texts, "dog", TAGS, only_missing=True)) == ["b.png"]


@pytest.mark.parametrize(
    ("find", "replacement", "options", "after"),
    [
        (".", "!", {}, "A cat! a cat"),
        ("cat", "dog", {}, "A dog. a dog"),
        ("a cat", "dog", {"ignore_case": True}, "dog. dog"),
        ("a", "the", {"whole_words": True}, "A cat. the cat"),
        (r"(\w)at", r"\1ow\\1", {"is_regex": True}, r"A cow\1. a cow\1"),
        ("cat", r"\1", {}, r"A \1. a \1"),
    ],
)
def test_text_is_found_and_replaced(find, replacement, options, after):
    assert edited(_find, "A cat. a cat", find, replacement, **options) == after


@pytest.mark.parametrize(("find", "replacement"), [("(", ""), ("cat", r"\1"), ("cat", r"\q"), ("(a)", r"\g<b>")])
def test_a_wrong_regular_expression_is_one_sentence(find, replacement):
    with pytest.raises(UserError, match="correct the regular expression, or turn regular expressions off"):
        edited(_find, "a cat", find, replacement, is_regex=True)


def _find(texts, find, replacement, concept, **options):
    return tag_edits.find_and_replace(texts, find, replacement, concept, **options)


def test_the_separators_are_those_of_the_concept():
    kept = ConceptConfig(kept_separator="|||", secondary_separator=";", tag_separator=",")
    text = "sks, x ||| cat, blue sky; clouds, big ||| best"
    assert edited(tag_edits.add_tags, text, ["new", "clouds"], concept=kept) == (
        "sks, x ||| cat, blue sky; clouds, big, new ||| best"
    )
    assert edited(tag_edits.remove_tags, text, ["blue sky", "best"], concept=kept) == (
        "sks, x ||| cat, clouds, big ||| "
    )
    assert edited(tag_edits.sort_tags, text, concept=kept) == "sks, x ||| big, blue sky; clouds, cat ||| best"
    words = ConceptConfig(tag_separator=" ")
    assert edited(tag_edits.add_tags, "cat mat", ["sky"], concept=words) == "cat mat sky"
    assert edited(tag_edits.remove_tags, "a, b c", ["b c"], concept=ConceptConfig(tag_separator="")) == "a, b c"


def test_each_caption_of_an_image_is_edited_on_its_own():
    lines = ConceptConfig(caption_per_line=True)
    assert edited(tag_edits.add_tags, "cat\n\nmat, cat", ["mat"], concept=lines) == "cat, mat\n\nmat, cat"
    assert edited(tag_edits.remove_tags, "cat\nmat, cat", ["cat"], concept=lines) == "mat"
    assert edited(tag_edits.add_tags, "", ["cat"], concept=ConceptConfig(captions="table")) == "cat"


def test_times_of_a_video_stay_before_the_parts_that_they_are_of():
    text = "[0:00 - 0:03] cat, sleeps\n[0:03 - 0:06.5] runs"
    assert edited(tag_edits.add_trigger, text, "sks") == "[0:00 - 0:03] sks, cat, sleeps\n[0:03 - 0:06.5] sks, runs"
    assert edited(tag_edits.remove_tags, f"cat {text}", ["cat"]) == " [0:00 - 0:03] sleeps\n[0:03 - 0:06.5] runs"
