"""Encodes prompts that are longer than a CLIP text encoder takes, in chunks of 75 tokens, as A1111 and ComfyUI do.

Each chunk is encoded by itself, between a start and an end token. The hidden states of all chunks are concatenated to
[B, 77 * chunks, width]; the pooled output is that of the first chunk. kohya's scripts do the same, except that they
drop the start and end tokens between the chunks.
"""

from __future__ import annotations

import inspect
import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, cast

if TYPE_CHECKING:
    from diffusers.pipelines.pipeline_utils import DiffusionPipeline
    from transformers import BatchEncoding

    from modules.families.Family import Family


def encode_in_chunks(family: Family, pipe: DiffusionPipeline) -> None:
    """Makes `pipe.encode_prompt` encode `family.text.chunks` chunks of every prompt, of which the last may be empty.

    The number is the same for all prompts, so that they fit in one batch and captions can be cached.
    """
    encode = cast("Any", type(pipe)).encode_prompt
    owner = weakref.ref(pipe)  # or the pipeline, with its models, would stay in memory until garbage is collected

    def encode_prompt(*args: Any, **kwargs: Any) -> tuple:
        pipe = owner()
        assert pipe is not None
        parts = []
        for number in range(family.text.chunks):
            with _one_chunk(pipe, family.text.tokenizers, number):
                parts.append(encode(pipe, *args, **kwargs))
        return tuple(_joined(values) for values in zip(*parts, strict=True))

    vars(encode_prompt)["__signature__"] = inspect.signature(pipe.encode_prompt)
    vars(pipe)["encode_prompt"] = encode_prompt


def _joined(values: Sequence[Any]) -> Any:
    """One output of `encode_prompt` from that of each chunk: [B, length, width], or [B, width] if pooled, or None."""
    import torch

    if values[0] is None or values[0].dim() == 2:
        return values[0]
    return torch.cat(list(values), dim=1)


@contextmanager
def _one_chunk(pipe: DiffusionPipeline, tokenizers: Sequence[str], number: int) -> Iterator[None]:
    """Context in which the tokenizers return only that chunk (from 0) of each text."""
    own = {name: getattr(pipe, name) for name in tokenizers}
    vars(pipe).update({name: _ChunkTokenizer(tokenizer, number) for name, tokenizer in own.items()})
    try:
        yield
    finally:
        vars(pipe).update(own)


class _ChunkTokenizer:
    """A CLIP tokenizer that returns one chunk of each text, padded to the length that the encoder takes."""

    def __init__(self, tokenizer: Any, number: int):
        self._tokenizer, self._number = tokenizer, number

    def __getattr__(self, name: str) -> Any:
        return getattr(self._tokenizer, name)

    def __call__(self, texts: str | list[str], **options: Any) -> BatchEncoding:
        """options: those of diffusers' pipelines, which cut the text off at one chunk."""
        import torch
        from transformers import BatchEncoding

        own = self._tokenizer
        length = own.model_max_length - 2
        rows = []
        for text in [texts] if isinstance(texts, str) else texts:
            ids = own(text, add_special_tokens=False, verbose=False).input_ids
            rows.append([own.bos_token_id, *ids[self._number * length :][:length], own.eos_token_id])
        padding = [own.model_max_length - len(row) for row in rows]
        ids = [[*row, *[own.pad_token_id] * count] for row, count in zip(rows, padding, strict=True)]
        mask = [[1] * len(row) + [0] * count for row, count in zip(rows, padding, strict=True)]
        return BatchEncoding({"input_ids": torch.tensor(ids), "attention_mask": torch.tensor(mask)})
