"""Settings of Chorus as the files of kohya's sd-scripts: arguments, datasets and prompts."""

from __future__ import annotations

import tempfile
from pathlib import Path

from modules.config.TrainConfig import TrainConfig
from modules.importers import sd_scripts
from modules.importers.export_differences import differences, written_out
from modules.importers.ExportResult import ExportResult
from modules.importers.ImportResult import ImportResult, Line
from modules.importers.read_file import read_content
from modules.importers.sd_scripts_export_data import export_data, export_prompts
from modules.importers.sd_scripts_export_model import (
    export_model,
    export_network,
    export_optimizer,
    export_precision,
)
from modules.importers.sd_scripts_export_training import (
    export_embedding,
    export_intervals,
    export_length,
    export_loss,
    export_noise,
    export_rates,
    export_same,
    export_schedule,
    export_timesteps,
)
from modules.importers.SdScriptsArguments import SdScriptsArguments
from modules.importers.toml_text import toml_text

ARGUMENTS, DATASETS, PROMPTS, COMMAND = "arguments.toml", "dataset.toml", "prompts.txt", "train.sh"
_STEPS = (
    export_same, export_model, export_precision, export_network, export_optimizer, export_length, export_intervals,
    export_rates, export_schedule, export_noise, export_timesteps, export_loss, export_embedding,
)  # fmt: skip
_HEAD = "# Written by Chorus for sd-scripts {version}.\n"


def export_settings(config: TrainConfig) -> ExportResult:
    """The settings as files of sd-scripts. What is lost is found by importing the files again.

    Raises UserError if no script trains the family with the method.
    """
    meant = written_out(config)
    export = SdScriptsArguments(meant)
    for step in _STEPS:
        step(export)
    datasets, prompts = export_data(export), export_prompts(export)
    export.put("dataset_config", DATASETS)
    export.put("sample_prompts", PROMPTS if prompts else None)
    head = _HEAD.format(version=export.program.facts["version"])
    files = {COMMAND: _command(export.script), ARGUMENTS: head + toml_text(export.arguments)}
    files[DATASETS] = head + toml_text(datasets)
    if prompts:
        files[PROMPTS] = prompts
    again = _imported(files)
    lost = [*_left_out(config, export), *differences(meant, again.config(), export.program.facts["lost"])]
    changed = _changed(again, {line.path for line in lost})
    if config.enable_multi_gpu:
        export.to_do.append("several GPUs: run `accelerate config`, whose file tells accelerate launch")
    command = f"accelerate launch PATH_OF_SD_SCRIPTS/{export.script} --config_file {ARGUMENTS}"
    return ExportResult(files, command, lost, changed, export.to_do)


def _command(script: str) -> str:
    return (
        "#!/bin/sh\n"
        "# Starts the training with sd-scripts: SD_SCRIPTS=the/path/of/sd-scripts sh train.sh\n"
        'cd "$(dirname "$0")" || exit 1\n'
        f'accelerate launch "$SD_SCRIPTS/{script}" --config_file {ARGUMENTS}\n'
    )


def _imported(files: dict[str, str]) -> ImportResult:
    with tempfile.TemporaryDirectory(prefix="chorus_export_") as name:
        for file, text in files.items():
            (Path(name) / file).write_text(text, encoding="utf-8")
        path = Path(name) / COMMAND
        return sd_scripts.translate(path, read_content(path))


def _left_out(config: TrainConfig, export: SdScriptsArguments) -> list[Line]:
    """The concepts and samples that are not in the files at all."""
    lines = []
    for number, concept in enumerate(config.concepts):
        if not concept.enabled:
            lines.append(_line(f"concepts.{number}.enabled", "it is off, and sd-scripts trains every folder of a file"))
    for number, sample in enumerate(config.sampling.samples):
        if not sample.enabled:
            lines.append(_line(f"sampling.samples.{number}.enabled", "it is off, and sd-scripts makes every sample"))
        elif not sample.prompt.strip():
            lines.append(_line(f"sampling.samples.{number}.prompt", "sd-scripts makes no samples of empty prompts"))
    return lines


def _line(path: str, why: str) -> Line:
    return Line(path, why=why, path=path)


def _changed(again: ImportResult, lost: set[str]) -> list[Line]:
    """What sd-scripts does otherwise, as the importer says it, where the values are the same."""
    own = ("model.denoiser", "data.max_aspect")  # which the importer works out, for its own direction alone
    lines = [line for line in again.changed if line.is_given and line.path not in lost and line.path not in own]
    return [Line(line.here, line.theirs, line.why, line.path) for line in lines]
