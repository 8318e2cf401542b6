"""Asks what to train, on which GPUs and how, then does what scripts/train.py does; start-multi-gpu.sh and .bat run it.

Every question has an option, and what is asked ends in options of scripts/train.py: the line that is printed before the
start is what is run.
"""

import argparse
import io
import os
import sys
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

if __name__ == "__main__":  # before the imports that take long
    from scripts.terminal import prepare_terminal

    prepare_terminal()
elif __name__ == "__mp_main__":  # in a rank that this script has spawned
    from modules.launch.parent_watch import end_with_parent

    end_with_parent()

from modules.config.errors import UserError
from modules.config.installation import IS_INSTALLED, ROOT, command_name, runs_folder, terminal_state_folder
from modules.launch.command_text import Command, bash_line, powershell_line
from modules.machine.Machine import Machine, read_machine
from modules.machine.run_shape import run_shape, shape_lines
from modules.session.printing import print_line, print_text
from modules.session.Questions import Questions, load_answers, save_answers
from modules.session.working_folder import working_folder
from scripts import train
from scripts.starting.devices_to_use import (
    ask_devices,
    ask_variant,
    describe,
    device_arguments,
    fitting_ranks,
    has_one_device,
)
from scripts.starting.what_to_train import (
    ask_resume,
    ask_settings,
    images_arguments,
    next_run_folder,
    read_config,
    settings_arguments,
)
from scripts.terminal import escape_unprintable

ANSWERS_FILE = "answers.json"
KEPT = ("settings", "pictures", "gpus", "backend", "data_loading", "launcher")  # answers worth keeping for next time


