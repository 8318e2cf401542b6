"""Weights of words are read as A1111 writes them."""

import pytest

from modules.families.prompt_weights import weighted_parts


@pytest.mark.parametrize(
    ("prompt", "parts"),
    [
        ("a cat", [("a cat", 1.0)]),
        ("", []),
        ("a (red:1.5) cat", [("a ", 1.0), ("red", 1.5), (" cat", 1.0)]),
        ("(a) [b]", [("a", 1.1), (" ", 1.0), ("b", 1 / 1.1)]),
        ("((a) b:2)", [("a", 1.1 * 2), (" b", 2.0)]),
        ("(a: b: .5)", [("a: b", 0.5)]),
        (r"smile \(face\) \\", [("smile (face) \\", 1.0)]),
        ("a) b] (c", [("a) b] c", 1.0)]),  # never opened, or never closed
        ("a:1.2) b", [("a:1.2) b", 1.0)]),
        ("[a:1.2]", [("a:1.2", 1 / 1.1)]),
        ("(a:-1)", [("a", -1.0)]),
    ],
)
def test_brackets_and_numbers_are_weights(prompt, parts):
    assert [text for text, _ in weighted_parts(prompt)] == [text for text, _ in parts]
    assert [weight for _, weight in weighted_parts(prompt)] == pytest.approx([weight for _, weight in parts])
