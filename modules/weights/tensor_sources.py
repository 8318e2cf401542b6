"""Tensors that remember from which others they were computed, to find what a conversion of a file leaves out."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from torch import Tensor
from torch.utils._pytree import tree_leaves


class SourcedTensor(Tensor):
    """sources: the names of the tensors that this one was computed from, or that it is."""

    sources: frozenset[str] = frozenset()

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = super().__torch_function__(func, types, args, kwargs or {})
        inputs = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, SourcedTensor)]
        sources = frozenset().union(*(leaf.sources for leaf in inputs))
        for leaf in tree_leaves(result):
            if isinstance(leaf, SourcedTensor):
                leaf.sources = leaf.sources | sources
        return result


def with_sources(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The same tensors, without copies, each with its name as its source."""
    named: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        sourced = tensor.as_subclass(SourcedTensor)
        sourced.sources = frozenset((name,))
        named[name] = sourced
    return named


def sources_of(tensors: Iterable[Tensor]) -> frozenset[str]:
    return frozenset().union(*(getattr(tensor, "sources", frozenset()) for tensor in tensors))


def plain(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The tensors without their sources."""
    return {name: tensor.as_subclass(Tensor) for name, tensor in tensors.items()}
