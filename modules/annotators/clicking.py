"""Masks of what somebody clicks on, by models that look at an image once and answer any number of clicks.

The images are prepared here: what transformers has for SAM 2 needs torchvision.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch.nn.functional import interpolate

from modules.annotators.Masker import LocalMasker, Masker, MaskHint
from modules.annotators.safe_loading import load_model
from modules.annotators.soft_masks import IMAGENET_MEAN, IMAGENET_STD, normalized
from modules.config.errors import UserError


class ClickMasker(Masker):
    """A segment-anything model. Subclasses say how an image fills the square that it sees."""

    def __init__(self, local: LocalMasker):
        self._model = load_model(local.model_class, local.path, local.device, local.dtype)
        self._local = local
        self._side = int(self._model.config.prompt_encoder_config.image_size)
        self._seen: tuple[str, Any] = ("", None)

    @abstractmethod
    def size_in_square(self, width: int, height: int, side: int) -> tuple[int, int]:
        """Width and height of an image in the square of `side` pixels, from its upper left corner."""

    @torch.no_grad()
    def mask(self, image: Image.Image, hint: MaskHint) -> np.ndarray:
        """The mask that the model is most sure of; of several clicks, the one that they agree on."""
        if not any(click.is_inside for click in hint.clicks):
            raise UserError("--click: name at least one place that is inside of the mask.")
        inner = self.size_in_square(*image.size, self._side)
        scale = torch.tensor([inner[0] / image.width, inner[1] / image.height])
        points = torch.tensor([[click.x + 0.5, click.y + 0.5] for click in hint.clicks]) * scale
        labels = torch.tensor([[[int(click.is_inside) for click in hint.clicks]]])
        answer = self._model(
            image_embeddings=self._embeddings(image, inner, hint.image),
            input_points=points[None, None].to(self._local.device, self._local.dtype),
            input_labels=labels.to(self._local.device),
            multimask_output=len(hint.clicks) == 1,  # a single place may mean a part or the whole
        )
        best = int(answer.iou_scores.reshape(-1).argmax())
        logits = answer.pred_masks.reshape(-1, *answer.pred_masks.shape[-2:])[best].float()[None, None]
        whole = interpolate(logits, (self._side, self._side), mode="bilinear", align_corners=False)
        own = whole[..., : inner[1], : inner[0]]
        found = interpolate(own, (image.height, image.width), mode="bilinear", align_corners=False)
        return torch.sigmoid(found[0, 0]).cpu().numpy()

    def _embeddings(self, image: Image.Image, inner: tuple[int, int], name: str) -> Any:
        """What the model has seen of the image, which takes most of the time: kept for further clicks."""
        if not name or self._seen[0] != name:
            pixels = np.zeros((1, 3, self._side, self._side), np.float32)
            scaled = image.resize(inner, Image.Resampling.BILINEAR)
            pixels[..., : inner[1], : inner[0]] = normalized(scaled, IMAGENET_MEAN, IMAGENET_STD)
            given = torch.from_numpy(pixels).to(self._local.device, self._local.dtype)
            self._seen = (name, self._model.get_image_embeddings(given))
        return self._seen[1]
