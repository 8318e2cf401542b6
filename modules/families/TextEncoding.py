"""How prompts become conditioning, by the pipeline's own `encode_prompt`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from torch import Tensor

# Conditioning of a batch, by name: [B, ...], or where a family takes lists a tensor for each prompt.
Conditioning = Mapping[str, "Tensor | list[Tensor]"]


@dataclass(frozen=True)
class TextEncoding:
    """What of a pipeline encodes text, and how the prompts of a batch are put together.

    outputs: a name for each value that `encode_prompt` returns, equal to the argument of the pipeline's `__call__`
        that takes it, so that a cached record serves training and sampling; None drops the value.
    encoders, tokenizers: the pipeline's components that are needed.
    options: further arguments of `encode_prompt`, and of `__call__` where it takes them.
    empty_options: those that differ for the empty prompt, so that caption dropout encodes it as the pipeline does where
        it is given no negative prompt.
    collate: "stack" where all prompts give the same shapes; "pad" where the outputs in `padded` differ in their length,
        which is their first axis, and are filled up with zeros; "list" where the denoiser takes a list.
    mask: the name under which a batch says, as bool[B, length], what of the padded outputs is no padding.
    """

    outputs: tuple[str | None, ...]
    encoders: tuple[str, ...]
    tokenizers: tuple[str, ...]
    options: Mapping[str, Any] = field(default_factory=dict)
    empty_options: Mapping[str, Any] = field(default_factory=dict)
    collate: Literal["stack", "pad", "list"] = "stack"
    padded: tuple[str, ...] = ()
    mask: str = ""

    def options_for(self, prompt: str) -> dict[str, Any]:
        return {**self.options, **({} if prompt else self.empty_options)}


def collate_text(text: TextEncoding, records: list[Mapping[str, Tensor]]) -> dict[str, Tensor | list[Tensor]]:
    """The conditioning of a batch of prompts from that of each."""
    import torch
    from torch.nn.utils.rnn import pad_sequence

    columns = {name: [record[name] for record in records] for name in records[0]}
    if text.collate == "list":
        return columns
    batch = {
        name: pad_sequence(values, batch_first=True) if name in text.padded else torch.stack(values)
        for name, values in columns.items()
    }
    if text.mask:
        lengths = [len(values) for values in columns[text.padded[0]]]
        batch[text.mask] = pad_sequence(
            [torch.ones(length, dtype=torch.bool, device=batch[text.padded[0]].device) for length in lengths],
            batch_first=True,
        )
    return batch
