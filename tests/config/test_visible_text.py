"""Foreign text can neither control a terminal nor hide anything from the reader."""

import pytest

from modules.config.errors import ConfigError, UserError
from modules.config.problems import Problem
from modules.config.visible_text import find_hidden, visible_line, visible_text


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("a\x1b]0;pwned\x07\n\u202egnp.png", r"a\x1b]0;pwned\x07\n\u202egnp.png"),
        ("\x00\t\r\x7f\x85\x9b2J", r"\x00\t\r\x7f\x85\x9b2J"),
        ("".join(map(chr, (*range(0x202A, 0x202F), *range(0x2066, 0x206A)))), None),
        ("\u200e\u200f\u061c\u2028\u2029", None),
        ("\u200b\u2060\ufeff\u00ad\u180e\u2063\ufff9", None),
        ("pay\u200dpal\u200c", r"pay\u200dpal\u200c"),
        ("caf\udce9.png", r"caf\udce9.png"),
        ("\U000e0041\U0001d173", r"\U000e0041\U0001d173"),
        ("\U0001f3f4\U000e0041", "\U0001f3f4\\U000e0041"),  # an unterminated flag
    ],
)
def test_what_can_not_be_seen_is_escaped(text, shown):
    assert visible_line(text) == (shown or text.encode("unicode_escape").decode())
    assert find_hidden(text) is not None
    assert visible_line(visible_line(text)) == visible_line(text)


@pytest.mark.parametrize(
    "text",
    [
        r"C:\new\x1b folder\a.png",
        "قطة، ١٢٪ \u0600١٢ – ה\u05b7חתול",
        "می\u200cخواهم، ۱۴۰۰ ه\u200d.ش",
        "क्\u200dष 猫 kočka e\u0301",
        "\U0001f469\u200d\U0001f469\u200d\U0001f467 \U0001f3f3\ufe0f\u200d\U0001f308 ❤\ufe0f",
        "\U0001f3f4\U000e0067\U000e0062\U000e0073\U000e0063\U000e0074\U000e007f",
    ],
    ids=["path", "arabic and hebrew", "persian", "indic and others", "emoji", "flag"],
)
def test_ordinary_text_in_any_language_stays_as_it_is(text):
    assert visible_line(text) == visible_text(text) == text
    assert find_hidden(text) is None


def test_a_text_keeps_its_lines_and_tabs_and_nothing_else_that_moves_the_cursor():
    assert visible_text("one\r\n\ttwo\rthree\n\x1b[2Jfour\n") == "one\n\ttwo\\rthree\n\\x1b[2Jfour\n"


def test_an_error_is_one_line_whatever_it_names():
    assert str(UserError("a\nb\x1b[2J.png is broken: repair it.")) == r"a\nb\x1b[2J.png is broken: repair it."
    error = ConfigError([Problem("a", "a\nb is unknown."), Problem("c", "c is not a number.")])
    assert [problem.message for problem in error.problems] == [r"a\nb is unknown.", "c is not a number."]
    assert str(error) == "a\\nb is unknown.\nc is not a number."
