"""Lists the ways to train on several GPUs, and prints, copies or runs one: python scripts/examples_multigpu.py

--list prints all, --print N only the command of one, --run N runs it with the options after `--`.
"""

from __future__ import annotations

import argparse
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

if __name__ == "__main__":  # before the imports that take long
    from scripts.terminal import prepare_terminal

    prepare_terminal()

from modules.config.errors import UserError
from modules.config.installation import IS_INSTALLED, ROOT, command_name
from modules.session.printing import print_text
from modules.session.Questions import Questions
from scripts.terminal import show

PYTHON = "python"  # the one that runs this script
DEMO = ("--preset=demo", "--set=workspace_dir=workspace/multi_gpu_example")
AGENT = (PYTHON, "scripts/elastic_agent.py", "--nproc_per_node=2")  # torchrun's own store is open to the network
FLOW_NEEDS = ("--data DIR", "--base MODEL")
CLIPBOARDS = (("pbcopy",), ("clip",), ("wl-copy",), ("xclip", "-selection", "clipboard"), ("xsel", "-ib"))


@dataclass(frozen=True)
class Example:
    """A way to start. command: to be run in the folder of Chorus. needs: options that it lacks, as a person types them.

    on_windows: the command there, if it is another one; empty if it does not work there.
    """

    title: str
    does: str
    command: tuple[str, ...]
    needs: tuple[str, ...] = ()
    on_windows: tuple[str, ...] | None = None

    def here(self) -> tuple[str, ...]:
        """The command on this system. Raises UserError if it does not work here."""
        command = self.command if os.name != "nt" or self.on_windows is None else self.on_windows
        if not command:
            raise UserError(f"{self.title}: it does not work on Windows; choose another way.")
        return _as_installed(self.title, command) if IS_INSTALLED else command


# Starters of a checkout, without their endings -> what pip has installed in their place.
_INSTALLED = {
    "start-ui": ("chorus",),
    "start-multi-gpu": ("chorus-start-multi-gpu",),
    "train_multigpu": ("chorus-train-flow-matching", "--num_gpus=all"),
}


def _as_installed(title: str, command: tuple[str, ...]) -> tuple[str, ...]:
    """A command of a checkout for the installed package. Raises UserError if it is only there."""
    first, *others = command
    starter = first.replace("\\", "/").rpartition("/")[2].partition(".")[0]
    if first != PYTHON and starter not in _INSTALLED:
        raise UserError(f"{title}: only a checkout of Chorus has this starter; choose another way.")
    # the files are inside the package
    paths = (re.sub(r"(^|=)(scripts|resources)/", lambda at: f"{at[1]}{(ROOT / at[2]).as_posix()}/", o) for o in others)
    return (*_INSTALLED.get(starter, (first,)), *paths)


EXAMPLES = (
    Example(
        "Check the set-up",
        "Trains a small model on one GPU and on all, and compares the results; takes some minutes.",
        (PYTHON, "scripts/validate_multigpu.py"),
    ),
    Example(
        "The window",
        "Opens the window; choose the GPUs on its Multi-GPU tab.",
        ("./start-ui.sh",),
        on_windows=("start-ui.bat",),
    ),
    Example(
        "Questions in the terminal",
        "Asks for settings and GPUs, shows the equivalent command, and trains under a supervisor.",
        ("./start-multi-gpu.sh",),
        on_windows=("start-multi-gpu.bat",),
    ),
    Example(
        "The demo",
        "Teaches a small model two digits on all GPUs, or on two CPU ranks.",
        ("./start-multi-gpu.sh", "--demo"),
        on_windows=("start-multi-gpu.bat", "--demo"),
    ),
    Example(
        "train.py with a supervisor",
        "Starts one rank per GPU (by torchrun; on Windows by spawn), and ends all if one dies or hangs.",
        (PYTHON, "scripts/train.py", *DEMO, "--multi_gpu"),
    ),
    Example(
        "train.py with spawn",
        "The same without torchrun.",
        (PYTHON, "scripts/train.py", *DEMO, "--multi_gpu", "--no_torchrun"),
    ),
    Example(
        "Two GPUs of your choice",
        "Trains on GPUs 0 and 1 and leaves the others alone.",
        (PYTHON, "scripts/train.py", *DEMO, "--devices=0,1"),
    ),
    Example(
        "Without a supervisor, counted GPUs",
        "Counts the GPUs and replaces itself by torchrun's agent; its ranks watch each other.",
        ("./scripts/train_distributed.sh", "all"),
        ("CONFIG",),
        on_windows=(),
    ),
    Example(
        "torchrun",
        "Trains in the ranks of torchrun's agent, whose store listens on this machine only; takes torchrun's options.",
        (*AGENT, "scripts/train.py", *DEMO),
        on_windows=(),
    ),
    Example(
        "accelerate",
        "Trains in the ranks that accelerate starts, as its own file says; its store listens on all interfaces.",
        (
            *(PYTHON, "-m", "accelerate.commands.launch", "--config_file=resources/accelerate_config.yaml"),
            *("scripts/train.py", *DEMO),
        ),
        on_windows=(),
    ),
    Example(
        "Flow matching on all GPUs",
        "Trains a flow-matching model with common options instead of a settings file.",
        ("./scripts/train_multigpu.sh", "--batch_size=2", "--num_epochs=50"),
        FLOW_NEEDS,
        on_windows=("scripts\\train_multigpu.bat", "--batch_size=2", "--num_epochs=50"),
    ),
    Example(
        "Flow matching by torchrun",
        "The same training in the ranks of torchrun's agent.",
        (*AGENT, "scripts/train_flow_matching.py", "--batch_size=2"),
        FLOW_NEEDS,
        on_windows=(),
    ),
    Example(
        "SLURM",
        "Writes a job script for sbatch, which backs up and requeues the job before its time ends.",
        (PYTHON, "scripts/slurm_job.py", "--gpus-per-node=8", "--time=24:00:00"),
        ("--config FILE",),
    ),
    Example(
        "Several machines",
        "Prints the command for each machine, which first checks that the machines reach each other.",
        (PYTHON, "scripts/multi_node.py", "--nodes=2", "--processes-per-node=8"),
        ("--config FILE", "--master-addr HOST"),
    ),
    Example(
        "TrainingEngine",
        "Trains a model of your own, here a ResNet on digits, with the same engine on two ranks.",
        (PYTHON, "scripts/examples/distributed_training_example.py", "--distributed", "--world-size=2"),
    ),
    Example(
        "Look for problems",
        "Checks driver, PyTorch, links, disks and ports, and lets the GPUs exchange data.",
        (PYTHON, "scripts/doctor.py"),
    ),
)


