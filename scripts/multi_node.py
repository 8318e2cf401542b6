"""Prints the commands for training on several machines, one per machine, and runs the check that they start with.

python scripts/multi_node.py --config run.yaml --nodes 2 --processes-per-node 8 --master-addr 10.0.0.1
"""

import argparse
import math
import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

if __name__ == "__main__":  # before the imports that take long
    from scripts.terminal import prepare_terminal

    prepare_terminal()

from modules.config.errors import UserError
from modules.config.files import apply_overrides, config_from_values, load_values
from modules.config.installation import ROOT, command_name
from modules.config.presets import load_preset, merge_values
from modules.config.TrainConfig import TrainConfig
from modules.config.validation import check_settings
from modules.launch.command_text import (
    Places,
    bash_line,
    bash_script,
    check_address,
    commands_text,
    node_commands,
    powershell_line,
    powershell_script,
)
from modules.launch.node_check import WAIT_SECONDS, check_nodes, refused_together
from modules.machine.can_start import StartFacts, blocking, device_problems
from modules.machine.devices import default_num_ranks, list_gpus, num_cores
from modules.machine.Machine import read_machine
from modules.session.printing import print_line, print_text
from modules.session.program_end import end_program
from modules.session.run_token import make_token_file, token_path
from modules.session.working_folder import working_folder
from scripts.terminal import escape_unprintable, show

REFUSED = 2  # as of scripts/train.py
SHELLS = {"bash": (bash_line, bash_script), "powershell": (powershell_line, powershell_script)}


def main(argv: list[str] | None = None) -> int:
    args = parse(argv)
    escape_unprintable()
    try:
        config = read_config(args)
        if args.check:
            check_here(config, args.wait, args.resume)
        else:
            show(commands_for(config, args))
    except UserError as error:
        print_text(error, sys.stderr)
        return REFUSED
    return 0


def parse(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog=command_name("multi_node"), description="Write the commands that train on several machines (nodes)."
    )
    parser.add_argument("--config", metavar="FILE", required=True, help="settings, at the same path on every machine")
    parser.add_argument("--preset", metavar="NAME", help="preset to lay under the settings")
    parser.add_argument("--set", metavar="PATH=VALUE", action="append", default=[], help="change one setting")
    nodes = parser.add_argument_group("nodes (each changes a setting)")
    nodes.add_argument("--nodes", metavar="N", help="how many machines")
    nodes.add_argument("--processes-per-node", metavar="N", help="GPUs of each; all of this machine by default")
    nodes.add_argument("--master-addr", metavar="ADDRESS", help="of node 0, as the others reach it")
    nodes.add_argument("--master-port", metavar="PORT", help="that node 0 listens at")
    nodes.add_argument("--no-torchrun", action="store_true", help="let Chorus start the ranks itself")
    places = parser.add_argument_group("where things are on every machine")
    places.add_argument("--interface", default="", help="network interface between them, such as eth0")
    places.add_argument("--python", metavar="PATH", default=sys.executable, help="this one by default")
    places.add_argument("--chorus", metavar="FOLDER", default=str(ROOT), help="this one by default")
    places.add_argument("--folder", metavar="FOLDER", help="to run in; this one by default")
    parser.add_argument("--shell", choices=SHELLS, default="powershell" if os.name == "nt" else "bash")
    parser.add_argument("--script", action="store_true", help="one file that takes the number of its machine")
    parser.add_argument("--resume", action="store_true", help="resume from the newest backup")
    check = parser.add_argument_group("the check that each command begins with")
    check.add_argument("--check", action="store_true", help="wait for all nodes, compare them, and end")
    check.add_argument("--node-rank", metavar="R", help="which node this machine is, from 0")
    check.add_argument("--wait", metavar="SECONDS", type=seconds, default=WAIT_SECONDS, help="for all; 600 by default")
    return parser.parse_args(argv)


def seconds(text: str) -> float:
    if not 0 <= float(text) < math.inf:  # nor is it a number of seconds if it is not a number
        raise argparse.ArgumentTypeError(f"{text} is not a time to wait: write a number of seconds, 0 or more")
    return float(text)


def read_config(args: argparse.Namespace) -> TrainConfig:
    """Raises UserError for settings that can't be trained on several machines, or at all."""
    overrides = {
        "enable_multi_gpu": "true",
        "num_nodes": args.nodes,
        "node_rank": args.node_rank,
        "world_size": args.processes_per_node,
        "master_addr": args.master_addr,
        "initial_port": args.master_port,
        "use_torchrun": "false" if args.no_torchrun else None,
    }
    given = [f"{path}={value}" for path, value in overrides.items() if value is not None]
    values = merge_values(load_preset(args.preset) if args.preset else {}, load_values(args.config))
    config = config_from_values(apply_overrides(values, [*args.set, *given]), source=args.config)
    warnings = [problem.message for problem in check_settings(config) if not args.check]
    if config.num_nodes == 1:
        warnings.append("num_nodes 1: these are the commands for one machine; give --nodes.")
    for text in warnings:
        print_line(f"Warning: {text}", sys.stderr)
    return config


def commands_for(config: TrainConfig, args: argparse.Namespace) -> str:
    """What to run on each machine, for a person or a shell."""
    if config.world_size is None:
        config.world_size = default_num_ranks(config, list_gpus(), num_cores())
    folder = working_folder() if args.folder is None else args.folder
    options = [*([f"--preset={args.preset}"] if args.preset else []), *(f"--set={one}" for one in args.set)]
    places = Places(args.config, args.python, args.chorus, folder, args.interface, tuple(options))
    commands = node_commands(config, config.world_size, places, args.resume)
    if config.num_nodes > 1:
        make_token_file(token_path(args.config))
    line, script = SHELLS[args.shell]
    return script(commands) if args.script else commands_text(commands, config.master_addr, line)


def check_here(config: TrainConfig, wait_seconds: float, resume: bool) -> None:
    def tell(text: str) -> None:
        print_line(text)

    check_address(config)
    for problem in check_settings(config):
        if problem.path == "master_addr":  # fine for nodes that are all on this machine, to try things out
            tell(f"Warning: {problem.message}")
    with refused_together(config, tell):  # the devices of a node are its own
        if refused := blocking(device_problems(config, StartFacts(read_machine()), resume)):
            raise UserError.of(refused[0])
    for line in check_nodes(config, tell, wait_seconds=wait_seconds, resume=resume):
        tell(line)


if __name__ == "__main__":
    end_program(main)
