"""A stand-in for torchrun's agent: starts toy ranks, and writes how the first one failed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

ends, num_ranks = sys.argv[1], int(sys.argv[2])
ranks = []
for local_rank in range(num_ranks):
    command = [sys.executable, "-m", "tests.support.toy_ranks", sys.argv[3]]
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
    Path(ends).write_text(json.dumps({first_failure: ranks[first_failure].returncode}))
    sys.exit(1)
