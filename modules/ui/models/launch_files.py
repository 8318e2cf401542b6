"""Write the files for a launch command: its settings and the command as a script. For threads; no Tk."""

from __future__ import annotations

import os
import stat
from collections.abc import Sequence
from pathlib import Path

from modules.config.atomic_file import write_bytes
from modules.config.errors import UserError
from modules.config.files import save_config
from modules.config.TrainConfig import TrainConfig
from modules.launch.command_text import (
    Command,
    Places,
    bash_script,
    launch_settings_path,
    powershell_script,
)
from modules.session.run_token import make_token_file, token_path


def write_settings(config: TrainConfig, places: Places) -> str:
    """Write the settings where the command expects them, and the token of several machines beside them.

    Returns a sentence about it. Raises UserError. A file named by the user is never overwritten, and its folder may
    exist on other machines only.
    """
    several = config.enable_multi_gpu and config.num_nodes > 1
    default = Path(launch_settings_path(config.workspace_dir))
    path = Path(places.folder, places.config_path)
    copy_to = ""
    try:
        if path != default and path.exists():
            if several:
                make_token_file(token_path(str(path)))
            return f"It reads {path}, which stays as it is."
        if path != default and not path.parent.is_dir():
            path, copy_to = default, str(path)
    except OSError as error:
        raise UserError(f"{path} can't be read: {error.strerror}; choose another settings file.") from error
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"{path.parent} can't be made: {error.strerror}; choose another run folder.") from error
    save_config(config, path)
    if not several:
        return f"Copy {path} to {copy_to} on every machine." if copy_to else f"Its settings are in {path}."
    token = token_path(str(path))
    make_token_file(token)
    if copy_to:
        return f"Copy {path} to {copy_to} on every machine, and {token} to {token_path(copy_to)}."
    return f"Its settings are in {path}, and its secret token in {token}: each machine needs both."


def write_script(path: str, commands: Sequence[Command]) -> str:
    """Write a bash script, or a PowerShell one if the name ends in .ps1. Returns the path. Raises UserError."""
    is_powershell = path.lower().endswith(".ps1")
    if is_powershell:
        data = powershell_script(commands).replace("\n", "\r\n").encode("utf-8-sig")
    else:
        data = bash_script(commands).encode()
    try:
        write_bytes(path, data)
        if not is_powershell:
            os.chmod(path, os.stat(path).st_mode | stat.S_IXUSR | stat.S_IXGRP | stat.S_IXOTH)
    except OSError as error:
        raise UserError(f"{path} can't be written: {error.strerror}; choose another place.") from error
    return path
