"""A stand-in for torchrun's agent: starts toy ranks, and writes how the first one failed in torchrun's words."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

num_ranks = int(sys.argv[1])
ranks = []
for local_rank in range(num_ranks):
    command = [sys.executable, "-m", "tests.support.toy_ranks", sys.argv[2]]
    env = {**os.environ, "RANK": str(local_rank)}
    ranks.append(subprocess.Popen(command, env=env, start_new_session=True, cwd=Path(__file__).parents[2]))
first_failure, is_running = None, True
while first_failure is None and is_running:
    is_running = any(rank.poll() is None for rank in ranks)  # asked first: none fails unseen after the last look
    first_failure = next((index for index, rank in enumerate(ranks) if rank.poll()), None)
    time.sleep(0.02)
for rank in ranks:
    rank.wait()
if first_failure is not None:
    failed = ranks[first_failure]
    print(
        f"E1120 api.py:1002] failed (exitcode: {failed.returncode}) local_rank: {first_failure} "
        f"(pid: {failed.pid}) of binary: python",
        file=sys.stderr,
    )
    sys.exit(1)
