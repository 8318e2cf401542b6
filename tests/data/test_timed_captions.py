"""A clip has the captions of its own time, which stand in its video's caption."""

import pytest

from modules.config.ConceptConfig import ConceptConfig
from modules.data.captions import read_captions
from modules.data.timed_captions import CaptionPart, Span, caption_parts, captions_at

CAPTION = "a cat in a garden [0:00 - 0:03] the cat sleeps [00:03–1:02:06.5] it walks away [0:09 - 0:12]"


def test_times_divide_a_caption_into_that_of_the_video_and_those_of_its_parts():
    assert caption_parts((CAPTION,)) == (
        CaptionPart("a cat in a garden", None),
        CaptionPart("the cat sleeps", Span(0, 3)),
        CaptionPart("it walks away", Span(3, 3726.5)),
        CaptionPart("", Span(9, 12)),
    )


@pytest.mark.parametrize("text", ["", "a chart [1-2] of [cat:dog:0.5] at 0:01 - 0:02", "[0:01]"])
def test_other_brackets_are_text(text):
    assert caption_parts((text,)) == (CaptionPart(text, None),)


@pytest.mark.parametrize(
    ("span", "expected"),
    [
        (Span(0.0, 3.1), "the cat sleeps"),
        (Span(2.9, 6.0), "it walks away"),
        (Span(1.4, 4.4), "the cat sleeps"),  # a little more than half of it
        (Span(4000.0, 4003.0), "a cat in a garden"),
    ],
)
def test_a_clip_has_the_caption_of_most_of_its_time_or_that_of_its_video(span, expected):
    assert captions_at((CAPTION,), span) == (expected,)


def test_a_long_video_has_room_for_many_captions(tmp_path):
    lines = (
        f"[{number // 60}:{number % 60:02} - {number // 60}:{number % 60 + 1:02}] {'word ' * 20}{number}"
        for number in range(1000)
    )
    (tmp_path / "film.txt").write_text("\n".join(lines))
    (caption,) = read_captions(tmp_path / "film.mp4", ConceptConfig(), span=Span(600.0, 601.0))
    assert caption.endswith("word 600")


def test_without_a_caption_of_the_video_other_times_have_none_and_several_of_one_time_are_alternatives():
    lines = ("[0:00 - 0:02] a cat", "[0:00 - 0:02] an animal", "[0:05 - 0:03] backwards")
    assert captions_at(lines, Span(0.5, 2.0)) == ("a cat", "an animal")
    assert captions_at(lines, Span(3.0, 5.0)) == ("",)


def test_times_are_shown_as_they_are_written():
    assert str(Span(0, 3.0625)) == "[0:00 - 0:03.06]"
    assert str(Span(59.999, 3726.5)) == "[1:00 - 62:06.5]"
