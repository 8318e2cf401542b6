"""Encodes prompts as A1111 and ComfyUI do: longer than a CLIP text encoder takes, with weights of words, and from other
layers of each encoder.

Long prompts are encoded in chunks of 75 tokens, each by itself between a start and an end token. The hidden states of
all chunks are concatenated to [B, 77 * chunks, width]; the pooled output is that of the first chunk. kohya's scripts do
the same, except that they drop the start and end tokens between the chunks.

The hidden states of each token are multiplied by its weight (prompt_weights.py), as kohya's scripts and A1111 without
emphasis normalization do; pooled outputs have no weights.
"""

from __future__ import annotations

import inspect
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, cast

from modules.families.prompt_weights import weighted_parts

if TYPE_CHECKING:
    from diffusers.pipelines.pipeline_utils import DiffusionPipeline
    from torch import Tensor
    from transformers import BatchEncoding

    from modules.families.Family import Family


def extend_prompts(family: Family, pipe: DiffusionPipeline) -> None:
    """Makes `pipe.encode_prompt` encode `family.text.chunks` chunks, with weights of words if `family.text.weighted`,
    without the layers in `family.text.layer_skips`.

    The number of chunks, of which the last may be empty, is the same for all prompts, so that they fit in one batch and
    captions can be cached. A family without any of these leaves the pipeline as it is.
    """
    text = family.text
    has_own_tokens = text.chunks > 1 or text.weighted
    if not has_own_tokens and not text.layer_skips:
        return
    encode = cast("Any", type(pipe)).encode_prompt
    signature = inspect.signature(pipe.encode_prompt)
    owner = weakref.ref(pipe)  # or the pipeline, with its models, would stay in memory until garbage is collected

    def encode_prompt(*args: Any, **kwargs: Any) -> tuple:
        pipe = owner()
        assert pipe is not None
        if not has_own_tokens:
            with _without_last_layers(pipe, text.layer_skips):
                return encode(pipe, *args, **kwargs)
        given = signature.bind(*args, **kwargs).arguments
        is_encoded = [given.get(name) is None for name in ("prompt_embeds", "negative_prompt_embeds")]
        parts = []
        for number in range(text.chunks):
            own_tokenizers = _own_tokenizers(pipe, text.tokenizers, number, text.weighted)
            with own_tokenizers as first, _without_last_layers(pipe, text.layer_skips):
                values = encode(pipe, *args, **kwargs)
            parts.append(_weighted(values, is_encoded, first.weights) if text.weighted else values)
        return tuple(_joined(values) for values in zip(*parts, strict=True))

    vars(encode_prompt)["__signature__"] = signature
    vars(pipe)["encode_prompt"] = encode_prompt


@contextmanager
def _without_last_layers(pipe: DiffusionPipeline, counts: Mapping[str, int]) -> Iterator[None]:
    """Context in which these encoders return so many hidden states fewer, as if they ended before their last layers."""

    def leave_out(count: int) -> Callable[..., Any]:
        def shortened(module: Any, inputs: Any, output: Any) -> Any:
            if output.hidden_states is not None:  # else its last layer is used, as of T5
                output.hidden_states = output.hidden_states[:-count]
            return output

        return shortened

    encoders = {name: getattr(pipe, name) for name, count in counts.items() if count}
    loaded = {name: encoder for name, encoder in encoders.items() if encoder is not None}
    hooks = [encoder.register_forward_hook(leave_out(counts[name])) for name, encoder in loaded.items()]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def _joined(values: Sequence[Any]) -> Any:
    """One output of `encode_prompt` from that of each chunk: [B, length, width], or [B, width] if pooled, or None."""
    import torch

    if values[0] is None or values[0].dim() == 2:
        return values[0]
    return torch.cat(list(values), dim=1)


def _weighted(values: Sequence[Any], is_encoded: Sequence[bool], weights: Sequence[Tensor]) -> list[Any]:
    """The outputs of `encode_prompt`, of which the first is of the prompts and the second of the negative prompts.

    is_encoded: whether each of the two was encoded from text. weights: [B, length] of each that was, in this order.
    """
    values, left = list(values), list(weights)
    for position, own in enumerate(is_encoded):
        if own and left and values[position] is not None:
            states = values[position]  # [B * images per prompt, length, width]
            rows = left.pop(0).to(states.device, states.dtype)
            rows = rows.repeat_interleave(len(states) // len(rows), dim=0)
            values[position] = states * rows[..., None]
    return values


@contextmanager
def _own_tokenizers(
    pipe: DiffusionPipeline, tokenizers: Sequence[str], number: int, weighted: bool
) -> Iterator[_ChunkTokenizer]:
    """Context in which the tokenizers return only that chunk (from 0) of each text; yields the first of them."""
    own = {name: getattr(pipe, name) for name in tokenizers}
    replaced = {name: _ChunkTokenizer(tokenizer, number, weighted) for name, tokenizer in own.items()}
    vars(pipe).update(replaced)
    try:
        yield replaced[tokenizers[0]]
    finally:
        vars(pipe).update(own)


class _ChunkTokenizer:
    """A CLIP tokenizer that returns one chunk of each text, padded to the length that the encoder takes.

    weights: of the texts of each call for an encoder, [B, length]; only if `weighted`.
    """

    def __init__(self, tokenizer: Any, number: int, weighted: bool):
        self._tokenizer, self._number, self._weighted = tokenizer, number, weighted
        self.weights: list[Tensor] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._tokenizer, name)

    def __call__(self, texts: str | list[str], **options: Any) -> BatchEncoding:
        """options: those of diffusers' pipelines, which cut the text off at one chunk."""
        import torch
        from transformers import BatchEncoding

        own = self._tokenizer
        length = own.model_max_length - 2
        rows, weights = [], []
        for text in [texts] if isinstance(texts, str) else texts:
            ids, of_ids = self._ids(text)
            chunk = slice(self._number * length, (self._number + 1) * length)
            rows.append([own.bos_token_id, *ids[chunk], own.eos_token_id])
            weights.append([1.0, *of_ids[chunk], 1.0])
        padding = [own.model_max_length - len(row) for row in rows]
        padded = [[*row, *[own.pad_token_id] * count] for row, count in zip(rows, padding, strict=True)]
        mask = [[1] * len(row) + [0] * count for row, count in zip(rows, padding, strict=True)]
        if options.get("padding") == "max_length":  # not where a pipeline only looks for what it cuts off
            filled = [[*row, *[1.0] * count] for row, count in zip(weights, padding, strict=True)]
            self.weights.append(torch.tensor(filled))
        return BatchEncoding({"input_ids": torch.tensor(padded), "attention_mask": torch.tensor(mask)})

    def _ids(self, text: str) -> tuple[list[int], list[float]]:
        """The tokens of a whole text, and the weight of each."""
        ids: list[int] = []
        weights: list[float] = []
        for part, weight in weighted_parts(text) if self._weighted else [(text, 1.0)]:
            found = self._tokenizer(part, add_special_tokens=False, verbose=False).input_ids
            ids += found
            weights += [weight] * len(found)
        return ids, weights
