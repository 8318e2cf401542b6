"""ai-toolkit: jobs that train, as YAML or JSON, of its window or written by hand."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from modules.config.errors import UserError
from modules.config.other_programs import load_program
from modules.importers.ai_toolkit_data import OF_DATA
from modules.importers.ai_toolkit_model import OF_MODEL
from modules.importers.ai_toolkit_slider import OF_SLIDER
from modules.importers.ai_toolkit_training import OF_TRAINING
from modules.importers.AiToolkitTranslation import AiToolkitTranslation
from modules.importers.foreign_values import shown
from modules.importers.ImportResult import ImportResult, Line
from modules.importers.ListEntry import entries

NAME = "ai_toolkit"
FILES = "ai-toolkit's jobs (.yaml, .json)"
_OF_JOB = ("job", "config", "meta")


def recognizes(path: Path, content: Any) -> bool:
    """Whether a file with this content is a job of ai-toolkit."""
    if not isinstance(content, Mapping) or not isinstance(content.get("config"), Mapping):
        return False
    return "process" in content["config"]


def translate(path: Path, content: Any) -> ImportResult:
    """The settings of a job. Raises UserError if none of its processes trains what Chorus trains."""
    config = content["config"]
    processes = entries(config["process"])
    trained = [one for one in processes if one.get("type") in load_program(NAME).facts["processes"]]
    if not trained:
        kinds = ", ".join(shown("type", one.get("type")) for one in processes) or "no process"
        raise UserError(
            f"{path} has {kinds}: of ai-toolkit's jobs, Chorus imports those that train a model, of type sd_trainer or "
            "diffusion_trainer, and sliders from prompts, of type concept_slider or slider."
        )
    name = config.get("name") if isinstance(config.get("name"), (str, int)) else None
    above = {key: value for key, value in config.items() if key != "process"}
    given = _named({**above, **trained[0]}, str(name) if name is not None else "")
    translation = AiToolkitTranslation(given)
    translation.folder = path.parent
    translation.take_line("family", translation.family.name, shown("arch", translation.arch))
    has = " and ".join([*["a network"] * translation.has_network, *["an embedding"] * translation.has_embedding])
    what = f"a process with {has or 'neither network nor embedding'}"
    what = shown("type", translation.kind) if translation.is_slider else what
    translation.take_line("method", translation.method.name, what)
    why = (
        "" if not translation.has_embedding or translation.method.trains_words else "this model has no embeddings here"
    )
    if why:
        translation.result.left.append(Line("embedding", why=why))
    translation.take_line("lr_scaling", "none", "train.lr")
    result = translation.run(OF_MODEL | OF_TRAINING | OF_SLIDER | OF_DATA)
    result.left.extend(_lines_beside(content, processes, trained[0]))
    result.left.extend(_lines_of_variables(given))
    return result


def _lines_beside(
    content: Mapping[str, Any], processes: list[Mapping[str, Any]], chosen: Mapping[str, Any]
) -> Iterator[Line]:
    """The lines of what else is in the file."""
    for one in processes:
        if one is not chosen:
            why = "only the first process that trains is imported; put this one into a job of its own"
            yield Line(f"a second process, {shown('type', one.get('type'))}", why=why)
    for name, value in content.items():
        if name not in _OF_JOB:
            yield Line(shown(str(name), value), why="ai-toolkit has no such section")


def _lines_of_variables(given: Any, name: str = "") -> Iterator[Line]:
    """The lines of values with ${NAME}, which ai-toolkit replaces by what the environment has."""
    if isinstance(given, Mapping):
        for key, value in given.items():
            yield from _lines_of_variables(value, f"{name}.{key}" if name else str(key))
    elif isinstance(given, list):
        for value in given:
            yield from _lines_of_variables(value, name)
    elif isinstance(given, str) and "${" in given:
        yield Line(shown(name, given), why="variables of the environment are not read: write their values")


def _named(given: Any, name: str) -> Any:
    """The values with the name of the job in place of [name]."""
    if isinstance(given, Mapping):
        return {str(key): _named(value, name) for key, value in given.items()}
    if isinstance(given, list):
        return [_named(value, name) for value in given]
    return given.replace("[name]", name) if isinstance(given, str) and name else given
