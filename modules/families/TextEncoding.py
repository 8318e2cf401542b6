"""How a family's prompts are encoded by its pipeline's `encode_prompt` and combined into batches."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from torch import Tensor

    from modules.families.reference_sizes import Size

# The conditioning of a batch, by name: tensors [B, ...], or lists of one tensor per prompt.
Conditioning = Mapping[str, "Tensor | list[Tensor]"]


@dataclass(frozen=True)
class TextEncoding:
    """The text encoding of a family.

    outputs: a name for each value that `encode_prompt` returns, or None to drop it; one name if it returns a list.
        Names equal the argument of the pipeline's `__call__` that takes the value, so that cached records can be used
        for training and sampling.
    encoders, tokenizers: the components of the pipeline that encode text.
    trainable: whether gradients pass through `encode_prompt`, so that the encoders can be trained.
    options: further arguments for `encode_prompt`, and for `__call__` if it has them.
    further_calls: (options, names of outputs) of further calls of `encode_prompt`, for pipelines that use one encoder
        in each call.
    empty_options: options that differ for the empty prompt, so that caption dropout encodes it as the pipeline encodes
        a missing negative prompt.
    empty_outputs: names for the values that `encode_prompt` returns for the empty prompt with guidance, among them the
        pipeline's own encoding of a missing negative prompt; () if that is the encoding of "".
    empty_prompt: the text that takes the place of an empty prompt, in caption dropout and, if no negative prompt is
        given, in sampling. "" if the pipeline encodes "" itself where a negative prompt is missing.
    rewrite: (pipeline, prompt that is not empty) -> what `encode_prompt` takes, for pipelines whose `__call__` brings
        prompts into another form before.
    select: (pipeline, outputs of `encode_prompt` by name) -> what the denoiser takes, for pipelines that return more or
        pass them through `connectors` in `__call__`.
    connectors: components that `select` and `__call__` need beside the encoders; they are not trained.
    version: to be increased whenever the same captions are encoded to something else, so that caches are not taken.
    at_once: the number of captions that are encoded together for the cache.
    collate: "stack" if all prompts give the same shapes; "pad" if the outputs in `padded` differ in length (their first
        axis) and are padded with zeros; "list" if the denoiser takes a list; "group" if it takes no mask, so that only
        texts of the same length can share a forward pass. Outputs that differ in length are then lists.
    skips_layers: whether `encode_prompt` and `__call__` take `clip_skip`, the number of layers at the end of the CLIP
        encoders that are left out beside those that always are.
    layer_skips: encoder -> how many layers it leaves out beside those that `clip_skip` leaves out of all.
    reads_denoiser: whether `encode_prompt` casts its results to the dtype of the denoiser, which need not be loaded.
    takes_chunks: whether its encoders are CLIPs whose prompts can be encoded in chunks, as in long_prompts.py.
    chunks: the number of chunks of each prompt.
    layers_read: how many layers of its language model `encode_prompt` reads the outputs of, where that is fewer than
        all, and where files without the layers above exist; 0 elsewhere.
    weighted: whether prompts have weights of words, as in prompt_weights.py; only where it `takes_chunks`.
    reference_size: aspect ratio (width / height) -> the size in which the encoders see a reference image, or None for
        that in which the denoiser does; None if they see none. `encode_prompt` then takes the images of a sample as
        `image`, for "" as well, one prompt at a time. Such encoders can't be `trainable`: batches hold no images.
    sees_first_frame: whether the encoders see the first frame of a clip, in its size, likewise as `image`; then
        `__call__` encodes that frame with the VAE before it encodes the prompt.
    mask: name of a bool[B, length] tensor that is True where padded outputs are not padding; "" for none. Batches
        without padding have none, because denoisers are faster without it.
    """

    outputs: tuple[str | None, ...]
    encoders: tuple[str, ...]
    tokenizers: tuple[str, ...]
    trainable: bool = True
    options: Mapping[str, Any] = field(default_factory=dict)
    further_calls: tuple[tuple[Mapping[str, Any], tuple[str | None, ...]], ...] = ()
    empty_options: Mapping[str, Any] = field(default_factory=dict)
    empty_outputs: tuple[str | None, ...] = ()
    empty_prompt: str = ""
    rewrite: Callable[[Any, str], str] = lambda pipe, prompt: prompt
    select: Callable[[Any, Mapping[str, Any]], Mapping[str, Any]] = lambda pipe, outputs: outputs
    connectors: tuple[str, ...] = ()
    version: int = 1
    at_once: int = 16
    collate: Literal["stack", "pad", "list", "group"] = "stack"
    padded: tuple[str, ...] = ()
    skips_layers: bool = False
    layer_skips: Mapping[str, int] = field(default_factory=dict)
    reads_denoiser: bool = False
    takes_chunks: bool = False
    chunks: int = 1
    layers_read: int = 0
    weighted: bool = False
    reference_size: Callable[[float], Size | None] | None = None
    sees_first_frame: bool = False
    mask: str = ""

    @property
    def sees_images(self) -> bool:
        return self.reference_size is not None or self.sees_first_frame

    def options_for(self, prompt: str) -> dict[str, Any]:
        return {**self.options, **({} if prompt else self.empty_options)}


def collate_text(text: TextEncoding, records: Sequence[Mapping[str, Tensor]]) -> Conditioning:
    """Combines the conditioning of single prompts into that of a batch."""
    import torch
    from torch.nn.utils.rnn import pad_sequence

    columns = {name: [record[name] for record in records] for name in records[0]}
    if text.collate == "list":
        return columns
    if text.collate == "group":
        alike = {name: len({value.shape for value in values}) == 1 for name, values in columns.items()}
        return {name: torch.stack(values) if alike[name] else values for name, values in columns.items()}
    batch = {
        name: pad_sequence(values, batch_first=True) if name in text.padded else torch.stack(values)
        for name, values in columns.items()
    }
    lengths = [len(values) for values in columns[text.padded[0]]] if text.mask else []
    if len(set(lengths)) > 1:
        batch[text.mask] = pad_sequence(
            [torch.ones(length, dtype=torch.bool, device=batch[text.padded[0]].device) for length in lengths],
            batch_first=True,
        )
    return batch
