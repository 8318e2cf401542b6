"""Trains by torchrun's agent on this machine's GPUs: scripts/train_distributed.sh [NUM_GPUS|all] CONFIG [options]."""

import os
import signal
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

if __name__ == "__main__":  # before the imports that take long
    from scripts.terminal import prepare_terminal

    prepare_terminal()

from modules.config.counted import counted
from modules.config.errors import UserError
from modules.config.installation import ROOT
from modules.config.TrainConfig import TrainConfig
from modules.launch.launchers import SAVE_SECONDS
from modules.machine.can_start import StartFacts, blocking, can_start
from modules.machine.devices import default_num_ranks, num_cores
from modules.machine.Machine import Machine, read_machine
from modules.session.atomic import make_temporary_folder
from modules.session.printing import print_text
from modules.session.RunFolder import RunFolder
from modules.session.signals import stop_signals
from modules.session.slurm import requeue_signals
from scripts import train

USAGE = """usage: train_distributed.sh [NUM_GPUS|all] CONFIG [options of scripts/train.py]
CONFIG is a settings file; without a number the settings say how many GPUs train, or all do."""


def main(argv: list[str] | None = None) -> int:
    """Replaces this process by torchrun's agent; returns the exit code where there is nothing to start."""
    if sys.platform == "win32":
        print(
            "train_distributed.py: torchrun does not work on Windows; use start-multi-gpu.bat or train.py --multi_gpu.",
            file=sys.stderr,
        )
        return 2
    argv = list(sys.argv[1:] if argv is None else argv)
    wanted = argv.pop(0) if argv and (argv[0] == "all" or argv[0].isdecimal()) else ""
    if len(argv) > 1 and not argv[1].startswith("-"):
        print_text(f"{argv[0]}: the number of GPUs is a whole number or all.\n{USAGE}", sys.stderr)
        return 2
    if not argv or argv[0].startswith("-"):
        print_text(USAGE, sys.stderr)
        return 0 if argv and argv[0] in ("-h", "--help") else 2
    arguments = [f"--config={argv[0]}", "--multi_gpu", *ranks_wanted(wanted), *argv[1:]]
    args = train.parse(arguments)
    try:
        config = train.read_config(args)
        machine = read_machine()
        num_ranks, has_gpu = count_ranks(config, machine, args.resume)
        folder = RunFolder(config.workspace_dir)
    except UserError as error:
        print_text(error, sys.stderr)
        return 2
    if not has_gpu:
        train_here = counted(num_ranks, "process trains", "processes train")
        print_text(f"There is no GPU ({machine.no_gpu_reason}): {train_here} on the CPU.", sys.stderr)
    if args.dry_run:
        return train.main(arguments)
    if not args.resume and (refused := refusal(folder)):  # torchrun would start, and bury it below its own error
        print_text(refused, sys.stderr)
        return 2
    # torchrun would give each rank one thread, whatever there is
    os.environ.setdefault("OMP_NUM_THREADS", str(max(1, num_cores() // num_ranks)))
    # not torchrun itself, whose store listens on all network interfaces
    agent = [sys.executable, str(ROOT / "scripts" / "elastic_agent.py"), f"--nproc-per-node={num_ranks}"]
    agent += [*log_dir(folder), *signals()]
    sys.stderr.flush()
    os.execv(sys.executable, [*agent, str(ROOT / "scripts" / "train.py"), *arguments])


def refusal(folder: RunFolder) -> str:
    """Why a new run can't start in the folder; "" if it can."""
    try:
        folder.check()
        folder.refuse_earlier_run()
    except UserError as error:
        return str(error)
    return ""


def ranks_wanted(wanted: str) -> list[str]:
    """Options for what is written before CONFIG: a number, "all", or "" for what the settings say."""
    if wanted == "all":
        return ["--set=world_size=null", "--set=device_indexes=[]"]
    return [f"--world_size={wanted}"] if wanted else []


def count_ranks(config: TrainConfig, machine: Machine, resume: bool = False) -> tuple[int, bool]:
    """(ranks to start, whether there is a GPU). Raises UserError for more than this machine has GPUs or memory for."""
    if config.num_nodes > 1:
        raise UserError.at(
            "num_nodes", f"{config.num_nodes}: this is for one machine; scripts/multi_node.py is for several."
        )
    if not machine.gpus and (num_gpus := count_by_torch()):  # those that NVIDIA's driver does not know
        return config.world_size or len(config.device_indexes) or num_gpus, True
    if refused := blocking(can_start(config, StartFacts(machine), resume)):
        raise UserError.of(refused[0])
    return default_num_ranks(config, machine.gpus, machine.cores), bool(machine.gpus)


def log_dir(folder: RunFolder) -> list[str]:
    """Options of torchrun for where it keeps the errors of ranks: by default a folder in /tmp, which it leaves there.

    This one is swept at the next start in the run folder; torchrun will have the process id of this process.
    """
    try:
        folder.path.mkdir(parents=True, exist_ok=True)
        return [f"--log-dir={make_temporary_folder(folder.path / 'launch')}"]
    except OSError:  # the ranks say what is wrong with the run folder
        return []


def signals() -> list[str]:
    """Options of torchrun for how it ends the ranks: with time to save, and under nohup not with the terminal."""
    options = [f"--shutdown-timeout={SAVE_SECONDS}"]
    if hasattr(signal, "SIGQUIT"):  # not on Windows
        # by default SIGHUP, whatever nohup says, and no notice of a batch system
        handled = (signal.SIGQUIT, *(number for number in stop_signals() if number not in requeue_signals()))
        options.append(f"--signals-to-handle={','.join(signal.Signals(number).name for number in handled)}")
    return options


def count_by_torch() -> int:
    import torch

    return torch.cuda.device_count()


if __name__ == "__main__":
    sys.exit(main())
