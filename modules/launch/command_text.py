"""The commands that start a run from terminals, one per machine, written for bash and PowerShell.

A command is built as an argument list and quoted afterwards, so that no shell interprets what a path or an address
contains. What no quoting makes safe to paste, such as a line break, is refused.
"""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import PurePosixPath, PureWindowsPath
from typing import TYPE_CHECKING

from modules.config.errors import UserError
from modules.config.installation import ROOT
from modules.config.visible_text import find_hidden
from modules.machine.run_shape import uses_torchrun
from modules.session.run_token import TOKEN_VARIABLE, token_path
from modules.session.RunFolder import RunFolder
from modules.session.working_folder import working_folder

if TYPE_CHECKING:
    from modules.config.TrainConfig import TrainConfig

# PowerShell treats each of these as a single quote (language specification, 2.3.5.2).
_POWERSHELL_QUOTES = re.compile("['\u2018\u2019\u201a\u201b]")


@dataclass(frozen=True)
class Places:
    """Where every machine finds the files that the command names.

    config_path: the settings file. chorus: the folder of Chorus. folder: the working folder, which relative paths in
    the settings start from. interface: the network interface for traffic between machines; empty: chosen by the
    libraries. options: further ones of scripts/train.py that change settings, such as --preset=NAME.
    """

    config_path: str
    python: str = sys.executable
    chorus: str = str(ROOT)
    folder: str = field(default_factory=working_folder)
    interface: str = ""
    options: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        check_place("The settings file", self.config_path)
        check_place("Python", self.python)
        check_place("The folder of Chorus", self.chorus, is_whole=True)
        check_place("The working folder", self.folder, is_whole=True)
        check_place("The network interface", self.interface, may_be_empty=True)
        for option in self.options:
            check_place("An option", option)


@dataclass(frozen=True)
class Command:
    """What one machine runs. variables: environment variables. folder: the working folder.

    check: a command that has to succeed first, if any: torchrun itself would wait for the other machines in silence.
    token_path: the file with the token that all machines share; empty: none is needed.
    """

    node_rank: int
    arguments: tuple[str, ...]
    variables: tuple[tuple[str, str], ...]
    folder: str
    check: tuple[str, ...] = ()
    token_path: str = ""


def launch_settings_path(workspace_dir: str) -> str:
    """Where the settings for a command are written: beside the run folder, which holds the run's own copy.

    Raises UserError if the folder has no name.
    """
    return f"{RunFolder(workspace_dir).path}.yaml"


def node_commands(config: TrainConfig, ranks_per_node: int, places: Places, resume: bool = False) -> list[Command]:
    """One command for each machine of `config`, machine 0 first.

    Raises UserError for a missing address, or one that cannot be used in a command.
    """
    num_nodes = config.num_nodes if config.enable_multi_gpu else 1
    check_text("master_addr", config.master_addr)
    if num_nodes > 1:
        check_address(config)
    variables = []
    if config.enable_multi_gpu and config.device_indexes:
        variables.append(("CUDA_DEVICE_ORDER", "PCI_BUS_ID"))  # so that indexes refer to the GPUs that were chosen
    variables += interface_variables(places.interface)
    return [
        Command(
            rank,
            tuple(_arguments(config, ranks_per_node, rank, places, resume)),
            tuple(variables),
            places.folder,
            tuple(_check_arguments(config, ranks_per_node, rank, places, resume)),
            token_path(places.config_path) if num_nodes > 1 else "",
        )
        for rank in range(num_nodes)
    ]


def interface_variables(interface: str) -> list[tuple[str, str]]:
    """The environment variables that name the network interface; none for an empty one."""
    name = interface.strip()
    return [(f"{library}_SOCKET_IFNAME", name) for library in ("NCCL", "GLOO")] if name else []


def check_address(config: TrainConfig) -> None:
    """Raises UserError if the address of machine 0 is missing."""
    if not config.master_addr.strip():
        raise UserError.at("master_addr", "is empty: write the address of machine 0, as the others reach it.")


def commands_text(commands: Sequence[Command], master_addr: str, line: Callable[[Command], str]) -> str:
    """All commands for reading, each below a comment. line: `bash_line` or `powershell_line`."""
    address = f" ({master_addr})" if len(commands) > 1 else ""
    notes = [_token_note(commands)] if commands and commands[0].token_path else []
    headings = [f"# node {command.node_rank}{'' if command.node_rank else address}" for command in commands]
    parts = [f"{heading}\n{line(command)}" for heading, command in zip(headings, commands, strict=True)]
    return "\n\n".join([*notes, *parts])


