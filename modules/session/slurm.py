"""The SLURM job that this process runs in, and how to requeue it.

`--signal=USR1@120` in a job script makes SLURM send SIGUSR1 to the tasks of srun 120 s before the job's time is over.
"""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Mapping

Env = Mapping[str, str]

REQUEUE_SIGNALS = (signal.SIGUSR1,) if hasattr(signal, "SIGUSR1") else ()  # none on Windows
REQUEUED = 75  # exit code; EX_TEMPFAIL of sysexits.h: try again later
SCONTROL_SECONDS = 30.0

_SPECIAL_STEPS = 0xFFFFFFF0  # slurm.h: ids from here on are pending, interactive, batch and extern steps, not srun's


def is_task(env: Env = os.environ) -> bool:
    """Whether this process was started by srun."""
    # a batch script also has SLURM_PROCID, and the job's SLURM_NTASKS, but runs only once
    step = env.get("SLURM_STEP_ID", "")
    return "SLURM_PROCID" in env and step.isdecimal() and int(step) < _SPECIAL_STEPS


def was_requeued(env: Env = os.environ) -> bool:
    """Whether SLURM has requeued this job, after a preemption, the end of its time or a node failure."""
    return env.get("SLURM_RESTART_COUNT", "") not in ("", "0")  # a container may be given it empty


def requeue_signals(env: Env = os.environ) -> tuple[int, ...]:
    """The signals that announce the end of the job's time to a task of SLURM or a process started by one."""
    return REQUEUE_SIGNALS if is_task(env) else ()


def requeue(env: Env = os.environ) -> str:
    """Ask SLURM to requeue this job. Returns the outcome as a sentence.

    Call it last: SLURM then ends what is left of the job.
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
            return f"Job {job} is queued again and will continue where it stopped."
        words = answer.stderr.strip().splitlines()
        problem = words[0] if words else f"scontrol ended with exit code {answer.returncode}"
    return (
        f"Job {job} is not queued again ({problem.rstrip('.')}): what it has done is kept; submit its script once more "
        "with --resume behind it, as in sbatch job.sbatch --resume."
    )


def _job_name(env: Env) -> str:
    """The job's name for scontrol. An array's last job has the array's own id, which would mean all its jobs."""
    array, task = env.get("SLURM_ARRAY_JOB_ID"), env.get("SLURM_ARRAY_TASK_ID")
    return f"{array}_{task}" if array and task else env.get("SLURM_JOB_ID", "")