def main(argv: list[str] | None = None) -> int:
    """The exit code of what was run; 0 if nothing was, 2 for a wrong choice."""
    argv = list(sys.argv[1:] if argv is None else argv)
    end = argv.index("--") if "--" in argv else len(argv)
    args, options = parse(argv[:end]), argv[end + 1 :]
    try:
        if args.print is not None:
            show(command_line(chosen(args.print)))
        elif args.run is not None:
            return run(chosen(args.run), options)
        elif args.list or not sys.stdin.isatty():
            show("\n".join(list_lines()))
        else:
            return ask()
    except UserError as error:
        print_text(error, sys.stderr)
        return 2
    return 0


def parse(argv: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog=command_name("examples_multigpu"),
        description="Ways to train on several GPUs; without an option, asks.",
    )
    choice = parser.add_mutually_exclusive_group()
    choice.add_argument("--list", action="store_true", help="print all ways")
    choice.add_argument("--print", metavar="N", type=int, help="print the command of way N")
    choice.add_argument("--run", metavar="N", type=int, help="run way N; options for it follow after --")
    return parser.parse_args(argv)


def chosen(number: int) -> Example:
    if not 1 <= number <= len(EXAMPLES):
        raise UserError(f"There is no way number {number}: choose one from 1 to {len(EXAMPLES)}.")
    return EXAMPLES[number - 1]


def command_line(example: Example) -> str:
    """The command for the shell of this system, in the folder of a checkout; what it needs is left to fill in."""
    words = [str(_relative(Path(sys.executable))) if word == PYTHON else word for word in example.here()]
    line = subprocess.list2cmdline(words) if os.name == "nt" else shlex.join(words)
    return " ".join([line, *example.needs])


def _relative(path: Path) -> Path:
    return path.relative_to(ROOT) if path.is_relative_to(ROOT) else path


def list_lines() -> list[str]:
    lines = ["Run these:" if IS_INSTALLED else "Run these in the folder of Chorus:"]
    for number, example in enumerate(EXAMPLES, start=1):
        lines += ["", f"{number:2}. {example.title}: {example.does}"]
        try:
            lines += [f"    {command_line(example)}"]
        except UserError as error:
            lines += [f"    ({str(error).partition(': ')[2].partition(';')[0]})"]
    return lines


def run(example: Example, options: Sequence[str]) -> int:
    """Runs it with further options and returns its exit code. Raises UserError if options that it needs are missing."""
    names = {option.partition("=")[0] for option in options}
    missing = [need for need in example.needs if need.startswith("-") and need.split()[0] not in names]
    missing += [need for need in example.needs if not need.startswith("-") and not options]
    if missing:
        raise UserError(f"{example.title} also needs {' '.join(missing)}: add it after --.")
    words = [sys.executable if word == PYTHON else word for word in example.here()]
    process = subprocess.Popen(
        [*words, *options], cwd=None if IS_INSTALLED else ROOT, shell=os.name == "nt" and words[0].endswith(".bat")
    )
    while True:
        try:
            return process.wait()
        except KeyboardInterrupt:
            continue  # the command has received it, too, and ends in its own way


def copy(text: str) -> bool:
    """Whether the text is now in the clipboard: false if this system has no program for that."""
    for command in CLIPBOARDS:
        if shutil.which(command[0]):
            done = subprocess.run(
                command, input=text, encoding="utf-8", stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
            )
            if done.returncode == 0:
                return True
    return False


def ask() -> int:
    """Shows the list, asks for a number and for what to do with it."""
    show("\n".join(list_lines()))
    questions = Questions({})
    example = chosen(int(questions.ask("number", "\nWhich one", _read_number)))
    show(command_line(example))
    action = questions.ask("action", "copy, run or quit", _read_action, default="quit")
    if action == "copy":
        show("Copied." if copy(command_line(example)) else "There is no clipboard here: copy the line above.")
    return run(example, []) if action == "run" else 0


def _read_number(text: str) -> str:
    chosen(int(text) if text.isdecimal() else 0)
    return text


def _read_action(text: str) -> str:
    if text not in ("copy", "run", "quit"):
        raise UserError(f"{text!r} is none of copy, run and quit.")
    return text


if __name__ == "__main__":
    sys.exit(main())