def bash_line(command: Command) -> str:
    """One line for bash and other POSIX shells."""
    variables = [f"{name}={shlex.quote(value)}" for name, value in command.variables]
    parts = [f"cd -- {shlex.quote(command.folder)}"]
    parts += read_token_in_bash(command.token_path) if command.token_path else []
    parts += [" ".join(_bash_words(command.check))] if command.check else []
    return " && ".join([*parts, " ".join([*variables, *_bash_words(command.arguments)])])


def powershell_line(command: Command) -> str:
    """One line for PowerShell, 5.1 and later.

    Raises UserError for text that PowerShell's versions pass on differently: double quotes, and a backslash at the end
    of a text with spaces (about_Native_Command_Parsing, "PSNativeCommandArgumentPassing").
    """
    for argument in (*command.check, *command.arguments):
        if '"' in argument or (argument.endswith("\\") and re.search(r"\s", argument)):
            raise UserError(
                f"{argument!r} can't be written for every PowerShell: leave out double quotes, and a backslash at the "
                "end."
            )
    variables = [f"$env:{name} = {_powershell_quote(value)}" for name, value in command.variables]
    run = _powershell_call(command.arguments)
    if command.token_path:
        path = _powershell_quote(command.token_path)
        variables.insert(0, f"$env:{TOKEN_VARIABLE} = Get-Content -Raw -LiteralPath {path} -ErrorAction Stop")
    folder = f"Set-Location -LiteralPath {_powershell_quote(command.folder)} -ErrorAction Stop"
    if command.check:  # 5.1 has no &&
        run = f"{_powershell_call(command.check)}; if ($LASTEXITCODE -eq 0) {{ {run} }}"
    return "; ".join([folder, *variables, run])


def bash_script(commands: Sequence[Command]) -> str:
    """A bash script that runs the command or, with several machines, the one for the machine given as argument."""
    lines = ["#!/usr/bin/env bash", "# Starts a training of Chorus.", "set -eu"]
    if len(commands) == 1:
        return "\n".join([*lines, bash_line(commands[0]), ""])
    numbers = f"0 to {len(commands) - 1}"
    lines += [f"# Its argument is the number of the machine it runs on: {numbers}.", _token_note(commands)]
    lines += ['case "${1-}" in']
    lines += [f"{command.node_rank}) {bash_line(command)} ;;" for command in commands]
    lines += [f'*) echo "usage: $0 NUMBER, of this machine: {numbers}" >&2; exit 2 ;;', "esac", ""]
    return "\n".join(lines)


def powershell_script(commands: Sequence[Command]) -> str:
    """As `bash_script`, for PowerShell. Save it with a byte order mark: without one, 5.1 reads it as ANSI."""
    lines = ["# Starts a training of Chorus."]
    if len(commands) == 1:
        return "\n".join([*lines, powershell_line(commands[0]), "exit $LASTEXITCODE", ""])
    numbers = f"0 to {len(commands) - 1}"
    lines += [f"# Its argument is the number of the machine it runs on: {numbers}.", _token_note(commands)]
    lines += ["switch ($args[0]) {"]
    lines += [f"    {command.node_rank} {{ {powershell_line(command)}; exit $LASTEXITCODE }}" for command in commands]
    lines += [f"    default {{ Write-Error 'Name the number of this machine: {numbers}.'; exit 2 }}", "}", ""]
    return "\n".join(lines)


def read_token_in_bash(path: str) -> list[str]:
    """Commands that export the token in the file; the first one fails if the file can't be read."""
    return [f"{TOKEN_VARIABLE}=$(cat -- {shlex.quote(path)})", f"export {TOKEN_VARIABLE}"]


def _token_note(commands: Sequence[Command]) -> str:
    path = commands[0].token_path
    return f"# The machines know each other by the token in {path}. Copy it to each that does not share the disk."


