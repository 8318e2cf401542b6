"""How ai-toolkit's sliders from prompts become concept sliders of Chorus, and the sound of its videos."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from modules.config.other_programs import ForeignSetting
from modules.importers.AiToolkitTranslation import AiToolkitTranslation
from modules.importers.foreign_values import read_as, shown
from modules.importers.ImportResult import Line
from modules.importers.ListEntry import entries

_OF_SLIDER = {"positive_prompt": "positive", "negative_prompt": "negative", "target_class": "target"}
_OF_TARGET = {"positive": "positive", "negative": "negative", "target_class": "target"}
_WITHOUT_EFFECT = ("batch_full_slide", "low_ram", "prompt_tensors")  # on the result


def _take_slider(t: AiToolkitTranslation, setting: ForeignSetting) -> None:
    given = t.section("slider")
    if not t.is_slider:
        if given:
            t.leave("only processes of type concept_slider and slider use it", "slider")
        return
    t.take_line("slider.source", "prompts", shown("type", t.kind))
    if t.draws_images:
        _take_targets(t, given)
    else:
        _take_prompts(t, given, _OF_SLIDER)
        strength = t.number("slider", "guidance_strength", 3.0)
        why = "targets are scaled to the spread of the base model's prediction there"
        t.take_line("slider.eta", strength, shown("guidance_strength", strength), why)
        given.pop("guidance_strength", None)
    _leave_rest(t, given)


def _take_targets(t: AiToolkitTranslation, given: dict[str, Any]) -> None:
    """Those of the process that has no images."""
    targets = entries(given.pop("targets", None))
    first = dict(targets[0]) if targets else {}
    _take_prompts(t, first, _OF_TARGET)
    for name, value in first.items():
        if name == "shuffle" and value:
            _leave(t, name, value, "the parts of prompts keep their order here")
        elif name in ("weight", "multiplier") and value != 1.0:
            _leave(t, name, value, "there is one target here, which has the whole weight")
    for one in targets[1:]:
        _leave(t, "targets", one, "a slider has one target here: train another in a run of its own")
    sides = [side for side in given.pop("resolutions", None) or [[512, 512]] if isinstance(side, list) and side]
    _take_resolution(t, sides)
    why = "the base model draws in slider.denoising_steps here, in up to this number of them there"
    if t.is_given("train.max_denoising_steps"):
        t.leave(why, "train.max_denoising_steps")


def _take_resolution(t: AiToolkitTranslation, sides: list[list[Any]]) -> None:
    try:
        areas = [read_as("int", side[0]) * read_as("int", side[-1]) for side in sides]
    except ValueError as error:
        _leave(t, "resolutions", sides, str(error))
        return
    if areas:
        why = "" if len(areas) == 1 and sides[0][0] == sides[0][-1] else "squares of the largest area here"
        t.take_line("data.resolution", round(max(areas) ** 0.5), shown("resolutions", sides), why)


def _take_prompts(t: AiToolkitTranslation, given: dict[str, Any], names: Mapping[str, str]) -> None:
    for theirs, ours in names.items():
        value = given.pop(theirs, "")
        t.take_line(f"slider.{ours}", str(value or ""), shown(theirs, value or ""))


def _leave_rest(t: AiToolkitTranslation, given: Mapping[str, Any]) -> None:
    for name, value in given.items():
        if value in (None, "", [], False) or name in _WITHOUT_EFFECT:
            continue
        if name.startswith("anchor"):
            why = "Chorus has no anchors: set slider.preserve, or loss.blank_preservation"
            if name != "anchor_strength" or given.get("anchor_class"):
                _leave(t, name, value, why)
        else:
            _leave(t, name, value, "Chorus has nothing like it: see the settings of slider")


def _leave(t: AiToolkitTranslation, name: str, value: Any, why: str) -> None:
    t.result.left.append(Line(shown(name, value), why=why))


def _take_sound(t: AiToolkitTranslation, setting: ForeignSetting) -> None:
    """Its weight, for models that learn sound here."""
    name = "train.audio_loss_multiplier"
    if not t.family.takes("sound"):
        if t[name] != setting.default:
            t.leave("Chorus trains no sound of this model", name)
        return
    heard = [one for one in entries(t["datasets"]) if one.get("do_audio")]
    why = "" if heard else "no dataset has do_audio"
    t.take("loss.sound_weight", t[name] if heard else 0.0, name, why=why)


OF_SLIDER: dict[str, Any] = {"slider": _take_slider, "sound": _take_sound}
