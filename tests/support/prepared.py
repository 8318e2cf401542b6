"""A tiny base model with everything in memory and a method attached, as a trainer has it before its first step."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from modules.config.TrainConfig import TrainConfig
    from modules.weights.BaseModel import BaseModel


def prepared(
    folder: str | Path, method: str, family: str = "sd15", model: Mapping[str, Any] | None = None, **settings: Any
) -> tuple[BaseModel, TrainConfig]:
    """The base model and the settings of a run by `method`.

    model: settings below `model`, beside its base. settings: further settings, by section.
    """
    import torch

    from modules.config.TrainConfig import TrainConfig
    from modules.families.registry import FAMILIES
    from modules.methods.registry import METHODS
    from modules.weights.BaseModel import BaseModel

    config = TrainConfig(family=family, method=method, model={"base": str(folder), **(model or {})}, **settings)
    base = BaseModel(FAMILIES[family], config.model, torch.device("cpu"))
    base.require(*base.component_names)
    METHODS[method].attach(base, config)
    return base, config
