"""BLIP-2, which goes on with the beginning of a caption: an empty one by itself, a question with its answer."""

from __future__ import annotations

from collections.abc import Sequence

from PIL import Image
from transformers import AddedToken

from modules.annotators.Captioner import CaptionOptions, Failure, LocalModel, middle
from modules.annotators.generating import GeneratingCaptioner, pad_on_the_left


class _Blip2(GeneratingCaptioner):
    def __init__(self, local: LocalModel, options: CaptionOptions):
        super().__init__(local, options)
        pad_on_the_left(self.processor.tokenizer)
        if isinstance(self.processor.image_token, str):  # of a tokenizer that names it, which the processor overlooks
            self.processor.image_token = AddedToken(self.processor.image_token, normalized=False, special=True)
        if self.processor.num_query_tokens is None:  # of a model that was published before processors knew it
            self.processor.num_query_tokens = self.model.config.num_query_tokens

    def caption(self, items: Sequence[Sequence[Image.Image]]) -> list[str | Failure]:
        images = [middle(item) for item in items]
        prompts = [self.options.prompt] * len(images)
        return self.generate(self.processor(text=prompts, images=images, padding=True, return_tensors="pt"))


CAPTIONER = _Blip2
