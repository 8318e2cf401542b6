"""The settings that name parts on the Hub, as settings that name the files on this machine."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from modules.config.errors import UserError
from modules.machine.hub_parts import PARTS, HubPart, hub_part
from modules.weights.errors import WeightsError

if TYPE_CHECKING:
    from modules.config.ModelConfig import ModelConfig


def with_parts_on_disk(model: ModelConfig) -> ModelConfig:
    """The settings with the paths of parts on the Hub, without those that are not on this machine yet."""
    return _with_paths(model, lambda field, part: str(part.on_disk() or ""))


def with_downloaded_parts(model: ModelConfig) -> ModelConfig:
    """The settings with the paths of parts on the Hub, downloaded where they are missing. Raises WeightsError."""

    def download(field: str, part: HubPart) -> str:
        try:
            return str(part.download())
        except UserError as error:
            raise WeightsError.at(f"model.{field}", str(error)) from error

    return _with_paths(model, download)


def check_parts_on_hub(model: ModelConfig) -> None:
    """Raises WeightsError if a part is neither on this machine nor on the Hub. Downloads nothing."""
    for field, part in _parts(model):
        if part.on_disk() is None:
            try:
                part.files()
            except UserError as error:
                raise WeightsError.at(f"model.{field}", str(error)) from error


def _parts(model: ModelConfig) -> Iterator[tuple[str, HubPart]]:
    for field, folders in PARTS.items():
        value = getattr(model, field)
        for name in value if isinstance(value, list) else [value]:
            if part := hub_part(name, folders):
                yield field, part


def _with_paths(model: ModelConfig, path_of: Callable[[str, HubPart], str]) -> ModelConfig:
    """The settings with the paths of parts on the Hub; an entry of a list whose path is "" is left out."""
    found = {(field, part.name): path_of(field, part) for field, part in _parts(model)}
    paths: dict[str, Any] = {}
    for field in PARTS:
        value = getattr(model, field)
        if isinstance(value, list):
            named = [(name, found.get((field, name), name)) for name in value]
            paths[field] = [path for name, path in named if path or not name]
        else:
            paths[field] = found.get((field, value), value)
    return replace(model, **paths)
