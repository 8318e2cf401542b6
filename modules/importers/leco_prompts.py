"""LECO's prompts files as the prompts of a slider."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

from modules.importers.foreign_values import shown
from modules.importers.ImportResult import Line
from modules.importers.ListEntry import ListEntry
from modules.importers.Translation import Translation

_PREFIX = "prompts[]."
_EXACT = 1e-9  # below it, a prompt has no weight


@dataclass(frozen=True)
class Direction:
    """What an entry trains: the prediction for `target` becomes neutral + scale (positive - unconditional)."""

    target: str
    positive: str
    unconditional: str
    neutral: str
    scale: float

    @property
    def prompts(self) -> tuple[str, ...]:
        """All of them."""
        return (self.target, self.positive, self.unconditional, self.neutral)

    def weights(self) -> dict[str, float]:
        """The weight of each prompt's prediction in the movement away from that of the target; without those of 0."""
        found: Counter[str] = Counter()
        found[self.neutral] += 1
        found[self.target] -= 1
        found[self.positive] += self.scale  # type: ignore[assignment]
        found[self.unconditional] -= self.scale  # type: ignore[assignment]
        return {prompt: weight for prompt, weight in found.items() if abs(weight) > _EXACT}


def take_prompts(t: Translation, content: Sequence[object]) -> None:
    """Take a prompts file. A slider has one target here: entries that only differ in attributes are one together."""
    given = [values for values in content if isinstance(values, dict)]
    found = [ListEntry(t, values, _PREFIX, f"prompt {number + 1}", "slider") for number, values in enumerate(given)]
    if not found:
        t.result.left.append(Line("prompts", why="the file has no entry with a target"))
        return
    first, direction = found[0], _direction(found[0])
    if not any(direction.prompts):
        _take_pairs(t, first)
    else:
        attributes = _attributes([_direction(one) for one in found], found)
        if attributes:
            direction = _without(direction, attributes[0])
        _take_direction(first, direction)
        _take_attributes(t, first, found, attributes)
    _take_size(first)
    for one in found:
        one.note_rest()
    _say_once(t, [one.label for one in found])


def _direction(one: ListEntry) -> Direction:
    sign = -1.0 if one["action"].strip().lower() == "erase" else 1.0
    target, unconditional = one["target"], one["unconditional"]
    positive = target if one["positive"] is None else one["positive"]
    neutral = unconditional if one["neutral"] is None else one["neutral"]
    return Direction(target, positive, unconditional, neutral, sign * one["guidance_scale"])


def _take_pairs(t: Translation, one: ListEntry) -> None:
    """Empty prompts are those of the authors' script for sliders from pairs of images."""
    why = "empty prompts are of a slider from images: set the folders that were named in the command, the strong one "
    one.take("source", "pairs", "target", why=f"{why}as concepts[].path, the weak one as concepts[].pair_folder")


def _take_direction(one: ListEntry, direction: Direction) -> None:
    """The two prompts and the distance between which the same movement lies, if there are two."""
    names = ("positive", "unconditional", "neutral", "action", "guidance_scale")
    one.take("source", "prompts", "target")
    one.take("target", direction.target, "target")
    weights = direction.weights()
    if not weights:
        one.leave("the target would be trained to stay as it is: correct the prompts", "target", *names)
        return
    if len(weights) == 2:
        more, less = sorted(weights, key=lambda prompt: weights[prompt], reverse=True)
        eta, why = weights[more], "the prediction moves to the same place as there"
        is_plain = (more, less, eta) == (direction.positive, direction.unconditional, one["guidance_scale"])
        why = "" if is_plain else why
    else:
        more, less = direction.positive, direction.unconditional
        more, less = (more, less) if direction.scale > 0 else (less, more)
        eta, why = abs(direction.scale), "the prediction moves from that for the target here, for neutral there"
    one.take("positive", more, *names, why=why)
    one.take("negative", less, *names, why=why)
    one.take("eta", eta, "guidance_scale", "action", why=why)


def _take_attributes(t: Translation, first: ListEntry, found: list[ListEntry], attributes: list[str]) -> None:
    if attributes:
        why = "each prompt is trained in turn there; the direction is their mean here, for the target without them"
        t.take_line("slider.preserve", ", ".join(attributes), _named(found, "target"), why)
    elif len(found) > 1:
        why = "a slider has one target here: train another in a run of its own"
        t.result.left.append(Line(_named(found[1:], "target"), why=why))


def _named(found: list[ListEntry], name: str) -> str:
    return "; ".join(f"{one.label}: {shown(name, one[name])}" for one in found[:3]) + "; ..." * (len(found) > 3)


def _say_once(t: Translation, labels: list[str]) -> None:
    """Leave out the lines that only repeat, for a further entry, what is said of an earlier one."""
    said: set[tuple[str, str]] = set()
    kept = []
    for line in t.result.left:
        label = next((one for one in labels if line.theirs.startswith(f"{one}: ")), "")
        text = (line.theirs.removeprefix(label), line.why)
        if not label or text not in said:
            kept.append(line)
        said.add(text)
    t.result.left[:] = kept


def _take_size(one: ListEntry) -> None:
    one.take_common("data.resolution", one["resolution"], "resolution")
    one.take_common("batch_size", one["batch_size"], "batch_size")


# --- attributes -------------------------------------------------------------------------------------------------------


def _attributes(directions: list[Direction], found: list[ListEntry]) -> list[str]:
    """What stands before all prompts of each entry, if the entries are the same but for that; else nothing."""
    if len(directions) < 2 or len({(one["resolution"], one["batch_size"]) for one in found}) > 1:
        return []
    attributes = [_first_words(one.target, directions) for one in directions]
    if not all(attributes) or len(set(attributes)) < len(attributes) or any("," in one for one in attributes):
        return []
    bare = {_without(one, attribute) for one, attribute in zip(directions, attributes, strict=True)}
    return attributes if len(bare) == 1 and None not in next(iter(bare)).prompts else []


def _first_words(target: str, directions: list[Direction]) -> str:
    """The words of a target in front of those with which all targets end."""
    ends = [one.target.split() for one in directions]
    same = 0
    while same < min(map(len, ends)) and len({end[-1 - same] for end in ends}) == 1:
        same += 1
    words = target.split()
    return " ".join(words[: len(words) - same])


def _without(direction: Direction, attribute: str) -> Direction:
    """The same without the attribute before each prompt; one that lacks it stays, so that it tells entries apart."""
    texts = [" ".join(prompt.split()) for prompt in direction.prompts]
    target, positive, unconditional, neutral = (text.removeprefix(attribute).lstrip() for text in texts)
    return replace(direction, target=target, positive=positive, unconditional=unconditional, neutral=neutral)
