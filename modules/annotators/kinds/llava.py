"""LLaVA's architecture, which JoyCaption has: one image, scaled to the square that its vision tower sees."""

from __future__ import annotations

from collections.abc import Sequence

from PIL import Image

from modules.annotators.Captioner import CaptionOptions, Failure, LocalModel, middle
from modules.annotators.generating import GeneratingCaptioner, chat_text, pad_on_the_left
from modules.annotators.prompts import instruction


class _Llava(GeneratingCaptioner):
    def __init__(self, local: LocalModel, options: CaptionOptions):
        super().__init__(local, options)
        pad_on_the_left(self.processor.tokenizer)
        processor, config = self.processor, self.model.config
        if processor.patch_size is None:  # of a model that was published before processors knew it
            processor.patch_size = config.vision_config.patch_size
            processor.num_additional_image_tokens = int(config.vision_config.model_type.startswith("clip"))
        if processor.vision_feature_select_strategy is None:
            processor.vision_feature_select_strategy = config.vision_feature_select_strategy

    def caption(self, items: Sequence[Sequence[Image.Image]]) -> list[str | Failure]:
        prompt = instruction(self.options, self.kind.styles[0])
        text = chat_text(self.processor, prompt, 1, self.processor.image_token)
        images = [middle(item) for item in items]
        texts = [text] * len(images)
        # the template has written the token that a text starts with
        starts = self.processor.tokenizer.bos_token
        options = {"add_special_tokens": not (starts and text.startswith(starts))}
        return self.generate(self.processor(text=texts, images=images, padding=True, return_tensors="pt", **options))


CAPTIONER = _Llava
