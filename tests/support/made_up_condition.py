"""A condition as another file would add it: a number beside each image, which shifts the embeddings of the caption.

`registered` adds it to Stable Diffusion 1.5, in this process alone. For tests/data/test_made_up_condition.py.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest import mock

import torch

from modules.data.conditions.ConditionData import ConditionData
from modules.data.Dataset import Column
from modules.data.draws import uniform
from modules.data.errors import ImageError
from modules.families.conditions import Condition
from modules.families.registry import FAMILIES
from tests.support.rank_scenarios import train

FAMILY = "sd15"


# --- as in modules/families/conditions.py -----------------------------------------------------------------------------


@dataclass(frozen=True)
class Tone(Condition):
    """strength: what a tone is multiplied by, in half of its uses."""

    strength: float = 2.0


# --- as in modules/data/conditions/tone.py ----------------------------------------------------------------------------


class _Tone(ConditionData[Tone]):
    def find(self, dataset, config):
        files = [str(Path(path).with_suffix(".tone")) for path in dataset.paths]
        return dataset.with_column("tone", Column(files, lambda file: [file], lambda file: [Path(file).name]))

    def describe(self, dataset):
        return "Tones", f"{dataset.num_images} images have one"

    def cached_pixels(self, dataset, sample, pixels):
        return 1.0

    def key_parts(self, dataset, buckets, sample, contents):
        return [{"tone": contents[dataset.value("tone", sample)]}]

    def load(self, dataset, buckets, sample, mask):
        return read_tone(dataset.value("tone", sample))

    def encode(self, decoded, latents, encoder):
        return {"tone": latents.new_full((1,), decoded.loaded["tone"])}

    def given(self, rows):
        factors = [self.spec.strength if uniform(*draw, "tone") < 0.5 else 1.0 for draw in rows.draws]
        pairs = zip(rows.records, factors, strict=True)
        return {"tone": torch.stack([record["tone"] * factor for record, factor in pairs])}

    def sample_settings(self, dataset, sample):
        return {"reference": dataset.value("tone", sample)}

    def sample_arguments(self, request, count):
        return {"guidance_scale": 2 + read_tone(request.references[0])} if request.references else {}


def read_tone(path: str) -> float:
    try:
        return float(Path(path).read_text(encoding="utf-8"))
    except ValueError as error:
        raise ImageError(path, f"its tone can't be read: {error}") from error


# --- as the file of a family ------------------------------------------------------------------------------------------


@contextmanager
def registered() -> Iterator[None]:
    own = FAMILIES[FAMILY]

    def inputs(call) -> Mapping[str, Any]:
        plain = own.inputs(call)
        return {**plain, "encoder_hidden_states": plain["encoder_hidden_states"] + call.given["tone"][:, :, None]}

    file = ModuleType("modules.data.conditions.tone")
    vars(file)["CONDITION"] = _Tone
    family = replace(own, conditions=(Tone(),), inputs=inputs)
    with mock.patch.dict(sys.modules, {file.__name__: file}), mock.patch.dict(FAMILIES, {FAMILY: family}):
        yield


def train_with_tones(make_runtime: Any, **arguments: Any) -> dict[str, Any]:
    """As `train`."""
    with registered():
        return train(make_runtime, **arguments)
