"""What models answer, as captions."""

from __future__ import annotations

import re

from modules.annotators.Captioner import Failure

_THOUGHTS = re.compile(r"(?s)^.*?</think>")  # of models that reason before they answer
_LABEL = re.compile(r"^(?:caption|answer|assistant)\s*:\s*", re.IGNORECASE)


def as_caption(text: str) -> str | Failure:
    """A model's answer on one line, without thoughts, labels and quotation marks around it."""
    text = " ".join(_LABEL.sub("", _THOUGHTS.sub("", text).strip()).split())
    if len(text) > 1 and (text[0], text[-1]) in (('"', '"'), ("“", "”")) and text.count(text[0]) <= 2:
        text = text[1:-1].strip()
    text = "".join(letter for letter in text if letter.isprintable()).strip()
    return text or Failure("the model wrote nothing")
