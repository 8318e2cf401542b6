"""Texts that transformers' models generate from images: the steps that all of its captioners share."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from transformers import StoppingCriteria, StoppingCriteriaList

from modules.annotators.answers import as_caption
from modules.annotators.Captioner import Captioner, CaptionOptions, Failure, LocalModel
from modules.annotators.captioner_kinds import model_class
from modules.annotators.safe_loading import load_model, load_processor
from modules.config.errors import UserError


class GeneratingCaptioner(Captioner):
    """A model of transformers with its processor. Subclasses say what it is given."""

    def __init__(self, local: LocalModel, options: CaptionOptions):
        self.options, self.kind = options, local.kind
        self.processor = load_processor(local.kind.processor, local.folder)
        self.model = load_model(model_class(local.kind, local.folder), local.folder, local.device, local.dtype)
        self._local = local
        self._stop = StoppingCriteriaList([_StopWhen(local.is_canceled)])

    @torch.no_grad()
    def generate(self, inputs: Mapping[str, Any], **arguments: Any) -> list[str | Failure]:
        """The text for each row of inputs, as `as_caption` cleans it. Draws nothing: the same images give the same.

        Raises UserError if the inputs take all positions of the model.
        """
        moved = {
            name: value.to(self._local.device, self._local.dtype if value.is_floating_point() else None)
            for name, value in inputs.items()
        }
        limit = {"max_new_tokens": self._num_tokens_for(moved), "stopping_criteria": self._stop}
        tokens = self.model.generate(**moved, do_sample=False, **limit, **arguments)
        if not self.model.config.is_encoder_decoder:
            tokens = _without_prompt(tokens, moved["input_ids"])
        return [as_caption(text) for text in self.processor.tokenizer.batch_decode(tokens, skip_special_tokens=True)]

    @property
    def most_tokens(self) -> int | None:
        return None if self._num_positions is None else self._num_positions - 1

    @property
    def _num_positions(self) -> int | None:
        """How many tokens the decoder has positions for; None if it has no such limit, as with relative positions."""
        return getattr(self.model.config.get_text_config(decoder=True), "max_position_embeddings", None)

    def _num_tokens_for(self, inputs: Mapping[str, Any]) -> int:
        """Tokens to generate: those wanted, or fewer where learned positions would end with an IndexError."""
        positions = self._num_positions
        if positions is None:
            return self.options.max_tokens
        # a decoder behind an encoder begins with one token, others with the prompt, which has the images' tokens
        taken = 1 if self.model.config.is_encoder_decoder else inputs["input_ids"].shape[1]
        if taken >= positions:
            raise UserError(
                f"the images and the prompt take {taken:,} tokens, but '{self._local.folder}' has {positions:,} "
                "positions: use a smaller --max-side, a shorter --prompt or another model."
            )
        return min(self.options.max_tokens, positions - taken)


class _StopWhen(StoppingCriteria):
    """Ends generation after the token during which the run was canceled."""

    def __init__(self, is_canceled: Callable[[], bool]):
        self._is_canceled = is_canceled

    def __call__(self, input_ids: torch.Tensor, scores: Any, **kwargs: Any) -> torch.Tensor:
        return torch.full((len(input_ids),), self._is_canceled(), dtype=torch.bool, device=input_ids.device)


def pad_on_the_left(tokenizer: Any) -> None:
    """Makes rows of unequal lengths end together, because a decoder goes on behind the last token of each."""
    tokenizer.padding_side = "left"
    if tokenizer.pad_token_id is None:
        tokenizer.pad_token = tokenizer.eos_token


def _without_prompt(tokens: torch.Tensor, prompt: torch.Tensor) -> torch.Tensor:
    """What was generated: some models give the prompt back, too."""
    length = prompt.shape[1]
    is_repeated = tokens.shape[1] >= length and torch.equal(tokens[:, :length], prompt)
    return tokens[:, length:] if is_repeated else tokens


def chat_text(processor: Any, prompt: str, num_images: int, image_token: str) -> str:
    """The prompt for an answer to one message with images, by the template of the model.

    Templates differ in whether a message is a text or a list of parts, and in whether they write the images' tokens:
    the first form that gives as many of them as there are images is taken.
    """
    images = [{"type": "image"}] * num_images
    tokens = image_token * num_images
    for content in ([*images, {"type": "text", "text": prompt}], prompt, f"{tokens}\n{prompt}"):
        text = _rendered(processor, content)
        if prompt in text and text.count(image_token) == num_images:
            return text
    return f"{tokens}\n{prompt}"


def _rendered(processor: Any, content: str | Sequence[Mapping[str, str]]) -> str:
    """ "" if the template can't take it, or there is none."""
    from jinja2 import TemplateError

    messages = [{"role": "user", "content": content}]
    try:
        return processor.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    except (TemplateError, TypeError, ValueError, KeyError, AttributeError):
        return ""
