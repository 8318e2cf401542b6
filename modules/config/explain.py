"""Error messages for invalid settings: the setting, its value, the rule and the remedy."""

import difflib
import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import ValidationError

from modules.config.describe import SettingInfo, range_text, settings_by_path
from modules.config.installation import docs_page
from modules.config.other_programs import ForeignSetting, settings_by_foreign_name
from modules.config.problems import Problem
from modules.config.show_value import MAX_SHOWN, show_value

SQUARE = "the side of a square of as many pixels"
UNKNOWN_KEY_ERRORS = ("unexpected_keyword_argument", "invalid_key")
MAX_PATH = 200
MAX_LISTED = 20


def explain(error: ValidationError, source: str = "") -> list[Problem]:
    """One problem for each of the first 20 mistakes that pydantic found in the values for a TrainConfig.

    source: where the values came from, such as a file name; empty to leave it out.
    """
    problems = error.errors(include_url=False)
    listed = [
        Problem(_path_of(problem["loc"]), explain_one(problem["loc"], problem, source))
        for problem in problems[:MAX_LISTED]
    ]
    hidden = len(problems) - len(listed)
    return [*listed, Problem("", f"... and {hidden} more mistakes{_in(source)}.")] if hidden else listed


def explain_one(location: Sequence[Any], problem: Mapping[str, Any], source: str) -> str:
    """The sentence for one entry of `ValidationError.errors()`, at the path given by `location`."""
    path = _path_of(location)
    if problem["type"] in UNKNOWN_KEY_ERRORS:
        return unknown_setting(path, source)
    info = _find(path)
    if problem["type"] == "string_unicode" and info is None:  # of a section: it is one of the names in it
        return unknown_setting(".".join(filter(None, (path, str(problem["input"])))), source)
    rule = str(problem["ctx"]["error"]) if problem["type"] == "value_error" else _rule(path, info)
    remedy = _remedy(path, info, problem)
    return f"{path} is {show_value(problem['input'])}{_in(source)}: it must be {rule}{remedy}."


def unknown_setting(path: str, source: str = "") -> str:
    """The sentence for a path that is not a setting, with the most likely intended one."""
    path = path[:MAX_PATH]
    start = f"unknown setting {path if path.isprintable() else ascii(path)}{_in(source)}"
    foreign = settings_by_foreign_name().get(path) or _named_like_the_last_part_of(path)
    if foreign and foreign.instead and not foreign.here:
        return f"{start}: {foreign.instead}."
    meant = _with_numbers_of(path, foreign.here.removesuffix("[]") if foreign else "") or _closest(path)
    if meant and meant != path:
        return f"{start}: did you mean {meant}?"
    return f"{start}: remove it, or look its name up in {docs_page('settings')}."


def _named_like_the_last_part_of(path: str) -> ForeignSetting | None:
    """The setting of another program with the name that `path` ends with, if none of Chorus' has it."""
    name = path.rpartition(".")[2]
    is_ours = any(known.rpartition(".")[2] == name for known in settings_by_path())
    return None if is_ours else settings_by_foreign_name().get(name)


def square_side(text: str) -> int | None:
    """Convert a resolution given as width and height, "1024,768" or "1024x768", as in other trainers, to ours in
    pixels: the side of the square with the same area. None for any other text."""
    sides = re.fullmatch(r"\s*([1-9][0-9]{0,5})\s*[,x×*]\s*([1-9][0-9]{0,5})\s*", text.lower())
    return round(math.sqrt(int(sides[1]) * int(sides[2]))) if sides else None


def generic_path(path: str) -> str:
    """The path with indexes replaced by []: "concepts.0.path" -> "concepts[].path"."""
    return re.sub(r"\.[0-9]{1,18}(?=\.|$)", "[]", path)


def section_paths() -> set[str]:
    """The paths that contain settings but are not settings: "model", "concepts[]"."""
    return {path.rpartition(".")[0] for path in settings_by_path()} - {""}


