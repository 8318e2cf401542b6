"""The subject of an image, by an ONNX file of U2-Net, IS-Net or BiRefNet.

Source: the preparation of images is that of the authors' own code, also in https://github.com/danielgatis/rembg.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from PIL import Image

from modules.annotators.Masker import LocalMasker, Masker, MaskHint
from modules.annotators.onnx_models import OnnxModel
from modules.annotators.soft_masks import IMAGENET_MEAN, IMAGENET_STD, normalized, resized

FLAT = 0.05  # a range of values in which there is no subject


@dataclass(frozen=True)
class _Preparation:
    """side: of the square that a model sees, where its file does not say. mean, std: as for `normalized`."""

    side: int
    mean: tuple[float, float, float]
    std: tuple[float, float, float]


U2NET = _Preparation(320, IMAGENET_MEAN, IMAGENET_STD)
# words in the names of files, the first that is found counts
PREPARATIONS = {
    "isnet": _Preparation(1024, (0.5, 0.5, 0.5), (1.0, 1.0, 1.0)),
    "birefnet": _Preparation(1024, IMAGENET_MEAN, IMAGENET_STD),
}


class _Subject(Masker):
    def __init__(self, local: LocalMasker):
        self._model = OnnxModel(local.path, local.on_gpu)
        name = local.path.name.lower().replace("-", "").replace("_", "")
        self._preparation = next((one for word, one in PREPARATIONS.items() if word in name), U2NET)
        self._size = (self._model.shape[3] or self._preparation.side, self._model.shape[2] or self._preparation.side)

    def mask(self, image: Image.Image, hint: MaskHint) -> np.ndarray:
        scaled = image.resize(self._size, Image.Resampling.BILINEAR)
        output = self._model.run(normalized(scaled, self._preparation.mean, self._preparation.std))[0]
        return resized(_probabilities(output.reshape(output.shape[-2:])), image.size)


def _probabilities(values: np.ndarray) -> np.ndarray:
    """0..1, whether a file ends with a sigmoid or without; stretched to that range as their authors do."""
    if values.min() < 0 or values.max() > 1:
        values = 1 / (1 + np.exp(-values.clip(-80, 80)))
    low, high = float(values.min()), float(values.max())
    return (values - low) / (high - low) if high - low > FLAT else values


MASKER = _Subject
