"""What SLURM says of the job that this process runs in, and asking it to run that job again.

`--signal=USR1@120` in a job's script has SLURM send SIGUSR1 to the tasks of srun, 120 s before the job's time is over.
"""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Mapping

Env = Mapping[str, str]

REQUEUE_SIGNALS = (signal.SIGUSR1,) if hasattr(signal, "SIGUSR1") else ()  # none on Windows
REQUEUED = 75  # exit code; EX_TEMPFAIL of sysexits.h: not done, to be tried again
SCONTROL_SECONDS = 30.0

_SPECIAL_STEPS = 0xFFFFFFF0  # slurm.h: from here on no srun step but pending, interactive, batch and extern ones


def is_task(env: Env = os.environ) -> bool:
    """Whether srun has started this process."""
    # a batch script has SLURM_PROCID as well, and the job's SLURM_NTASKS, but runs once
    step = env.get("SLURM_STEP_ID", "")
    return "SLURM_PROCID" in env and step.isdecimal() and int(step) < _SPECIAL_STEPS


def was_requeued(env: Env = os.environ) -> bool:
    """Whether SLURM runs this job once more, after a preemption, the end of its time or the failure of a node."""
    return env.get("SLURM_RESTART_COUNT", "0") != "0"


def requeue_signals(env: Env = os.environ) -> tuple[int, ...]:
    """What announces the end of the job's time to this process: as a task of SLURM, or one that such a task started."""
    return REQUEUE_SIGNALS if is_task(env) else ()


def requeue(env: Env = os.environ) -> str:
    """Asks SLURM to queue this job again, and says in one sentence what came of it.

    To be called when all is done: SLURM then ends what is left of the job.
    """
    job = _job_name(env)
    try:
        answer = subprocess.run(
            ["scontrol", "requeue", job],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            encoding="utf-8",
            errors="replace",
            timeout=SCONTROL_SECONDS,
        )
    except FileNotFoundError:
        problem = "there is no scontrol on the PATH of its first node"
    except (OSError, subprocess.TimeoutExpired) as error:
        problem = f"scontrol could not be asked: {error}"
    else:
        if answer.returncode == 0:
            return f"Job {job} is queued again and will go on where it has stopped."
        words = answer.stderr.strip().splitlines()
        problem = words[0] if words else f"scontrol ended with exit code {answer.returncode}"
    return (
        f"Job {job} is not queued again ({problem.rstrip('.')}): what it has done is kept; submit its script once more "
        "with --resume behind it, as in sbatch job.sbatch --resume."
    )


def _job_name(env: Env) -> str:
    """What scontrol knows the job by. The last job of an array has the array's own number, which means all its jobs."""
    array, task = env.get("SLURM_ARRAY_JOB_ID"), env.get("SLURM_ARRAY_TASK_ID")
    return f"{array}_{task}" if array and task else env.get("SLURM_JOB_ID", "")
