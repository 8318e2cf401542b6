"""Pivotal tuning: a LoRA together with new words, whose vectors train in the text encoders.

The words give the LoRA something to hold on to that means nothing yet, as in Ryu 2023, "Low-rank adaptation for fast
text-to-image diffusion fine-tuning", after Roich et al. 2021, arXiv 2106.05744; both train at the same time here. Each
word has a file of its own, and kohya's format of the LoRA holds them all, as A1111 reads them.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from modules.config.errors import UserError
from modules.config.PartConfig import PartConfig
from modules.methods.embedding import METHOD as EMBEDDING
from modules.methods.embedding import add_words, new_words
from modules.methods.lora import METHOD as LORA
from modules.methods.lora import Lora
from modules.methods.Method import may_be_unused
from modules.methods.parts import trained_parts
from modules.weights.embedding_files import bundled_tensors, bundled_words
from modules.weights.safe import load_tensors

if TYPE_CHECKING:
    from torch import Tensor

    from modules.config.TrainConfig import TrainConfig
    from modules.families.Family import Family
    from modules.methods.DenoisingLoss import DenoisingLoss
    from modules.weights.BaseModel import BaseModel


class Pivotal(Lora):
    name = "pivotal"

    def components(self, family: Family, config: TrainConfig) -> dict[str, PartConfig]:
        words = PartConfig(train=True, learning_rate=config.lora.embedding_learning_rate, weight_decay=0.0)
        return {**dict.fromkeys(family.embedding_keys, words), **self.adapted_parts(family, config)}

    def adapted_parts(self, family: Family, config: TrainConfig) -> dict[str, PartConfig]:
        return trained_parts(family, config, set(LORA.trainable(family)))

    def attach(self, base: BaseModel, config: TrainConfig) -> None:
        super().attach(base, config)
        encoders = self._encoders(base)
        for name in encoders:
            encoder = base.text_encoder(name)
            if name not in self.adapted_parts(base.family, config):
                encoder.requires_grad_(False)
            add_words(encoder, base.tokenizer_of(name), config.embeddings)
        if config.lora.start_from:
            self._start_words(base, config, encoders)

    def loss(self, base: BaseModel, config: TrainConfig) -> DenoisingLoss:
        loss = super().loss(base, config)
        # every pass looks up all new words; adapters of an encoder may lie behind the layer that is used
        loss.unused_parameters = may_be_unused(base.family, self._adapted_in(base, config))
        return loss

    def save(
        self, base: BaseModel, config: TrainConfig, folder: Path, name: str, metadata: dict[str, str]
    ) -> list[Path]:
        words = EMBEDDING.save(base, config, folder, name, metadata)
        return [*super().save(base, config, folder, name, metadata), *words]

    def bundle(self, base: BaseModel, config: TrainConfig) -> dict[str, Tensor]:
        dtype = getattr(torch, config.output.dtype)
        tensors: dict[str, Tensor] = {}
        words = {part: new_words(base.text_encoder(part)) for part in self._encoders(base)}
        for number, embedding in enumerate(config.embeddings):
            vectors = {part: module.vectors()[module.spans[number]].to(dtype) for part, module in words.items()}
            tensors |= bundled_tensors(base.family, embedding.placeholder, vectors)
        return tensors

    def saved_bytes(self, base: BaseModel, config: TrainConfig) -> int:
        # where an encoder has both, its words are counted with the adapters already
        adapted = self.adapted_parts(base.family, config)
        words = [new_words(base.text_encoder(name)) for name in self._encoders(base) if name in adapted]
        counted = sum(module.new.weight.numel() for module in words) * getattr(torch, config.output.dtype).itemsize
        num_files = self.num_formats(base, config)
        return super().saved_bytes(base, config) - num_files * counted + EMBEDDING.saved_bytes(base, config)

    def _encoders(self, base: BaseModel) -> list[str]:
        return [name for name in base.family.embedding_keys if name in base.component_names]

    def _start_words(self, base: BaseModel, config: TrainConfig, encoders: list[str]) -> None:
        """The words of the file that training starts from. Raises UserError if it lacks one of `embeddings`."""
        held = bundled_words(load_tensors(os.path.expanduser(config.lora.start_from)), base.family)
        for number, embedding in enumerate(config.embeddings):
            vectors = held.get(embedding.placeholder, {})
            for name in encoders:
                words = new_words(base.text_encoder(name))
                rows = words.new.weight[words.spans[number]]
                found = vectors.get(name)
                if found is None or found.shape != rows.shape:
                    raise UserError.at(
                        "lora.start_from",
                        f"{config.lora.start_from!r} does not hold {embedding.vectors} vectors of the "
                        f"word {embedding.placeholder!r} (embeddings.{number}); choose the file in kohya's format of a "
                        "run with this word, or leave it empty.",
                    )
                with torch.no_grad():
                    rows.copy_(found)


METHOD = Pivotal()
