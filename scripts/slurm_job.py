"""Writes a job script for SLURM: python scripts/slurm_job.py --config run.yaml --nodes 2 ... > job.sbatch"""

import argparse
import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

if __name__ == "__main__":  # before the imports that take long
    from scripts.terminal import prepare_terminal

    prepare_terminal()

from modules.config.errors import UserError
from modules.config.installation import command_name
from modules.launch.command_text import Places
from modules.launch.slurm_script import Job, job_script, job_token_path
from modules.session.printing import print_text
from modules.session.run_token import make_token_file


def main(argv: list[str] | None = None) -> int:
    args = vars(parse(argv))
    names = ("config", "preset", "python", "set", "resume")
    config, preset, python, overrides, resume = (args.pop(name) for name in names)
    try:
        job, places = Job(**args), Places(config, python=python)
        script = job_script(job, places, overrides, resume, preset)
        make_token_file(Path(places.folder, job_token_path(job, config)))
    except UserError as error:
        print_text(error, sys.stderr)
        return 2
    # as bytes: bash reads UTF-8 whatever the terminal's language is, and no line ends of Windows
    sys.stdout.buffer.write(os.fsencode(script))
    return 0


def parse(argv: list[str] | None) -> argparse.Namespace:
    """The values are texts: `Job` says what each may be."""
    parser = argparse.ArgumentParser(
        prog=command_name("slurm_job"), description="Write a job script for SLURM, to be submitted with sbatch."
    )
    parser.add_argument("--config", metavar="FILE", required=True, help="settings; %%a is the number of the array task")
    parser.add_argument("--preset", metavar="NAME", default="", help="preset to lay under the settings")
    parser.add_argument("--nodes", metavar="N", default="1", help="machines (1)")
    parser.add_argument("--gpus-per-node", metavar="[KIND:]N", required=True, help="GPUs of each, as in 8 or a100:8")
    parser.add_argument("--time", metavar="TIME", required=True, help="time limit per job, as in 12:00:00 or 2-12")
    parser.add_argument("--partition", metavar="NAME", default="", help="the queue; the cluster's default one")
    parser.add_argument("--account", metavar="NAME", default="", help="who pays")
    parser.add_argument("--qos", metavar="NAME", default="", help="quality of service")
    parser.add_argument("--mem", metavar="SIZE", default="", help="memory of each machine, as in 200G")
    parser.add_argument("--cpus-per-task", metavar="N", default="4", help="processor cores for each GPU (4)")
    parser.add_argument("--array", metavar="TASKS", default="", help="several runs, as in 0-3; %%a is their number")
    parser.add_argument("--name", metavar="NAME", default="chorus", help="of the job (chorus)")
    parser.add_argument(
        "--backup-seconds",
        metavar="N",
        default="120",
        help="how long before its time is over the job backs up and queues again (120)",
    )
    parser.add_argument("--python", metavar="FILE", default=sys.executable, help="Python on the cluster; this one")
    parser.add_argument("--set", metavar="PATH=VALUE", action="append", default=[], help="change one setting")
    parser.add_argument("--resume", action="store_true", help="resume from the newest backup in workspace_dir")
    return parser.parse_args(argv)


if __name__ == "__main__":
    sys.exit(main())
