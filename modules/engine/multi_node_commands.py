"""Writes the commands that start a program of one's own on several machines."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import Literal, get_args

from modules.config.addresses import why_no_address
from modules.config.errors import UserError
from modules.config.installation import IS_INSTALLED, ROOT
from modules.config.TrainConfig import TrainConfig
from modules.engine.arguments import check_count
from modules.launch.command_text import (
    Command,
    bash_line,
    check_place,
    check_text,
    interface_variables,
    powershell_line,
    torchrun_arguments,
)
from modules.machine.devices import list_gpus, num_cores
from modules.machine.run_shape import ranks_here
from modules.session.run_token import make_token_file, token_path
from modules.session.working_folder import working_folder

Shell = Literal["bash", "powershell"]
LINES = {"bash": bash_line, "powershell": powershell_line}


def multi_node_commands(
    program: str | os.PathLike,
    num_nodes: int,
    processes_per_node: int | None = None,
    master_addr: str = "",
    *,
    arguments: Sequence[str] = (),
    master_port: int = 12355,
    interface: str = "",
    python: str | None = None,
    folder: str | os.PathLike | None = None,
    shell: Shell | None = None,
) -> list[str]:
    """The command for each of `num_nodes` machines, machine 0 first, that runs `program` by torchrun.

        for command in multi_node_commands("train.py", num_nodes=2, processes_per_node=8, master_addr="10.0.0.1"):
            print(command)

    Each of the program's processes is a rank, as under torchrun on one machine. The machines know each other by a
    secret in the file PROGRAM.token, which this function makes unless it is there: copy it with the program.

    program: a Python file, at the same path on every machine.
    processes_per_node: by default the number of this machine's GPUs, or 2 without a GPU.
    master_addr: host name or IP address of machine 0, as the others reach it.
    arguments: those of the program.
    master_port: a port of machine 0 that is free.
    interface: the network interface between the machines, such as eth0; by default the libraries choose one.
    python: the interpreter on every machine; by default this one.
    folder: the folder to run in on every machine; by default this one.
    shell: "bash" or "powershell"; by default that of this system.

    Raises UserError for values that can't be in a command, and for a token file that can't be used.
    """
    check_count("num_nodes", num_nodes)
    ranks = processes_per_node
    if ranks is None:
        ranks = ranks_here(TrainConfig(enable_multi_gpu=True), list_gpus(), num_cores())
    check_count("processes_per_node", ranks)
    shell = shell or ("powershell" if os.name == "nt" else "bash")
    if shell not in LINES:
        raise UserError(f"shell {shell!r}: it must be {' or '.join(get_args(Shell))}.")
    python = sys.executable if python is None else python
    program, folder = os.fspath(program), working_folder() if folder is None else os.fspath(folder)
    _check(program, python, folder, interface, arguments)
    if num_nodes > 1 and (reason := why_no_address(master_addr)):
        raise UserError(f"master_addr {master_addr!r}: {reason}")
    token = token_path(os.path.join(folder, program)) if num_nodes > 1 else ""
    if token:
        make_token_file(token)
    variables = [] if IS_INSTALLED else [("PYTHONPATH", str(ROOT))]
    return [
        LINES[shell](
            Command(
                node,
                (*torchrun_arguments(python, num_nodes, node, ranks, master_addr, master_port), program, *arguments),
                (*variables, *interface_variables(interface)),
                folder,
                token_path=token,
            )
        )
        for node in range(num_nodes)
    ]


def _check(program: str, python: str, folder: str, interface: str, arguments: Sequence[str]) -> None:
    check_place("program", program)
    check_place("python", python)
    check_place("folder", folder, is_whole=True)
    check_place("interface", interface, may_be_empty=True)
    for argument in arguments:
        check_text("arguments", argument)
