"""What people read in the window and the terminal has the field's words, in plain American English."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
FAMILIES = ROOT / "modules" / "families"  # their notes are written into docs/families.md: prose about models
SOURCES = (
    *(path for path in (ROOT / "modules").rglob("*.py") if FAMILIES not in path.parents),
    *(ROOT / "scripts" / "starting").glob("*.py"),
)
INSTEAD = {
    r"\bpictures?\b": "image",
    r"\blearnt\b": "learned",
    r"\banew\b": "again",
    r"\bheeds?\b": "uses, considers",
    r"\bso many\b": "a number, or `N`",
    r"\bgo(es)? on from\b": "resume from, continue from",
    r"\bin place of\b": "instead of",
    r"\bis no (file|folder|image|model|name|number|path|value)\b(?! (here|left|yet))": "is not a",
    r"\b(colour|centre)s?\b": "color, center",
    r"\bswitch(es)? it off\b": "turn it off",
    r" …": "an ellipsis without a space before it",
    r"\d %": "a percent sign without a space before it",
}
THERE = re.compile(r"\b[Tt]here is no\b")  # "there is no file X" is plain English


def test_the_words_that_have_to_be_read_twice_stay_out_of_the_texts_for_users():
    found = []
    for path in SOURCES:
        for line, text in _texts(ast.parse(path.read_text(encoding="utf-8"))):
            found += [
                f"{path.relative_to(ROOT)}:{line}: {match[0]!r}; write {better}"
                for words, better in INSTEAD.items()
                if (match := re.search(words, THERE.sub("", text)))
            ]
    assert found == []


def test_the_pages_say_again_rather_than_anew():
    pages = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]
    assert [page.name for page in pages if re.search(r"\banew\b", page.read_text(encoding="utf-8"))] == []


@pytest.mark.parametrize("text", ["the pictures of a folder", "50 % of it", "it is no folder", "Edit … it"])
def test_such_a_text_is_found(text):
    assert any(re.search(words, text) for words in INSTEAD)


def _texts(tree):
    """(line, text) of each string that may be a sentence: no docstring, no name, no description of a model's file."""
    described = {
        id(node.body[0].value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef)
        and node.body
        and isinstance(node.body[0], ast.Expr)
    }
    for node in ast.walk(tree):
        if not isinstance(node, ast.Constant) or not isinstance(node.value, str) or id(node) in described:
            continue
        if " " in node.value.strip():
            yield node.lineno, node.value
