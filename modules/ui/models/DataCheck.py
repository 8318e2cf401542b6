"""The dataset check in a separate process: it reads every image and needs the model families. No Tk."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING

from modules.config.visible_text import visible_line
from modules.ui.models.ScriptRun import ScriptRun

if TYPE_CHECKING:
    from modules.config.TrainConfig import TrainConfig


@dataclass(frozen=True)
class DataFinding:
    """One kind of finding. level: "error" if training would fail, "warning" or "note". message: safe to show. paths: of
    the first files concerned, unescaped."""

    kind: str
    level: str
    message: str
    count: int
    paths: tuple[str, ...]


@dataclass(frozen=True)
class DataReport:
    """num_pictures: the number of readable images. findings: errors first."""

    can_train: bool
    num_pictures: int
    findings: tuple[DataFinding, ...]


class DataCheck:
    """One check of the settings' images and captions. `run` may take long; `cancel` may be called meanwhile.

    num_ranks: number of GPUs that will train together. decode: whether to decode every image completely.
    """

    def __init__(self, config: TrainConfig, num_ranks: int = 1, decode: bool = False):
        options = ["--json", "--ranks", str(num_ranks), *(["--decode"] if decode else [])]
        self._script = ScriptRun("check_data.py", config, options)

    def run(self) -> DataReport | None:
        """Run the check; returns None if it was cancelled. Raises UserError if it can't be made."""
        output = self._script.run()
        return None if output is None else _read_report(output)

    def cancel(self) -> None:
        """End the check; `run` then returns None."""
        self._script.cancel()


def _read_report(output: bytes) -> DataReport:
    values = json.loads(output)
    findings = [
        DataFinding(one["kind"], one["level"], visible_line(one["message"]), one["count"], tuple(one["paths"]))
        for one in values["findings"]
    ]
    return DataReport(values["can_train"], values["num_pictures"], tuple(findings))