def _arguments(config: TrainConfig, ranks_per_node: int, node_rank: int, places: Places, resume: bool) -> list[str]:
    """The argument list. Options are written --name=value, so that no value can be mistaken for an option."""
    script = [f"{places.chorus.rstrip('/')}/scripts/train.py", f"--config={places.config_path}", *places.options]
    script += ["--resume"] if resume else []
    if not config.enable_multi_gpu or (config.num_nodes == 1 and ranks_per_node == 1):
        return [places.python, *script]
    by_torchrun = uses_torchrun(config)
    # on one machine train.py starts torchrun's agent itself: torchrun's own store would listen on all interfaces
    if config.num_nodes == 1 or not by_torchrun:
        settings = {"enable_multi_gpu": "true", "use_torchrun": str(by_torchrun).lower(), "world_size": ranks_per_node}
        if config.num_nodes > 1:
            settings |= {"num_nodes": config.num_nodes, "node_rank": node_rank, "master_addr": config.master_addr}
            settings |= {"initial_port": config.initial_port}
        return [places.python, *script, *(f"--set={path}={value}" for path, value in settings.items())]
    address = (config.master_addr, config.initial_port)
    return [*torchrun_arguments(places.python, config.num_nodes, node_rank, ranks_per_node, *address), *script]


def torchrun_arguments(
    python: str, num_nodes: int, node_rank: int, ranks_per_node: int, master_addr: str, master_port: str | int
) -> list[str]:
    """What starts the ranks of a node by torchrun, ahead of their program. With one node, it needs no address."""
    # Not --rdzv-backend=c10d: with it the machine that happens to start first becomes rank 0, whatever its number is.
    nodes = [f"--nnodes={num_nodes}", f"--node-rank={node_rank}", f"--nproc-per-node={ranks_per_node}"]
    address = [f"--master-addr={master_addr}"] if master_addr else []
    return [python, "-m", "torch.distributed.run", *nodes, *address, f"--master-port={master_port}"]


def _check_arguments(
    config: TrainConfig, ranks_per_node: int, node_rank: int, places: Places, resume: bool
) -> list[str]:
    """The check of the other machines that has to precede torchrun; without torchrun the training does it itself."""
    if not (config.enable_multi_gpu and uses_torchrun(config) and config.num_nodes > 1):
        return []
    return [
        places.python,
        f"{places.chorus.rstrip('/')}/scripts/multi_node.py",
        "--check",
        f"--config={places.config_path}",
        *places.options,
        f"--nodes={config.num_nodes}",
        f"--node-rank={node_rank}",
        f"--processes-per-node={ranks_per_node}",
        f"--master-addr={config.master_addr}",
        f"--master-port={config.initial_port}",
        *(["--resume"] if resume else []),
    ]


def check_place(label: str, value: str, *, may_be_empty: bool = False, is_whole: bool = False) -> None:
    """Raises UserError for what no command can name. label: how the sentence begins. is_whole: must be a whole path."""
    check_text(label, value)
    if not value.strip() and not may_be_empty:
        raise UserError(f"{label} is empty: write where it is on every machine.")
    if value.startswith("~"):
        raise UserError(f"{label} {value!r}: shells leave a quoted ~ as it is; write the whole path.")
    if is_whole and not (PurePosixPath(value).is_absolute() or PureWindowsPath(value).is_absolute()):
        raise UserError(f"{label} {value!r} is not a whole path: start it at the root, as in /opt/chorus.")


def check_text(label: str, value: str) -> None:
    """Raises UserError for invisible characters, which no quoting makes safe: users paste what they can read."""
    place = find_hidden(value)
    if place is not None:
        raise UserError(
            f"{label} has a character that can't be seen (U+{ord(value[place]):04X}, after {value[:place][-20:]!r}), "
            "which has no place in a command: remove it."
        )


def _bash_words(arguments: Sequence[str]) -> list[str]:
    program, *others = arguments
    # unquoted, a program name containing = would be read as an assignment
    return [_bash_quote(program) if "=" in program else shlex.quote(program), *map(shlex.quote, others)]


def _bash_quote(text: str) -> str:
    """Quote even where shlex sees no need to."""
    return "'" + text.replace("'", "'\"'\"'") + "'"


def _powershell_call(arguments: Sequence[str]) -> str:
    return " ".join(["&", *map(_powershell_quote, arguments)])


def _powershell_quote(text: str) -> str:
    return "'" + _POWERSHELL_QUOTES.sub(lambda quote: quote[0] * 2, text) + "'"
