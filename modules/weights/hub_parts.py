"""The settings that name parts on the Hub, as settings that name the files on this machine."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from modules.config.errors import UserError
from modules.machine.hub_parts import HubPart, hub_part
from modules.weights.errors import WeightsError

if TYPE_CHECKING:
    from modules.config.ModelConfig import ModelConfig

_FIELDS = {"vae": True, "denoiser": False, "denoiser_2": False}  # -> whether it may be a folder


def with_parts_on_disk(model: ModelConfig) -> ModelConfig:
    """The settings with the paths of parts on the Hub, without those that are not on this machine yet."""
    paths: dict[str, Any] = {field: str(part.on_disk() or "") for field, part in _parts(model)}
    return replace(model, **paths)


def with_downloaded_parts(model: ModelConfig) -> ModelConfig:
    """The settings with the paths of parts on the Hub, downloaded where they are missing. Raises WeightsError."""
    paths: dict[str, Any] = {}
    for field, part in _parts(model):
        try:
            paths[field] = str(part.download())
        except UserError as error:
            raise WeightsError(f"model.{field} {error}") from error
    return replace(model, **paths)


def check_parts_on_hub(model: ModelConfig) -> None:
    """Raises WeightsError if a part is neither on this machine nor on the Hub. Downloads nothing."""
    for field, part in _parts(model):
        if part.on_disk() is None:
            try:
                part.files()
            except UserError as error:
                raise WeightsError(f"model.{field} {error}") from error


def _parts(model: ModelConfig) -> Iterator[tuple[str, HubPart]]:
    for field, takes_folder in _FIELDS.items():
        if part := hub_part(getattr(model, field), takes_folder):
            yield field, part
