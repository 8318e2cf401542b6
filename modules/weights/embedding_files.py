"""Embedding files (textual inversion), as A1111, ComfyUI and diffusers read them.

For families with one text encoder, a file has one tensor, "emb_params"; otherwise one per encoder, named as in
`Family.embedding_keys` ("clip_l", "clip_g", "t5xxl"). All have the shape [vectors, width of the encoder].
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from modules.families.registry import family_of_pipeline
from modules.weights.errors import WeightsError
from modules.weights.safe import METADATA, load_tensors, read_header, save_tensors

if TYPE_CHECKING:
    import torch
    from diffusers.pipelines.pipeline_utils import DiffusionPipeline
    from torch import Tensor, nn
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

    from modules.families.Family import Family

PLACEHOLDER = "placeholder"  # the metadata key of the word
BUNDLE = "bundle_emb."  # starts the names of a word's tensors in a LoRA file


def save_embedding(
    path: str | Path,
    family: Family,
    word: str,
    vectors: Mapping[str, Tensor],
    dtype: torch.dtype | None = None,
    metadata: Mapping[str, str] | None = None,
) -> Path:
    """Writes the vectors of one word atomically.

    vectors: text encoder -> [vectors, width]. dtype: of the saved tensors; None keeps their dtype.
    """
    tensors = {
        family.embedding_keys[name]: tensor.detach().to(dtype or tensor.dtype) for name, tensor in vectors.items()
    }
    save_tensors(path, tensors, {**(metadata or {}), PLACEHOLDER: word})
    return Path(path)


def add_embedding(pipe: DiffusionPipeline, path: str | Path) -> str:
    """Adds the word of an embedding file to a pipeline. Returns the word, from the metadata or else the file name.

    Raises WeightsError if the file is damaged or made for another family, or if the pipeline already knows the word.
    """
    family = family_of_pipeline(pipe)
    tensors = load_tensors(path)
    encoders = {key: name for name, key in family.embedding_keys.items()} if family else {}
    if family is None or not tensors or not tensors.keys() <= encoders.keys():
        raise WeightsError(
            f"'{path}': is not an embedding for a {type(pipe).__name__}, but has {', '.join(tensors) or 'no tensors'}; "
            "choose one that was made for this model."
        )
    word = read_header(path)[METADATA].get(PLACEHOLDER) or Path(path).stem
    _add_word(pipe, path, family, word, {encoders[key]: vectors for key, vectors in tensors.items()})
    return word


def bundled_tensors(family: Family, word: str, vectors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The tensors of one word in a LoRA file, as A1111 reads them: `bundle_emb.WORD.KEY`.

    vectors: text encoder -> [vectors, width].
    """
    return {f"{BUNDLE}{word}.{family.embedding_keys[name]}": tensor.detach() for name, tensor in vectors.items()}


def bundled_names(tensors: Iterable[str]) -> list[str]:
    """The words in a LoRA file with tensors of these names."""
    of_words = (name.removeprefix(BUNDLE) for name in tensors if name.startswith(BUNDLE))
    return sorted({name.rpartition(".")[0] for name in of_words})


def bundled_words(tensors: Mapping[str, Tensor], family: Family) -> dict[str, dict[str, Tensor]]:
    """The words in a LoRA file with these tensors: word -> text encoder -> [vectors, width]."""
    encoders = {key: name for name, key in family.embedding_keys.items()}
    words: dict[str, dict[str, Tensor]] = {}
    for name, vectors in tensors.items():
        word, _, key = name.removeprefix(BUNDLE).rpartition(".")
        if name.startswith(BUNDLE) and key in encoders:
            words.setdefault(word, {})[encoders[key]] = vectors
    return words


def add_bundled_words(pipe: DiffusionPipeline, path: str | Path, tensors: Mapping[str, Tensor], family: Family) -> None:
    """Adds the words of a LoRA file to a pipeline. Raises WeightsError if it knows one of them."""
    for word, vectors in bundled_words(tensors, family).items():
        _add_word(pipe, path, family, word, vectors)


def _add_word(
    pipe: DiffusionPipeline, path: str | Path, family: Family, word: str, vectors: Mapping[str, Tensor]
) -> None:
    for name, rows in vectors.items():
        encoder, tokenizer = getattr(pipe, name), getattr(pipe, family.tokenizer_of(name))
        if encoder is not None:  # Stable Diffusion 3 also comes without T5
            _add_rows(encoder, tokenizer, path, word, rows)


def token_names(word: str, num_vectors: int) -> list[str]:
    """The tokens of a word, one per vector, named as in diffusers."""
    return [word, *(f"{word}_{number}" for number in range(1, num_vectors))]


def find_prompt_end(encoder: nn.Module, tokenizer: PreTrainedTokenizerBase) -> None:
    """Makes CLIP's pooling find the end of a prompt even with the wrong `eos_token_id` of old configs.

    If it is 2, transformers pools at the largest token id of the prompt, which would be a new token's.
    """
    for module in encoder.modules():
        if getattr(module, "eos_token_id", None) == 2:
            module.eos_token_id = tokenizer.eos_token_id


def _add_rows(
    encoder: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, path: str | Path, word: str, vectors: Tensor
) -> None:
    rows = encoder.get_input_embeddings().get_parameter("weight")
    if vectors.shape[1:] != rows.shape[1:]:
        raise WeightsError(
            f"'{path}': its vectors have width {vectors.shape[-1]}, but those of this model {rows.shape[1]}; "
            "choose one that was made for this model."
        )
    names = token_names(word, len(vectors))
    if tokenizer.add_tokens(names) < len(names):
        raise WeightsError(f"'{path}': the model already knows its word {word!r}; load it only once.")
    if len(tokenizer) > len(rows):  # some models have unused rows
        encoder.resize_token_embeddings(len(tokenizer))
    weight = encoder.get_input_embeddings().get_parameter("weight")
    weight.data[tokenizer.convert_tokens_to_ids(names)] = vectors.to(weight.device, weight.dtype)
    find_prompt_end(encoder, tokenizer)
