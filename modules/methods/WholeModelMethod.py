"""The base of methods that train weights of the model itself, which is then saved as a whole."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from modules.methods.Method import Method
from modules.weights.model_files import check_names, model_bytes, save_model

if TYPE_CHECKING:
    from modules.config.TrainConfig import TrainConfig
    from modules.weights.BaseModel import BaseModel


class WholeModelMethod(Method):
    def check_output(self, base: BaseModel, config: TrainConfig) -> None:
        check_names(base, config.output)

    def save(
        self, base: BaseModel, config: TrainConfig, folder: Path, name: str, metadata: dict[str, str]
    ) -> list[Path]:
        return save_model(base, config.output, folder, name, metadata)

    def saved_bytes(self, base: BaseModel, config: TrainConfig) -> int:
        return model_bytes(base, config.output)
