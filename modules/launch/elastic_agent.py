"""torchrun's agent as a separate program, run by scripts/elastic_agent.py.

Its arguments are the file ENDS, then those of torchrun. It starts the ranks as torchrun does and writes the exit codes
of failed ranks to ENDS, as JSON by local rank; torchrun itself only prints them. Exit code: 0 if all ranks succeeded, 1
if one failed, above 128 if a signal ended the agent.
"""

from __future__ import annotations

import signal
import sys
from typing import TYPE_CHECKING

from modules.session.atomic import write_json

if TYPE_CHECKING:
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError


def main(argv: list[str] | None = None) -> int:
    ends, *arguments = sys.argv[1:] if argv is None else argv
    from torch.distributed import run
    from torch.distributed.elastic.multiprocessing.api import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError

    try:
        run.run(run.parse_args(arguments))
    except ChildFailedError as error:
        write_json(ends, failed_ranks(error))
        return 1
    except SignalException as end:
        return 128 + end.sigval
    return 0


def failed_ranks(error: ChildFailedError) -> dict[str, int]:
    """Local rank -> exit code, minus the signal number if a signal ended it. Ranks ended by the agent are left out."""
    _, first = error.get_first_failure()
    failures = error.failures.values()
    return {str(one.local_rank): one.exitcode for one in failures if one is first or one.exitcode != -signal.SIGTERM}
