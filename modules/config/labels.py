"""Names of settings in messages.

A message names settings as files do ("data.bucket_step 64: ..."), which is what people type in a terminal. The window
shows the same message with labels ("Bucket resolution steps 64: ..."), which is what people see there.
"""

from __future__ import annotations

import re
from collections import Counter
from functools import lru_cache

from modules.config.describe import settings_by_path
from modules.config.explain import generic_path
from modules.config.installation import CONVERTS_CAPTIONS

_SAVES_AS_UTF8 = "Save as UTF-8 in the dataset window does that"

# Not inside words, paths, addresses and quoted texts, which are the user's own.
_NAME = re.compile(r"""(?<![\w./\\'"@-])[a-z][a-z0-9]*(?:[_.][a-z0-9]+)*(?![\w/\\'"-]|\.\w)""")
_QUOTED = re.compile(r"""((?:(?<=\s)|(?<=\())(?:'[^']*'|"[^"]*")|^'[^']*')""")


def label_of(path: str) -> str:
    """The label of a setting, with its section if others have the same, and with the number of its part, from 1:
    "concepts.0.path" -> "Concept 1: Folder". The path itself if it is not a setting."""
    info = settings_by_path().get(generic_path(path))
    if info is None:
        whole, _, number = path.rpartition(".")
        is_entry = number.isdecimal() and generic_path(whole) in settings_by_path()
        return f"{label_of(whole)}, entry {int(number) + 1}" if is_entry else path
    if part := re.match(r"(\w+(?:\.\w+)*?)\.([0-9]+)\.", path):
        noun = settings_by_path()[part[1]].part_name
        return f"{noun[:1].upper()}{noun[1:]} {int(part[2]) + 1}: {info.label}"
    return f"{info.section}: {info.label}" if info.label in _shared_labels() and info.section else info.label


def with_labels(message: str, path: str = "") -> str:
    """The message as the window says it: with labels in place of the names of settings, and the button that does what
    it names a script for.

    path: the setting that it is about; others of its section may be named without the section ("max_timestep"). A name
    that is also an English word ("method") is only replaced at the start, if it is that setting.
    """
    parts = _QUOTED.split(message.replace(CONVERTS_CAPTIONS, _SAVES_AS_UTF8))
    return "".join(part if number % 2 else _label_names(part, path, number == 0) for number, part in enumerate(parts))


def _label_names(text: str, path: str, is_start: bool) -> str:
    def label(match: re.Match[str]) -> str:
        name = match[0]
        is_word = not re.search(r"[_.]", name)
        if is_word and not (is_start and match.start() == 0 and name == path):
            return name
        return label_of(_full_path(name, path))

    return _NAME.sub(label, text)


def _full_path(name: str, near: str) -> str:
    """The path of a setting that is named without its section: in that of `near`, or the only one of that name."""
    section = near.rpartition(".")[0]
    for path in (name, f"{section}.{name}"):
        if generic_path(path) in settings_by_path():
            return path
    found = [path for path in settings_by_path() if path.rpartition(".")[2] == name and "[]" not in path]
    return found[0] if len(found) == 1 else name


@lru_cache(maxsize=1)
def _shared_labels() -> frozenset[str]:
    """Labels of several settings outside of lists, whose parts are numbered."""
    counts = Counter(info.label for path, info in settings_by_path().items() if "[]" not in path)
    return frozenset(label for label, count in counts.items() if count > 1)
