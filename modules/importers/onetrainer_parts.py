"""How OneTrainer's settings of what trains become those of Chorus: parts of the model, adapters and embeddings."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from modules.config.other_programs import ForeignSetting
from modules.importers.foreign_values import is_empty, read_as, shown
from modules.importers.intervals import optimizer_steps
from modules.importers.onetrainer_model import family_of, method_of, part_of, text_encoders_of, trains_words_too
from modules.importers.onetrainer_optimizer import rate_factor, take_rate
from modules.importers.Translation import Conversion, Translation

# The pattern of its presets for layers of the blocks alone, without those before them.
_WITHOUT_REFINERS = re.compile(r"\^\(\?=\.\*(\w+)\)\(\?!\.\*refiner\)\.\*")


def _take_denoiser_train(t: Translation, setting: ForeignSetting) -> None:
    if method_of(t).chooses_parts:
        t.take("denoiser.train", t[f"{part_of(t)}.train"], f"{part_of(t)}.train")


def _take_denoiser_rate(t: Translation, setting: ForeignSetting) -> None:
    name = f"{part_of(t)}.learning_rate"
    if method_of(t).chooses_parts and t[name] is not None:
        take_rate(t, "denoiser.learning_rate", name)


def _take_denoiser_stop(t: Translation, setting: ForeignSetting) -> None:
    names = [f"{part_of(t)}.{name}" for name in ("stop_training_after", "stop_training_after_unit")]
    if method_of(t).chooses_parts:
        unit, after = _stop(t, part_of(t))
        _note_time(t, part_of(t))
        t.take("denoiser.stop_unit", unit, *names)
        if unit != "never":
            t.take("denoiser.stop_after", after, *names)


def _stop(t: Translation, part: str) -> tuple[str, float]:
    """(unit, number) of when a part stops training."""
    after, unit = t[f"{part}.stop_training_after"], t[f"{part}.stop_training_after_unit"]
    if after is None or after <= 0 or unit not in ("EPOCH", "STEP"):
        return "never", 0.0
    if unit == "EPOCH":
        return "epochs", float(after)
    return "steps", float(optimizer_steps(after, t["gradient_accumulation_steps"]))


def _note_time(t: Translation, part: str) -> None:
    if t[f"{part}.stop_training_after_unit"] in ("SECOND", "MINUTE", "HOUR"):
        name = f"{part}.stop_training_after_unit"
        t.leave("a part trains for epochs or steps here; it trains to the end", name)


def _take_text_encoders(t: Translation, setting: ForeignSetting) -> None:
    facts, family = method_of(t), family_of(t)
    if not facts.chooses_parts:
        return
    parts, trainable = text_encoders_of(t), set(facts.trainable(family))
    chosen = [number for number, part in enumerate(parts) if t[f"{part}.train"] and t[f"{part}.include"]]
    usable = [number for number in chosen if family.text_encoders[number] in trainable]
    names = [f"{part}.train" for part in parts]
    if lost := [parts[number] for number in chosen if number not in usable]:
        given = [f"{part}.train" for part in lost if t.is_given(f"{part}.train")]
        if given:
            t.leave("this text encoder can't be trained here", *given)
    t.take("text_encoder.train", bool(usable), *names)
    if not usable:
        return
    if len(usable) < len(parts):
        t.take("text_encoder.only", [number + 1 for number in usable], *names)
    _take_encoder_rates(t, [parts[number] for number in usable], len(usable) == len(parts))
    _take_encoder_stops(t, [parts[number] for number in usable], usable)


def _take_encoder_rates(t: Translation, parts: list[str], all_train: bool) -> None:
    names = [f"{part}.learning_rate" for part in parts]
    rates = [t[name] for name in names]
    if len(set(rates)) == 1 and rates[0] is not None:
        take_rate(t, "text_encoder.learning_rate", names[0])
    elif len(set(rates)) > 1:
        factor = rate_factor(t)
        every = [(t["learning_rate"] if rate is None else rate) * factor for rate in rates]
        if all_train:
            t.take("text_encoder.learning_rates", every, *names)
        else:
            t.take("text_encoder.learning_rate", every[0], *names, why="the rate of the first that trains, for all")


def _take_encoder_stops(t: Translation, parts: list[str], numbers: list[int]) -> None:
    names = [f"{part}.{name}" for part in parts for name in ("stop_training_after", "stop_training_after_unit")]
    for part in parts:
        _note_time(t, part)
    stops = [_stop(t, part) for part in parts]
    unit, after = stops[0]
    t.take("text_encoder.stop_unit", unit, *names)
    if unit == "never":
        if any(one != "never" for one, _ in stops):
            t.leave("text encoders that stop at times of their own need text_encoder.stops_after", *names)
        return
    t.take("text_encoder.stop_after", after, *names)
    if len(set(stops)) > 1:
        is_whole = numbers == list(range(len(numbers)))
        if is_whole and {one for one, _ in stops} == {unit}:
            t.take("text_encoder.stops_after", [number for _, number in stops], *names)
        else:
            t.leave("the time of the first text encoder holds for all: set text_encoder.stops_after", *names)


def _take_rank(t: Translation, setting: ForeignSetting) -> None:
    adapter = t.choice("peft_type")
    name = {"lokr": "lokr_dim", "oft": "oft_block_size"}.get(adapter, "lora_rank")
    if name == "lokr_dim" and not t.is_given(name) and t.is_given("lora_rank"):
        name = "lora_rank"  # which LoKr had before it got one of its own
    t.take("lora.rank", t[name], name)


def _take_dora(t: Translation, setting: ForeignSetting) -> None:
    on_output, is_on = t["lora_decompose_output_axis"], t["lora_decompose"]
    why = "" if on_output or not is_on else "the norms are those of the outputs here, as in the paper"
    t.take("lora.dora", is_on, "lora_decompose", "lora_decompose_output_axis", why=why)


def _take_lokr_factor(t: Translation, setting: ForeignSetting) -> None:
    factor = t["lokr_decompose_factor"]
    t.take("lora.lokr_factor", None if factor < 2 else factor, "lokr_decompose_factor")


def _take_layers(t: Translation, setting: ForeignSetting) -> None:
    """OneTrainer's filter are pieces of names, each of which a layer may have; an empty one takes all layers."""
    facts = method_of(t)
    if not facts.chooses_parts:
        return
    names = ("layer_filter", "layer_filter_preset", "layer_filter_regex")
    pieces = [piece.strip() for piece in t["layer_filter"].split(",") if piece.strip()]
    if not pieces:
        presets = t.program.facts["layer_presets"].get(t["layer_filter_preset"], {})
        pieces = presets.get(t["model_type"], presets.get("", []))
    without_refiners = [_WITHOUT_REFINERS.fullmatch(piece) for piece in pieces]
    excluded = "*refiner*" if t["model_type"] == "Z_IMAGE" and t["layer_filter_preset"] != "blocks" and pieces else ""
    if t["layer_filter_regex"] and pieces:
        if not all(without_refiners):
            t.leave("patterns have *, not regular expressions, here: write them into denoiser.include_layers", *names)
            pieces, excluded = [], ""
        pieces = [match[1] for match in without_refiners if match]
    if facts.trains_adapters:
        has_convolutions = "unet" in family_of(t).denoisers
        why = "" if pieces else "all layers of the blocks; those before and behind them get no adapter"
        t.take("lora.targets", "linear_conv" if has_convolutions else "linear", *names, why=why)
    t.take("denoiser.include_layers", ", ".join(f"*{piece}*" for piece in pieces), *names)
    t.take("denoiser.exclude_layers", excluded, *names)


