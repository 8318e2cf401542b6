"""Textual inversion (Gal et al. 2022, arXiv 2208.01618): trains the embeddings of new words; the model is frozen.

Each text encoder of the family gets the new words. A word with several vectors is a sequence of tokens, named as in
diffusers: "word", "word_1", "word_2". Pipelines expand the word in a prompt to its tokens.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from modules.config.errors import UserError
from modules.config.PartConfig import PartConfig
from modules.methods.DenoisingLoss import DenoisingLoss
from modules.methods.Method import Method
from modules.methods.parts import trained_in
from modules.session.names import safe_file_name
from modules.weights.embedding_files import find_prompt_end, save_embedding, token_names

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

    from modules.config.EmbeddingConfig import EmbeddingConfig
    from modules.config.TrainConfig import TrainConfig
    from modules.families.Family import Family
    from modules.weights.BaseModel import BaseModel


class Embedding(Method):
    name = "embedding"

    def components(self, family: Family, config: TrainConfig) -> dict[str, PartConfig]:
        return {name: PartConfig(train=True) for name in self.trainable(family)}

    def attach(self, base: BaseModel, config: TrainConfig) -> None:
        # The encoders stay in evaluation mode, because T5 has dropout and only the new words are trained.
        for name in trained_in(self, base, config):
            add_words(base.text_encoder(name), base.tokenizer_of(name), config.embeddings)

    def loss(self, base: BaseModel, config: TrainConfig) -> EmbeddingLoss:
        return EmbeddingLoss(base, list(trained_in(self, base, config)), config)

    def check_output(self, base: BaseModel, config: TrainConfig) -> None:
        """Nothing to check: embedding files can hold the vectors of every encoder."""

    def save(
        self, base: BaseModel, config: TrainConfig, folder: Path, name: str, metadata: dict[str, str]
    ) -> list[Path]:
        dtype = getattr(torch, config.output.dtype)
        words = {part: new_words(base.text_encoder(part)) for part in trained_in(self, base, config)}
        written = []
        for number, embedding in enumerate(config.embeddings):
            path = folder / name / f"{safe_file_name(embedding.title)}.safetensors"
            vectors = {part: module.vectors()[module.spans[number]] for part, module in words.items()}
            written.append(save_embedding(path, base.family, embedding.placeholder, vectors, dtype, metadata))
        return written

    def saved_bytes(self, base: BaseModel, config: TrainConfig) -> int:
        words = (new_words(base.text_encoder(part)) for part in trained_in(self, base, config))
        return sum(module.new.weight.numel() for module in words) * getattr(torch, config.output.dtype).itemsize


METHOD = Embedding()


class EmbeddingLoss(DenoisingLoss):
    """Every forward pass looks up all new vectors, so each of them always gets a gradient."""

    def __init__(self, base: BaseModel, trained: list[str], config: TrainConfig):
        super().__init__(base, trained, config)
        self.unused_parameters = False


class NewWords(nn.Module):
    """Replaces the token embedding of an encoder: the frozen old rows, followed by the trained new rows.

    The new rows are a separate parameter, at least in float32, so that gradients and optimizer state do not cover the
    whole vocabulary.
    first: id of the first new token.
    initial: [N, D], the initial new rows.
    lengths: [N], the fixed norm of each new vector; NaN for a vector whose norm is trained.
    spans: the new rows of each word.
    """

    lengths: Tensor

    def __init__(self, old: nn.Embedding, first: int, initial: Tensor, lengths: Tensor, spans: list[slice]):
        super().__init__()
        self.old = old
        self.new = nn.Embedding.from_pretrained(initial, freeze=False)
        self.first = first
        self.spans = spans
        self.register_buffer("lengths", lengths, persistent=False)

    @property
    def weight(self) -> Tensor:
        """The old rows, for code that asks an embedding for its width, dtype or device."""
        return self.old.weight

    def vectors(self) -> Tensor:
        """[N, D], the new rows, scaled to their fixed norms."""
        rows = self.new.weight
        lengths = self.lengths[:, None]
        return torch.where(lengths.isnan(), rows, F.normalize(rows, dim=1) * lengths.nan_to_num())

    def forward(self, ids: Tensor) -> Tensor:
        number = ids - self.first
        is_new = (number >= 0) & (number < len(self.new.weight))  # some models have unused rows after the last token
        new = F.embedding(number.clamp(0, len(self.new.weight) - 1), self.vectors())
        old = self.old(ids.masked_fill(is_new, 0))
        return torch.where(is_new[..., None], new.to(old.dtype), old)


def new_words(encoder: PreTrainedModel) -> NewWords:
    """What `add_words` has given the encoder."""
    words = encoder.get_input_embeddings()
    assert isinstance(words, NewWords)
    return words


def add_words(encoder: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, embeddings: list[EmbeddingConfig]) -> None:
    """Gives tokenizer and encoder a token for each vector of each word, which starts as its initial text's tokens.

    Raises UserError for a word that the tokenizer knows, and for an initial text without a token.
    """
    old = encoder.get_input_embeddings()
    assert isinstance(old, nn.Embedding)
    rows, lengths, spans = [], [], []
    names: list[str] = []
    mean_length = old.weight.detach().float().norm(dim=1).mean().item()
    for number, embedding in enumerate(embeddings):
        _check_new(tokenizer, number, embedding)
        start = _initial_rows(old, tokenizer, number, embedding)
        spans.append(slice(len(names), len(names) + embedding.vectors))
        names += token_names(embedding.placeholder, embedding.vectors)
        rows.append(start)
        lengths += [mean_length if embedding.preserve_norm else float("nan")] * embedding.vectors
    tokenizer.add_tokens(names)
    first = tokenizer.convert_tokens_to_ids(names[0])
    assert isinstance(first, int)  # a list only for several tokens
    initial = torch.cat(rows)
    encoder.set_input_embeddings(NewWords(old, first, initial, initial.new_tensor(lengths), spans))
    find_prompt_end(encoder, tokenizer)


def _check_new(tokenizer: PreTrainedTokenizerBase, number: int, embedding: EmbeddingConfig) -> None:
    vocabulary = tokenizer.get_vocab()
    word = embedding.placeholder
    pieces = tokenizer.tokenize(word)
    is_one = len(pieces) == 1 and pieces[0] != tokenizer.unk_token
    if is_one or any(name in vocabulary for name in token_names(word, embedding.vectors)):
        raise UserError.at(
            f"embeddings.{number}.placeholder",
            f"{word!r} is a word that the model already knows: choose another, such as {word.strip('<>')}-1.",
        )


def _initial_rows(
    old: nn.Embedding, tokenizer: PreTrainedTokenizerBase, number: int, embedding: EmbeddingConfig
) -> Tensor:
    """[vectors, D], the embeddings of the initial text's tokens, distributed over the vectors."""
    ids = tokenizer(embedding.initial_text, add_special_tokens=False).input_ids
    if not ids:
        raise UserError.at(
            f"embeddings.{number}.initial_text", f"{embedding.initial_text!r} has no tokens: write a word."
        )
    chosen = [ids[vector * len(ids) // embedding.vectors] for vector in range(embedding.vectors)]
    rows = old.weight.detach()[chosen]
    return rows.to(torch.promote_types(rows.dtype, torch.float32))