def main(argv: list[str] | None = None) -> int:
    args = parse(argv)
    escape_unprintable()
    if isinstance(sys.stdin, io.TextIOWrapper):  # a file name that is no text must not end the questions about it
        sys.stdin.reconfigure(errors="surrogateescape")
    try:
        if args.demo:
            return start_demo(args)
        machine = read_machine()
        questions = Questions(given_answers(args), load_answers(args.state / ANSWERS_FILE))
        arguments = unasked_arguments(args, machine) if args.yes else asked_arguments(questions, args, machine)
        if not args.dry_run and "--resume" not in arguments:  # which says more itself, and has the batch of the backup
            show_shape(arguments, machine)
        print("\nEquivalent command:")
        print_line(command_line(arguments))
        print(flush=True)
        was_asked = questions.num_asked > 0 and not args.dry_run
        if was_asked and not questions.ask_whether("start", "Start it now?", True):
            print("Nothing was started.")
            return 0
        return train.main([*arguments, *(["--dry-run"] if args.dry_run else [])])
    except UserError as error:
        print_text(error, sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("\nStopped before the training began.", file=sys.stderr)
        return 130


def parse(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog=command_name("start_multi_gpu") if IS_INSTALLED else "start-multi-gpu",
        description="Train a diffusion model on several GPUs; prompts for anything not given as an option.",
    )
    parser.add_argument("--config", metavar="FILE", help="settings, YAML or JSON, or the name of a preset")
    parser.add_argument("--preset", metavar="NAME", help="preset that the settings of --config are applied to")
    parser.add_argument("--images", metavar="FOLDER", help="folder of images, if the settings name none")
    parser.add_argument("--pictures", dest="images", help=argparse.SUPPRESS)  # what it was called before
    parser.add_argument("--run-folder", metavar="FOLDER", help="where the run is saved")
    either = argparse.BooleanOptionalAction
    parser.add_argument("--resume", action=either, help="resume from the latest backup in the run folder, or don't")
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--gpus", metavar="N|all", help="how many GPUs of this machine to use")
    which.add_argument("--devices", metavar="0,2", help="indexes of the GPUs to use")
    parser.add_argument("--backend", metavar="NAME", help="communication backend: nccl, gloo or auto")
    loading = "only the first GPU of each machine caches images, or each GPU a part of them"
    parser.add_argument("--single-gpu-data-loading", action=either, help=loading)
    parser.add_argument("--torchrun", action=either, help="start the ranks with torchrun, or without it")
    parser.add_argument("--set", metavar="PATH=VALUE", action="append", default=[], help="change one setting")
    parser.add_argument("--yes", action="store_true", help="ask nothing; settings apply unless an option is given")
    parser.add_argument("--demo", action="store_true", help="teach a small model two digits in a few minutes")
    parser.add_argument("--dry-run", action="store_true", help="show what the run would do, then exit")
    kept = terminal_state_folder()
    parser.add_argument("--state", metavar="FOLDER", type=Path, default=kept, help="where the last answers are kept")
    return parser.parse_args(argv)


def unasked_arguments(args: argparse.Namespace, machine: Machine) -> list[str]:
    """Options of scripts/train.py for what the options here say; the settings have the rest."""
    given = given_answers(args)
    if "settings" not in given:
        raise UserError("--yes asks nothing: name the settings with --config.")
    arguments = settings_arguments(given["settings"], args)
    if args.images:
        arguments += images_arguments(args.images, read_config(arguments))
    arguments += ["--resume"] if args.resume else []
    arguments += device_arguments(given, arguments, machine)
    if has_one_device(machine):
        print_text(describe(machine))
    return arguments


def asked_arguments(questions: Questions, args: argparse.Namespace, machine: Machine) -> list[str]:
    """The same with the answers of a person. Raises UserError where there is nobody to answer."""
    if not sys.stdin.isatty():
        raise UserError("The questions need a terminal: answer them by options, with --yes (--help lists them).")
    path = args.state / ANSWERS_FILE
    arguments = ask_settings(questions, args)
    arguments += ask_resume(questions, arguments, args.resume)
    print_text(describe(machine))
    ask_devices(questions, arguments, machine)
    arguments = ask_variant(questions, arguments, machine)
    arguments += device_arguments(questions.answers, arguments, machine)
    try:
        save_answers(path, {name: questions.answers[name] for name in KEPT if name in questions.answers})
    except OSError as error:
        print_line(f"{path} can't be written ({error.strerror}): the answers are not kept for next time.")
    return arguments


def given_answers(args: argparse.Namespace) -> dict[str, str]:
    """The options here as answers to the questions."""
    given = {
        "settings": args.config or args.preset,
        "pictures": args.images,
        "gpus": f"{args.devices.strip(' ,')}," if args.devices else args.gpus,
        "backend": args.backend,
        "data_loading": {True: "no", False: "yes"}.get(args.single_gpu_data_loading),
        "launcher": {True: "torchrun", False: "spawn"}.get(args.torchrun),
    }
    return {name: answer for name, answer in given.items() if answer is not None}


def start_demo(args: argparse.Namespace) -> int:
    refused = ("config", "preset", "images", "resume")
    if named := [f"--{name.replace('_', '-')}" for name in refused if getattr(args, name)]:
        raise UserError(f"--demo brings its own settings: leave out {' and '.join(named)}.")
    folder = Path(args.run_folder or next_run_folder(runs_folder() / "demo"))
    folders = [f"--set=workspace_dir={folder}", f"--set=cache_dir={folder.parent / 'cache'}"]
    arguments = ["--preset=demo", *folders, *(f"--set={change}" for change in args.set)]
    machine = read_machine()
    given = {"gpus": fitting_ranks(read_config(arguments), machine)} | given_answers(args)
    arguments += device_arguments(given, arguments, machine)
    if args.dry_run:
        return train.main([*arguments, "--dry-run"])
    config = read_config(arguments)
    from modules.launch.demo import run_demo

    return run_demo(config)


def show_shape(arguments: list[str], machine: Machine) -> None:
    config = read_config(arguments)
    shape = run_shape(config, machine)
    print()
    for label, text in shape_lines(shape, config):
        if label != "Steps":  # the images are not counted yet
            print_line(f"{label + ':':<15}{text}")


def command_line(arguments: Sequence[str]) -> str:
    """The run in one line for the shell of this system, from any folder."""
    script = str(ROOT / "scripts" / "train.py")
    command = Command(0, (sys.executable, script, *arguments), (), working_folder())
    if os.name != "nt":
        return bash_line(command)
    try:
        return powershell_line(command)
    except UserError as error:
        return str(error)


if __name__ == "__main__":
    sys.exit(main())
