"""CLIPSeg, which marks what a prompt names."""

from __future__ import annotations

import numpy as np
import torch
from PIL import Image

from modules.annotators.Masker import LocalMasker, Masker, MaskHint
from modules.annotators.safe_loading import load_model, load_processor
from modules.annotators.soft_masks import resized
from modules.config.errors import UserError


class _ClipSeg(Masker):
    def __init__(self, local: LocalMasker):
        self._processor = load_processor("CLIPSegProcessor", local.path)
        self._model = load_model(local.model_class, local.path, local.device, local.dtype)
        self._local = local

    @torch.no_grad()
    def mask(self, image: Image.Image, hint: MaskHint) -> np.ndarray:
        """The largest of the masks of all prompts."""
        prompts = [text.strip() for text in hint.prompt.split(",") if text.strip()]
        if not prompts:
            raise UserError('--prompt: say what to mask, such as "face, hair".')
        images = [image] * len(prompts)
        inputs = self._processor(text=prompts, images=images, padding=True, return_tensors="pt")
        moved = {
            name: value.to(self._local.device, self._local.dtype if value.is_floating_point() else None)
            for name, value in inputs.items()
        }
        logits = self._model(**moved).logits.reshape(len(prompts), *self._model_side(moved))
        return resized(torch.sigmoid(logits.float()).amax(0).cpu().numpy(), image.size)

    def _model_side(self, inputs: dict[str, torch.Tensor]) -> tuple[int, int]:
        """Height and width of what it gives, which is as large as what it sees."""
        height, width = inputs["pixel_values"].shape[-2:]
        return height, width


MASKER = _ClipSeg
