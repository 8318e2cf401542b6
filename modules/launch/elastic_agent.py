"""torchrun's agent as a separate program, run by scripts/elastic_agent.py.

It takes torchrun's options, and starts and ends ranks as torchrun does. On a single machine, however, its store listens
on the loopback address alone, on the port that --master-port names or else a free one. Exit code: 0 if all ranks
succeeded, 1 if one failed, above 128 if a signal ended the agent.
"""

from __future__ import annotations

import argparse
import errno
import signal
import socket
import sys
from typing import TYPE_CHECKING

from modules.machine.ports import LOOPBACK
from modules.session.atomic import write_json
from modules.session.printing import print_line, print_text

if TYPE_CHECKING:
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError


def main(argv: list[str] | None = None) -> int:
    from torch.distributed import run
    from torch.distributed.elastic.multiprocessing.api import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError

    args = parse(argv)
    _, num_nodes = run.parse_min_max_nnodes(args.nnodes)
    if num_nodes == 1:
        stay_on_this_machine(args)
    try:
        run.run(args)
    except ChildFailedError as error:
        if args.ends:
            write_json(args.ends, failed_ranks(error))
        else:
            print_text(error, sys.stderr)
        return 1
    except SignalException as end:
        return 128 + end.sigval
    return 0


def parse(argv: list[str] | None) -> argparse.Namespace:
    from torch.distributed import run

    parser = run.get_args_parser()
    parser.prog = "elastic_agent.py"
    ends = "write the exit codes of failed ranks here, as JSON by local rank, rather than print them"
    parser.add_argument("--ends", metavar="FILE", help=ends)
    args = parser.parse_args(argv)
    if args.master_port is not None and args.master_port not in range(2**16):
        parser.error(f"--master-port {args.master_port}: ports go up to 65535")
    return args


def stay_on_this_machine(args: argparse.Namespace) -> None:
    """Replaces the rendezvous that torchrun's options `args` name by one that other machines can't reach."""
    from torch.distributed.elastic.rendezvous import rendezvous_handler_registry
    from torch.distributed.elastic.rendezvous.utils import parse_rendezvous_endpoint

    from modules.launch.LoopbackRendezvous import LoopbackRendezvous

    listener = _listen(args.master_port or parse_rendezvous_endpoint(args.rdzv_endpoint, 0)[1])
    port = listener.getsockname()[1]
    rendezvous_handler_registry.register(
        LoopbackRendezvous.BACKEND, lambda parameters: LoopbackRendezvous(parameters, listener)
    )
    args.standalone = False
    args.node_rank = 0
    args.rdzv_backend, args.rdzv_endpoint = LoopbackRendezvous.BACKEND, f"{LOOPBACK}:{port}"


def _listen(port: int) -> socket.socket:
    """A listening socket at loopback, at `port` or else at a free one, with a line that says so. 0: any free one."""
    try:
        return socket.create_server((LOOPBACK, port))
    except OSError as error:
        listener = socket.create_server((LOOPBACK, 0))
        reason = "is busy" if error.errno == errno.EADDRINUSE else f"can't be used ({error.strerror})"
        print_line(f"Port {port} {reason}: using {listener.getsockname()[1]}.", sys.stderr)
        return listener


def failed_ranks(error: ChildFailedError) -> dict[str, int]:
    """Local rank -> exit code, minus the signal number if a signal ended it. Ranks ended by the agent are left out."""
    _, first = error.get_first_failure()
    failures = error.failures.values()
    return {str(one.local_rank): one.exitcode for one in failures if one is first or one.exitcode != -signal.SIGTERM}
