"""Florence-2, which has a task for each length of captions and takes no other instructions."""

from __future__ import annotations

from collections.abc import Sequence

from PIL import Image

from modules.annotators.Captioner import Failure, middle
from modules.annotators.generating import GeneratingCaptioner

TASKS = {"long": "<MORE_DETAILED_CAPTION>", "short": "<CAPTION>"}
NUM_BEAMS = 3  # as in the examples of its authors


class _Florence2(GeneratingCaptioner):
    def caption(self, items: Sequence[Sequence[Image.Image]]) -> list[str | Failure]:
        task = TASKS[self.options.style or self.kind.styles[0]]
        images = [middle(item) for item in items]
        inputs = self.processor(text=[task] * len(images), images=images, padding=True, return_tensors="pt")
        return self.generate(inputs, num_beams=NUM_BEAMS)


CAPTIONER = _Florence2
