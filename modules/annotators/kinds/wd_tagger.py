"""Taggers in the form of the WD 1.4 and v3 models: an ONNX file that gives the probability of each tag of a list.

Source: the demo of their author, https://huggingface.co/spaces/SmilingWolf/wd-tagger.
"""

from __future__ import annotations

import csv
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from PIL import Image

from modules.annotators.Captioner import Captioner, CaptionOptions, Failure, LocalModel, middle
from modules.annotators.captioner_kinds import TAG_LIST, TAGGER_MODEL
from modules.annotators.onnx_models import OnnxModel
from modules.weights.errors import WeightsError

GENERAL, CHARACTER = 0, 4  # categories of Danbooru; 9, ratings, and others are no tags of captions
USUAL_SIDE = 448
# Faces, whose underscores are no spaces.
_FACES = frozenset({
    "0_0", "(o)_(o)", "+_+", "+_-", "._.", "<o>_<o>", "<|>_<|>", "=_=", ">_<", "3_3", "6_9", ">_o", "@_@", "^_^", "o_o",
    "u_u", "x_x", "|_|", "||_||",
})  # fmt: skip


@dataclass(frozen=True)
class _Tag:
    name: str
    category: int


class _WdTagger(Captioner):
    def __init__(self, local: LocalModel, options: CaptionOptions):
        self._options = options
        self._tags = read_tags(local.folder / TAG_LIST)
        self._model = OnnxModel(local.folder / TAGGER_MODEL, local.on_gpu)
        self._side = self._model.shape[1] or USUAL_SIDE

    def caption(self, items: Sequence[Sequence[Image.Image]]) -> list[str | Failure]:
        batch = np.stack([prepared(middle(item), self._side) for item in items])
        rows = self._model.run(batch)[0]
        if rows.shape != (len(items), len(self._tags)):
            raise WeightsError(
                f"'{self._model.path}': gives {rows.shape[-1]} probabilities, but {TAG_LIST} has {len(self._tags)} "
                "tags: download both again."
            )
        return [self._text(row) for row in rows]

    def _text(self, probabilities: np.ndarray) -> str | Failure:
        """Characters first, each group by falling probability."""
        order = np.argsort(-probabilities, kind="stable").tolist()
        least = {CHARACTER: self._options.character_threshold, GENERAL: self._options.general_threshold}
        names = [
            self._tags[number].name
            for category, threshold in least.items()
            for number in order
            if self._tags[number].category == category and probabilities[number] >= threshold
        ]
        return self._options.separator.join(names) or Failure("no tag reaches its threshold")


def read_tags(path: Path) -> list[_Tag]:
    """The tags in the order of the model's outputs. Raises WeightsError if the list can't be read."""
    try:
        with open(path, encoding="utf-8", newline="") as file:
            rows = list(csv.DictReader(file))
        return [_Tag(_spoken(row["name"]), int(row["category"])) for row in rows]
    except (OSError, ValueError, KeyError, TypeError, csv.Error) as error:
        raise WeightsError(
            f"'{path}': is no list of tags with the columns name and category: download it again."
        ) from error


def prepared(image: Image.Image, side: int) -> np.ndarray:
    """float32[side, side, 3] in 0..255 as the models read it: on a white square, with the channels in the order BGR."""
    square = Image.new("RGB", (max(image.size),) * 2, "white")
    square.paste(image, ((square.width - image.width) // 2, (square.height - image.height) // 2))
    scaled = square.resize((side, side), Image.Resampling.BICUBIC)
    return np.asarray(scaled, np.float32)[:, :, ::-1]


def _spoken(name: str) -> str:
    return name if name in _FACES else name.replace("_", " ")


CAPTIONER = _WdTagger
