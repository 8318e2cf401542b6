"""kohya's sd-scripts: commands in scripts, files of arguments and of datasets, prompts, and folders of folders."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from modules.config.other_programs import load_program
from modules.importers.command_lines import ScriptCommand, read_commands, words_of
from modules.importers.ImportResult import ImportResult, Line
from modules.importers.read_file import TEXT_ENDINGS, read_content
from modules.importers.sd_scripts_data import OF_DATA, is_dataset, take_dataset, take_folder, take_prompts
from modules.importers.sd_scripts_model import OF_MODEL
from modules.importers.sd_scripts_training import OF_TRAINING
from modules.importers.SdScriptsTranslation import SdScriptsTranslation

NAME = "sd_scripts"
FILES = (
    "sd-scripts' commands (.sh, .bat, .ps1), files of arguments and of datasets (.toml), prompts (.txt), and folders "
    "with folders such as 10_cat"
)
_ARGUMENTS = {"pretrained_model_name_or_path", "network_module", "train_data_dir", "dataset_config", "output_name"}


def recognizes(path: Path, content: Any) -> bool:
    """Whether a file with this content is of sd-scripts."""
    if isinstance(content, str):
        return path.suffix.lower() in TEXT_ENDINGS and (bool(_commands(path, content)) or _are_prompts(path, content))
    if not isinstance(content, Mapping):
        return False
    return path.suffix.lower() == ".toml" and (is_dataset(content) or len(_ARGUMENTS & _flat(content).keys()) > 1)


def translate(path: Path, content: Any) -> ImportResult:
    """The settings of a file that `recognizes` knows. Raises UserError if a file that it names can't be read."""
    if isinstance(content, str):
        commands = _commands(path, content)
        if not commands:
            return _data(path, lambda t: take_prompts(t, content))
        result = _of_command(commands[0], path.parent)
        for other in commands[1:]:
            why = "only the first command of a file is imported; put this one into a file of its own"
            result.left.append(Line(f"a second command, {other.script}", why=why))
        return result
    if is_dataset(content):
        return _data(path, lambda t: take_dataset(t, content))
    arguments = _flat(content)
    return _run(_script_of(arguments), arguments, path.parent, is_guessed=True)


def translate_folder(folder: Path) -> ImportResult:
    """A folder with folders such as 10_cat, each of them a concept."""
    return _data(folder / "folder", lambda t: take_folder(t, str(folder), is_regularisation=False))


def _data(path: Path, take: Any) -> ImportResult:
    translation = SdScriptsTranslation({}, "train_network.py", path.parent)
    take(translation)
    return translation.result


def _of_command(command: ScriptCommand, folder: Path) -> ImportResult:
    arguments = dict(command.arguments)
    if isinstance(arguments.get("config_file"), str):
        arguments = {**_config_file(arguments["config_file"], folder), **arguments}
    result = _run(command.script, arguments, folder)
    if command.before:
        processes = [word for word in command.before if word.startswith("--")]
        if processes:
            why = "Chorus starts its processes itself: see enable_multi_gpu"
            result.left.append(Line(" ".join(processes)[:200], why=why))
    for word in command.rest[:20]:
        result.left.append(Line(word[:80] if not word.startswith("hf_") else "a word", why="it belongs to no argument"))
    return result


def _config_file(name: str, folder: Path) -> dict[str, Any]:
    path = Path(name)
    path = path if path.is_absolute() else folder / path
    if not path.suffix:
        path = path.with_suffix(".toml")
    content = read_content(path)
    return _flat(content) if isinstance(content, Mapping) else {}


def _flat(content: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of a file, whose sections have names that mean nothing."""
    result: dict[str, Any] = {}
    for name, value in content.items():
        if isinstance(value, Mapping):
            result |= value
        else:
            result[name] = value
    return {str(name).replace("-", "_"): value for name, value in result.items()}


def _run(script: str, arguments: Mapping[str, Any], folder: Path, is_guessed: bool = False) -> ImportResult:
    kinds = {name: setting.kind for name, setting in load_program(NAME).settings.items()}
    arguments = {
        name: words_of(value) if kinds.get(name) == "list" and isinstance(value, str) else value
        for name, value in arguments.items()
    }
    translation = SdScriptsTranslation(arguments, script, folder)
    why = "the file does not say for which script it is: set family, if it is for another model" if is_guessed else ""
    chosen = translation.theirs(*translation.chosen_by) if translation.chosen_by else ""
    translation.take_line(
        "family", translation.family.name, f"script {script}" + (f", {chosen}" if chosen else ""), why
    )
    translation.take_line("method", translation.method.name, f"script {script}", why)
    translation.take_line("lr_scaling", "none", f"script {script}")
    return translation.run(OF_MODEL | OF_TRAINING | OF_DATA)


def _script_of(arguments: Mapping[str, Any]) -> str:
    """The script that the arguments are for, as far as they tell."""
    module = arguments.get("network_module")
    modules = load_program(NAME).facts["modules"]
    if isinstance(module, str) and module in modules:
        return modules[module]
    has_network = isinstance(module, str) and bool(module)
    if "token_string" in arguments:
        return "train_textual_inversion.py"
    model = str(arguments.get("pretrained_model_name_or_path", "")).lower()
    size = str(arguments.get("resolution", "")).strip(" [")
    for guess in load_program(NAME).facts["guesses"]:
        named = guess.get("arguments", [])
        by_word = any(word in model for word in guess.get("words", [])) or size.startswith(
            tuple(guess.get("sizes", []))
        )
        if (named and all(name in arguments for name in named)) or (not named and by_word):
            return guess["scripts"][has_network]
    return "train_network.py" if has_network else "train_db.py"


def _commands(path: Path, text: str) -> list[ScriptCommand]:
    return read_commands(text, load_program(NAME).facts["scripts"], path.suffix.lower() not in (".sh", ".bash"))


def _are_prompts(path: Path, text: str) -> bool:
    lines = [line for line in text.splitlines() if line.strip() and not line.startswith("#")]
    marks = (" --n ", " --w ", " --h ", " --d ", " --l ", " --s ")
    return path.suffix.lower() == ".txt" and any(mark in f"{line} " for line in lines for mark in marks)
