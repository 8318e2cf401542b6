"""Which caption a showing has is a hash of what it is, and everything that can be shown can be cached."""

import itertools
from collections import Counter
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from modules.config.ConceptConfig import ConceptConfig
from modules.data.CaptionSource import CaptionSource, shuffle_tags

TAGS = "sks, a cat, sitting, red, outdoors"


def source(*options: tuple[str, ...], variants: int | None = 4, seed: int = 1, words=(), **concept) -> CaptionSource:
    dataset = SimpleNamespace(concepts=[ConceptConfig(**concept)], concept_index=np.zeros(len(options), np.int32))
    return CaptionSource(dataset, options, seed, variants, words=words)


def shown(captions: CaptionSource, sample: int = 0, count: int = 400) -> list[str]:
    return [captions.draw(sample, epoch, repeat) for epoch in range(count // 2) for repeat in range(2)]


def test_one_caption_is_always_shown_as_it_is():
    assert set(shown(source((" a, cat ",)))) == {" a, cat "}


def test_of_several_captions_each_is_shown_about_equally_often():
    counts = Counter(shown(source(("a", "b", "c", "d"))))
    assert set(counts) == {"a", "b", "c", "d"}
    assert all(60 < count < 140 for count in counts.values())


def test_a_showing_has_its_caption_whatever_was_drawn_before():
    first, again = source(("a", "b", "c")), source(("a", "b", "c"))
    expected = [first.draw(0, epoch, 0) for epoch in range(50)]
    assert [again.draw(0, epoch, 0) for epoch in reversed(range(50))] == expected[::-1]
    assert expected != [source(("a", "b", "c"), seed=2).draw(0, epoch, 0) for epoch in range(50)]


@pytest.mark.parametrize("variants", [3, None])
def test_shuffled_captions_hold_the_same_tags_and_the_first_ones_stay(variants):
    texts = shown(source((TAGS,), variants=variants, shuffle_tags=True, keep_tags=2))
    assert all(sorted(text.split(", ")) == sorted(TAGS.split(", ")) for text in texts)
    assert all(text.startswith("sks, a cat, ") for text in texts)
    assert len(set(texts)) == (3 if variants else 6)  # 6 orders of three tags


def test_every_order_comes_about_equally_often():
    orders = Counter(shown(source(("a,b,c",), variants=None, shuffle_tags=True), count=1200))
    assert len(orders) == 6
    assert all(140 < count < 260 for count in orders.values())


@pytest.mark.parametrize(
    ("caption", "first", "middle", "last"),
    [
        ("sks, cat ||| red, blue, green", "sks, cat, ", "red, blue, green", ""),
        ("sks ||| red, blue, green ||| best quality", "sks, ", "red, blue, green", ", best quality"),
        ("sks, red, blue, green", "sks, ", "red, blue, green", ""),  # without a separator keep_tags holds
    ],
)
def test_a_separator_keeps_what_is_before_the_first_and_behind_the_second(caption, first, middle, last):
    options = {"keep_tags": 1, "kept_separator": "|||"}
    shuffled = shown(source((caption,), variants=None, shuffle_tags=True, **options))
    assert all(text.startswith(first) and text.endswith(last) for text in shuffled)
    assert {tuple(text.removeprefix(first).removesuffix(last).split(", ")) for text in shuffled} == {
        *itertools.permutations(middle.split(", "))
    }
    dropped = shown(source((caption,), variants=None, tag_dropout=0.9, **options))
    assert all(text.startswith(first.strip(", ")) and text.endswith(last.strip(", ")) for text in dropped)
    assert not any("|" in text for text in shuffled + dropped)


def test_tags_are_left_out_as_often_as_asked_but_not_those_in_front():
    texts = shown(source((TAGS,), variants=None, shuffle_tags=True, keep_tags=1, tag_dropout=0.25), count=1000)
    assert all(text.startswith("sks") for text in texts)
    counts = Counter(tag for text in texts for tag in text.split(", "))
    assert counts.pop("sks") == 1000
    assert all(690 < count < 810 for count in counts.values())


def test_tags_that_are_left_out_without_shuffling_keep_their_order():
    texts = shown(source((TAGS,), variants=8, keep_tags=1, tag_dropout=0.4))
    assert 2 < len(set(texts)) <= 8
    tags = TAGS.split(", ")
    for text in texts:
        kept = text.split(", ")
        assert kept == [tag for tag in tags if tag in kept]
        assert kept[0] == "sks"


@pytest.mark.parametrize("variants", [8, None])
@pytest.mark.parametrize("mode", ["single", "later", "all"])
def test_tags_with_a_word_to_be_learnt_are_neither_left_out_nor_capitalized(mode, variants):
    options = {"tag_dropout": 0.9, "tag_dropout_mode": mode, "capitalization": "any", "capitalization_share": 1.0}
    texts = shown(source(("red, a <cat>, blue",), variants=variants, words=("<cat>", "zebra-1"), **options))
    assert all("a <cat>" in text.split(", ") for text in texts)
    assert len(set(texts)) > 1
    assert not all("a <cat>" in text for text in shown(source(("red, a <cat>, blue",), **options)))


def test_all_tags_may_be_left_out():
    assert shuffle_tags("a, b", ConceptConfig(shuffle_tags=True, tag_dropout=1.0), 1) == ""


@pytest.mark.parametrize(("separator", "text"), [("|", "a| b c| d"), (" ", "a b"), (", ", "a, b c, d")])
def test_other_separators(separator, text):
    concept = ConceptConfig(shuffle_tags=True, tag_separator=separator)
    shuffled = shuffle_tags(text, concept, 1)
    assert sorted(map(str.strip, shuffled.split(separator))) == sorted(map(str.strip, text.split(separator)))


def test_everything_that_can_be_shown_is_listed_once_and_the_empty_caption_last():
    captions = source((TAGS, "x, y, z"), (TAGS,), ("",), variants=3, shuffle_tags=True, tag_dropout=0.3)
    texts = captions.all_texts()
    assert len(texts) == len(set(texts)) <= 7
    assert texts[-1] == ""
    assert {text for sample in range(3) for text in shown(captions, sample)} <= set(texts)


def test_equal_captions_share_their_variants():
    captions = source((TAGS,), (TAGS,), shuffle_tags=True)
    assert set(shown(captions, 0)) == set(shown(captions, 1))
    assert len(captions.all_texts()) == 5


def test_orders_without_end_can_not_be_listed():
    with pytest.raises(ValueError, match="can't be listed"):
        source((TAGS,), variants=None, shuffle_tags=True).all_texts()


def test_a_group_of_tags_is_shuffled_as_one():
    texts = shown(source(("a, b; c, d",), variants=None, shuffle_tags=True, secondary_separator=";"))
    assert {*texts} == {", ".join(order) for order in itertools.permutations(("a", "b, c", "d"))}


def left_out(count: int = 1000, **concept) -> dict[str, float]:
    """How often each tag of a caption is left out."""
    texts = shown(source((TAGS,), variants=None, **concept), count=count)
    return {tag: 1 - sum(tag in text.split(", ") for text in texts) / count for tag in TAGS.split(", ")}


def test_later_tags_are_left_out_more_often():
    shares = left_out(tag_dropout=0.8, tag_dropout_mode="later")
    expected = {"sks": 0.0, "a cat": 0.2, "sitting": 0.4, "red": 0.6, "outdoors": 0.8}
    assert shares == pytest.approx(expected, abs=0.06)


def test_all_tags_are_left_out_together():
    texts = Counter(shown(source((TAGS,), variants=None, keep_tags=1, tag_dropout=0.3, tag_dropout_mode="all")))
    assert set(texts) == {TAGS, "sks"}
    assert 80 < texts["sks"] < 160


@pytest.mark.parametrize(
    ("lists", "dropped"),
    [
        ({"dropped_tags": "red, SIT.*"}, {"sitting", "red"}),
        ({"undropped_tags": "sks, .* cat"}, {"sitting", "red", "outdoors"}),
        ({"dropped_tags": "red, sks", "undropped_tags": "sks"}, {"red"}),
    ],
)
def test_only_the_tags_that_the_lists_allow_are_left_out(lists, dropped):
    assert {tag for tag, share in left_out(200, tag_dropout=0.5, **lists).items() if share} == dropped


@pytest.mark.parametrize(("style", "changed"), [("upper", "RED HAIR"), ("title", "Red Hair"), ("first", "Red hair")])
def test_some_tags_get_another_capitalization_but_not_those_that_are_kept(style, changed):
    options = {"keep_tags": 1, "capitalization": style, "capitalization_share": 0.25}
    texts = Counter(shown(source(("sks, red hair",), variants=None, **options)))
    assert set(texts) == {"sks, red hair", f"sks, {changed}"}
    assert 60 < texts[f"sks, {changed}"] < 140


def test_any_capitalization_can_be_drawn_and_letters_can_be_capitals_at_random():
    options = {"variants": None, "capitalization_share": 1.0}
    letters = {*shown(source(("red hair",), capitalization="random", **options), count=50)}
    assert len(letters) > 40
    assert {text.lower() for text in letters} == {"red hair"}
    anything = Counter(shown(source(("red hair",), capitalization="any", **options)))
    assert all(60 < anything[text] < 140 for text in ("RED HAIR", "Red Hair", "Red hair"))


def test_captions_of_the_class_are_used_beside_those_with_the_trigger_word():
    concept = {"trigger_word": "sks", "class_word": "a (red) cat", "shuffle_tags": True}
    captions = replace(source(("sks, asks, sks", "a, b"), variants=3, **concept), preserves=True)
    drawn = {*shown(captions)}
    of_class = {captions.class_of(text, 0) for text in drawn} - {None}
    expected = (text.replace("sks", "a (red) cat").replace("aa (red) cat", "asks") for text in drawn if "sks" in text)
    assert of_class == {*expected}
    assert {*captions.all_texts()} == drawn | of_class | {""}
    assert captions.class_of("", 0) is captions.class_of("a", 0) is None


@pytest.mark.parametrize(
    ("concept", "caption", "expected"),
    [
        ({"lower_case": True}, "ohwx man", "a man"),
        ({"capitalization": "upper"}, "OHWX MAN", "a MAN"),
        ({}, "Ohwx man", "a man"),
        ({}, "ohwx man", None),  # as Mark and mark
    ],
)
def test_the_trigger_word_is_found_in_captions_whose_case_the_concept_changes(concept, caption, expected):
    captions = source((caption,), trigger_word="Ohwx", class_word="a", **concept)
    assert captions.class_of(caption, 0) == expected