def _take_embedding(t: Translation, setting: ForeignSetting) -> None:
    facts = method_of(t)
    if not facts.trains_words or facts.trains_adapters:
        return
    main = {name: t[f"embedding.{name}"] for name in ("placeholder", "token_count", "initial_embedding_text")}
    if t.given.get("embedding.token_count", 1) is None:
        main["token_count"] = None
    _take_words(t, [main, *(t["additional_embeddings"] or [])])


def _take_embeddings(t: Translation, setting: ForeignSetting) -> None:
    if trains_words_too(t):
        _take_words(t, t["additional_embeddings"])
    elif t["additional_embeddings"] and not method_of(t).trains_words:
        t.leave(
            "only LoRAs and embeddings train words here, in models whose words can be trained", "additional_embeddings"
        )


def _take_words(t: Translation, entries: list[Any]) -> None:
    number = 0
    for entry in entries:
        if not isinstance(entry, Mapping) or entry.get("train", True) is False:
            continue
        _take_word(t, entry, number)
        number += 1


def _take_word(t: Translation, entry: Mapping[str, Any], number: int) -> None:
    path, name = f"embeddings.{number}", f"embedding {number + 1}"
    theirs = _text(entry.get("placeholder"), "<embedding>")
    word = re.sub(r"\s+", "-", theirs.strip().strip("<>").strip()).lower() or "embedding"
    why = "" if word == theirs else "one lower-case word without brackets here: write it so in the captions"
    t.take_line(f"{path}.placeholder", word, f"{name}: placeholder {theirs}", why)
    initial = _text(entry.get("initial_embedding_text"), "*")
    t.take_line(f"{path}.initial_text", initial, f"{name}: initial_embedding_text")
    count = entry.get("token_count", 1)
    try:
        vectors, why = read_as("int", count), ""
    except ValueError:
        vectors = max(1, len(initial.split()))
        why = (
            "as many as the initial text has words; OneTrainer counts its tokens"
            if is_empty(count)
            else "it is not a number"
        )
    t.take_line(f"{path}.vectors", vectors, shown(f"{name}: token_count", count), why)
    keeps = t["preserve_embedding_norm"]
    t.take_line(f"{path}.preserve_norm", keeps, f"{name}: preserve_embedding_norm")
    if not is_empty(entry.get("model_name")):
        t.leave("Chorus starts embeddings from a text: set initial_text", "embedding.model_name")
    if entry.get("is_output_embedding"):
        t.leave("Chorus trains the embeddings of words alone", "embedding.is_output_embedding")


def _text(value: Any, default: str) -> str:
    return value if isinstance(value, str) and value.strip() else default


OF_PARTS: dict[str, Conversion] = {
    "denoiser_train": _take_denoiser_train,
    "denoiser_rate": _take_denoiser_rate,
    "denoiser_stop": _take_denoiser_stop,
    "text_encoders": _take_text_encoders,
    "rank": _take_rank,
    "dora": _take_dora,
    "lokr_factor": _take_lokr_factor,
    "layers": _take_layers,
    "embedding": _take_embedding,
    "embeddings": _take_embeddings,
}
