"""Embedding files (textual inversion), as A1111, ComfyUI and diffusers read them.

Of a family with one text encoder a file holds one tensor, "emb_params"; of one with several it holds a tensor for each,
under the names of `Family.embedding_keys` ("clip_l", "clip_g", "t5xxl"). All are [vectors, width of the encoder].
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from modules.families.registry import family_of_pipeline
from modules.weights.errors import WeightsError
from modules.weights.safe import METADATA, load_tensors, read_header, save_tensors

if TYPE_CHECKING:
    import torch
    from diffusers import DiffusionPipeline
    from torch import Tensor, nn
    from transformers import PreTrainedTokenizerBase

    from modules.families.Family import Family

PLACEHOLDER = "placeholder"  # the name in a file's header under which it says its word


def save_embedding(
    path: str | Path,
    family: Family,
    word: str,
    vectors: Mapping[str, Tensor],
    dtype: torch.dtype | None = None,
    metadata: Mapping[str, str] | None = None,
) -> Path:
    """Writes the vectors of one word, whole or not at all.

    vectors: text encoder -> [vectors, width]. dtype: of the tensors in the file, None to keep them as they are.
    """
    tensors = {
        family.embedding_keys[name]: tensor.detach().to(dtype or tensor.dtype) for name, tensor in vectors.items()
    }
    save_tensors(path, tensors, {**(metadata or {}), PLACEHOLDER: word})
    return Path(path)


def add_embedding(pipe: DiffusionPipeline, path: str | Path) -> str:
    """Teaches a pipeline the word of an embedding file; returns the word: as the file says, else its name.

    Raises WeightsError if the file is damaged or made for another family, or if the pipeline knows the word already.
    """
    family = family_of_pipeline(pipe)
    tensors = load_tensors(path)
    encoders = {key: name for name, key in family.embedding_keys.items()} if family else {}
    if not tensors or not tensors.keys() <= encoders.keys():
        raise WeightsError(
            f"'{path}': is no embedding for a {type(pipe).__name__}, but holds {', '.join(tensors) or 'nothing'}; "
            "choose one that was made for this model."
        )
    word = read_header(path)[METADATA].get(PLACEHOLDER) or Path(path).stem
    for key, vectors in tensors.items():
        encoder, tokenizer = getattr(pipe, encoders[key]), getattr(pipe, family.tokenizer_of(encoders[key]))
        if encoder is not None:  # Stable Diffusion 3 also comes without T5
            _add_rows(encoder, tokenizer, path, word, vectors)
    return word


def token_names(word: str, num_vectors: int) -> list[str]:
    """The tokens of a word, one for each vector, as diffusers names them."""
    return [word, *(f"{word}_{number}" for number in range(1, num_vectors))]


def find_prompt_end(encoder: nn.Module, tokenizer: PreTrainedTokenizerBase) -> None:
    """Lets CLIP's pooling look for the end of a prompt, also by a config of before it was known.

    With the id 2, a mistake in old configs, transformers takes the largest id of a prompt, which a new token's is.
    """
    for module in encoder.modules():
        if getattr(module, "eos_token_id", None) == 2:
            module.eos_token_id = tokenizer.eos_token_id


def _add_rows(
    encoder: nn.Module, tokenizer: PreTrainedTokenizerBase, path: str | Path, word: str, vectors: Tensor
) -> None:
    rows = encoder.get_input_embeddings().weight
    if vectors.shape[1:] != rows.shape[1:]:
        raise WeightsError(
            f"'{path}': its vectors have {vectors.shape[-1]} numbers, the words of this model {rows.shape[1]}; "
            "choose one that was made for this model."
        )
    names = token_names(word, len(vectors))
    if tokenizer.add_tokens(names) < len(names):
        raise WeightsError(f"'{path}': its word {word!r} is known to the model already; load it once.")
    if len(tokenizer) > len(rows):  # some models have spare rows
        encoder.resize_token_embeddings(len(tokenizer))
    weight = encoder.get_input_embeddings().weight
    weight.data[tokenizer.convert_tokens_to_ids(names)] = vectors.to(weight.device, weight.dtype)
    find_prompt_end(encoder, tokenizer)
