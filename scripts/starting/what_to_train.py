"""The questions of start_multi_gpu.py about settings, images and run folder, as options of train.py."""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import os
import time
from collections.abc import Mapping
from pathlib import Path

from modules.config.errors import ConfigError, UserError
from modules.config.files import load_values
from modules.config.installation import window_folder
from modules.config.methods import facts_of
from modules.config.parse import JSON_ENDINGS, YAML_ENDINGS
from modules.config.presets import list_presets
from modules.config.TrainConfig import TrainConfig
from modules.config.validation import find_problems
from modules.session.backups import list_backups, newest_usable
from modules.session.printing import print_line
from modules.session.Questions import Questions
from modules.session.RunFolder import RunFolder
from modules.session.working_folder import working_folder
from scripts import train

MAX_LISTED_FILES = 12
MAX_READ_FILES = 50  # a folder may be full of other programs' JSON


def ask_settings(questions: Questions, args: argparse.Namespace) -> list[str]:
    """Which settings, and which images where they name none; as options of train.py. args: of start_multi_gpu.py."""
    files, presets = find_settings(), {preset.name: preset.description for preset in list_presets()}

    def read(text: str) -> str:
        if text.isdecimal():
            if not 1 <= int(text) <= len(files):
                raise UserError(
                    f"{text} is not in the list of files: choose another number, or name a file or a preset."
                )
            text = files[int(text) - 1]
        if not text:
            raise UserError("Answer with the number or path of a settings file, or with the name of a preset.")
        if text not in presets and (listed := preset_lines(text, presets)):
            raise UserError(listed)
        check_alone(read_config(settings_arguments(text, args)))
        return os.path.abspath(os.path.expanduser(text)) if is_file_name(text) else text

    if "settings" not in questions.given:
        for number, name in enumerate(files, start=1):
            print_line(f"{number:>4}  {name}")
        print_line(f"There are {len(presets)} presets, also for a GPU's memory, such as sdxl-lora-16gb.")
        print("Type a part of a name, such as sdxl, to see those that contain it, or ? to see all.")
    before = questions.last.get("settings")
    numbered = "number or path of a file" if files else "path of a file"
    settings = questions.ask("settings", f"Settings: {numbered}, or a preset", read)
    if settings != before:
        questions.last.clear()  # what was answered for other settings
    arguments = settings_arguments(settings, args)
    config = read_config(arguments)
    if args.images or not (config.concepts or facts_of(config).draws_images(config)):
        folder = questions.ask("pictures", "Folder with your images", read_folder)
        arguments += images_arguments(folder, config)
    return arguments


def preset_lines(text: str, presets: Mapping[str, str]) -> str:
    """The presets whose names contain the text, or all for ?, with their descriptions; "" for what is no such text."""
    if is_file_name(text):
        return ""
    found = [name for name in presets if text == "?" or text.lower() in name]
    width = max(map(len, found), default=0)
    return "\n".join(f"  {name:<{width}}  {presets[name]}" for name in found)


def find_settings() -> list[str]:
    """Settings files here and in the folder where the window writes them, the newest first."""
    known = {field.name for field in dataclasses.fields(TrainConfig)}
    folders = dict.fromkeys((Path(working_folder()), window_folder() / "workspace"))
    paths = [path for folder in folders for path in folder.glob("*") if is_file_name(path.name) and path.is_file()]
    found = []
    for path in sorted(paths, key=lambda path: -path.stat().st_mtime)[:MAX_READ_FILES]:
        with contextlib.suppress(ConfigError):  # another program's file
            if known.issuperset(load_values(path)):
                found.append(str(path))
    return found[:MAX_LISTED_FILES]


def is_file_name(text: str) -> bool:
    return Path(text).suffix.lower() in YAML_ENDINGS + JSON_ENDINGS or os.path.basename(text) != text


def settings_arguments(settings: str, args: argparse.Namespace) -> list[str]:
    """settings: the path of a file, or the name of a preset. Raises UserError for two presets."""
    changes = [f"--set=workspace_dir={args.run_folder}"] if args.run_folder else []
    changes += [f"--set={change}" for change in args.set]
    if not is_file_name(settings):
        if args.preset not in (None, settings):
            raise UserError(f"--preset {args.preset}: {settings!r} is a preset too; name one of them.")
        return [f"--preset={settings}", *changes]
    below = [f"--preset={args.preset}"] if args.preset else []
    return [*below, f"--config={os.path.expanduser(settings)}", *changes]


def images_arguments(folder: str, config: TrainConfig) -> list[str]:
    if config.concepts:
        raise UserError(
            f"--images {folder}: the settings already contain a dataset; omit it, or change the dataset there."
        )
    return [f"--set=concepts.0.path={read_folder(folder)}"]


def read_config(arguments: list[str]) -> TrainConfig:
    """The settings that scripts/train.py would have from these options. Raises ConfigError."""
    return train.read_config(train.parse(arguments))


def check_alone(config: TrainConfig) -> None:
    """Raises ConfigError for what is wrong in the settings, but for what the other questions may mend."""
    problems = find_problems(dataclasses.replace(config, enable_multi_gpu=False))
    if refused := [one for one in problems if one.blocking and one.path != "concepts"]:
        raise ConfigError(refused)


def read_folder(text: str) -> str:
    path = os.path.abspath(os.path.expanduser(text))
    if not text or not os.path.isdir(path):
        raise UserError(f"{text!r} is not a folder: enter the one with your images.")
    return path


def ask_resume(questions: Questions, arguments: list[str], wanted: bool | None) -> list[str]:
    """Whether to go on with an earlier run, or where else to begin a new one. wanted: what an option says of it."""
    if wanted:
        return ["--resume"]
    folder = RunFolder(read_config(arguments).workspace_dir)
    backup = newest_usable(folder)
    if backup and wanted is None:
        when = time.strftime("%Y-%m-%d %H:%M", time.localtime(backup.time))
        text = f"{folder.path} has a backup of step {backup.step}, of {when}: resume from it?"
        has_finished = folder.has_finished()
        if has_finished:
            text = (
                f"{folder.path} holds a run that has finished. Train it on from its backup of step {backup.step}, of "
                f"{when}, if the settings now have more steps or epochs?"
            )
        if questions.ask_whether("resume", text, default=not has_finished):
            return ["--resume"]
    free = next_run_folder(folder.path)
    if free == folder.path:
        return []
    whose = "" if backup or not list_backups(folder) else " whose backups are damaged"
    text = f"{folder.path} already contains a run{whose}: folder for the new one"
    chosen = questions.ask("run_folder", text, read_run_folder, str(free))
    return [f"--set=workspace_dir={chosen}"]


def next_run_folder(folder: Path) -> Path:
    """`folder`, or one named after it that holds no run yet: no run's work is touched by the next."""
    names = (folder if number == 1 else folder.with_name(f"{folder.name}-{number}") for number in range(1, 10_000))
    return next(path for path in names if not holds_run(path))


def holds_run(path: Path) -> bool:
    try:
        RunFolder(path).refuse_earlier_run()
    except UserError:
        return True
    return False


def read_run_folder(text: str) -> str:
    folder = RunFolder(text)
    folder.refuse_earlier_run()
    return str(folder.path)
