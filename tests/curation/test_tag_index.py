"""Tags are counted as they change, and found by what a person types."""

from __future__ import annotations

import random

import pytest

from modules.config.ConceptConfig import ConceptConfig
from modules.curation.TagIndex import Misspelling, TagCount, TagIndex


@pytest.fixture
def index() -> TagIndex:
    index = TagIndex(ConceptConfig())
    for number in range(10):
        index.put(f"{number}.png", f"long hair, Blue eyes, 1girl{', smile' if number < 5 else ''}")
    index.put("a.png", "logn hair, blue eyes, 2girls, cat")
    return index


def test_tags_are_counted_in_their_most_frequent_spelling(index):
    assert index.all()[:3] == [TagCount("Blue eyes", 11), TagCount("1girl", 10), TagCount("long hair", 10)]
    assert index.images_with("CAT") == {"a.png"}
    index.put("a.png", "")
    assert index.images_with("cat") == frozenset()
    assert "cat" not in index.counts


def test_counts_after_any_changes_are_those_of_a_new_index():
    draw = random.Random(3)
    concept = ConceptConfig(captions="table")
    changed, texts = TagIndex(concept), {}
    for _ in range(200):
        image = str(draw.randint(0, 9))
        texts[image] = draw.choice(["", "cat, Cat", "cat\ndog, mat", "Dog", "mat,,cat"])
        changed.put(image, texts[image])
    fresh = TagIndex(concept)
    for image, text in texts.items():
        fresh.put(image, text)
    assert (changed.all(), changed.counts) == (fresh.all(), fresh.counts)


@pytest.mark.parametrize(
    ("typed", "first"),
    [("lo", "long hair"), ("EYES", "Blue eyes"), ("long hiar", "long hair"), ("", "Blue eyes"), ("sm", "smile")],
)
def test_what_is_typed_finds_tags_by_their_start_their_words_and_nearly_their_spelling(index, typed, first):
    assert index.suggest(typed)[0].tag == first


def test_nothing_is_suggested_for_what_is_like_no_tag(index):
    assert index.suggest("xylophone") == []
    assert len(index.suggest("", limit=2)) == 2


def test_rare_tags_near_frequent_ones_are_misspellings_but_for_other_numbers(index):
    assert index.misspellings() == [Misspelling(TagCount("logn hair", 1), TagCount("long hair", 10))]