def _closest(path: str) -> str:
    """The setting probably meant: one in the same section, else one with a similar path, else one of the same name."""
    generic = generic_path(path)
    parent, _, name = generic.rpartition(".")
    # Basic settings first: a top-level `learning_rate` means the optimizer's rather than the text encoder's.
    settings = sorted(settings_by_path().values(), key=lambda info: info.importance != "basic")
    known = [*(info.path for info in settings), *sorted(section_paths())]
    neighbours = [other for other in known if other.rpartition(".")[0] == parent]
    meant = _closest_name(name, neighbours)
    if not meant:
        meant = next(iter(difflib.get_close_matches(generic, known, n=1, cutoff=0.8)), "")
    if not meant:
        meant = _closest_name(name, known)
    return _with_numbers_of(path, meant)


def _closest_name(name: str, paths: list[str]) -> str:
    by_name: dict[str, str] = {}
    for path in paths:
        by_name.setdefault(path.rpartition(".")[2], path)
    matches = difflib.get_close_matches(name, by_name, n=1, cutoff=0.7)
    return by_name[matches[0]] if matches else ""


def _with_numbers_of(path: str, generic: str) -> str:
    """`generic` with the indexes of `path`: "concepts.2.pth", "concepts[].path" -> "concepts.2.path"."""
    for number in re.findall(r"\.([0-9]+)(?=\.|$)", path):
        generic = generic.replace("[]", f".{number}", 1)
    return generic.replace("[]", ".0")


def _find(path: str) -> SettingInfo | None:
    """The setting at the path; for an entry of a list of numbers the list; for a section None."""
    generic = generic_path(path)
    known = settings_by_path()
    if generic in section_paths() and generic not in known:
        return None
    return known.get(generic) or known.get(generic.removesuffix("[]"))


def _rule(path: str, info: SettingInfo | None) -> str:
    if info is None:
        example = next(known for known in settings_by_path() if known.startswith(f"{generic_path(path)}."))
        return f"a section with settings of its own, such as {_with_numbers_of(path, example)}"
    if info.type == "choice":
        if len(info.choices) > MAX_LISTED:
            return f"one of the {len(info.choices)} that {docs_page('settings')} lists, such as {info.choices[0]}"
        return f"one of {', '.join(info.choices)}"
    is_entry = generic_path(path) != info.path
    words = {
        "bool": "true or false",
        "int": "a whole number",
        "float": "a finite number",
        "str": "text",
        "list": "a list of sections",
        "list[int]": "a whole number" if is_entry else "a list of whole numbers",
        "list[float]": "a number" if is_entry else "a list of numbers",
        "list[str]": "text" if is_entry else "a list of texts",
    }
    limits = range_text(info)
    rule = words[info.type] + (f", {limits}" if limits else "")
    return f"{rule}, or empty" if info.optional else rule


def _remedy(path: str, info: SettingInfo | None, problem: Mapping[str, Any]) -> str:
    value = problem["input"]
    if info is None or generic_path(path) != info.path:
        return ""
    if info.type == "list[str]" and isinstance(value, str):
        return "; put it in brackets, [like this]"
    if problem["type"] == "string_type" and value is not None and not isinstance(value, (list, dict)):
        return "; put it in quotes"
    if info.path.endswith("resolution") and isinstance(value, str) and (side := square_side(value)):
        return f"; give {side}, {SQUARE}"
    if info.type == "choice" and isinstance(value, str):
        match = difflib.get_close_matches(value[:MAX_SHOWN].lower(), info.choices, n=1)
        if match:
            return f"; {match[0]} was probably meant"
    if info.default is None:
        return "; leave it empty if in doubt"
    return f"; the default is {info.default if info.type == 'choice' else show_value(info.default)}"


def _path_of(location: Sequence[Any]) -> str:
    return ".".join(map(_show_name, location))


def _show_name(name: Any) -> str:
    text = show_value(name).strip("'\"")
    return text if text.isprintable() and text else repr(text)


def _in(source: str) -> str:
    return f" in {source}" if source else ""
