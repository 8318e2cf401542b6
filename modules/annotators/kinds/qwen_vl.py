"""Qwen3-VL, which sees images in their own aspect ratio, and several frames of a clip."""

from __future__ import annotations

from collections.abc import Sequence

from PIL import Image

from modules.annotators.Captioner import CaptionOptions, Failure, LocalModel
from modules.annotators.generating import GeneratingCaptioner, chat_text, pad_on_the_left
from modules.annotators.prompts import instruction


class _QwenVl(GeneratingCaptioner):
    def __init__(self, local: LocalModel, options: CaptionOptions):
        super().__init__(local, options)
        pad_on_the_left(self.processor.tokenizer)

    def caption(self, items: Sequence[Sequence[Image.Image]]) -> list[str | Failure]:
        style, token = self.kind.styles[0], self.processor.image_token
        texts = [
            chat_text(self.processor, instruction(self.options, style, len(item)), len(item), token) for item in items
        ]
        images = [image for item in items for image in item]
        return self.generate(self.processor(text=texts, images=images, padding=True, return_tensors="pt"))


CAPTIONER = _QwenVl
