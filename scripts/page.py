"""Shows runs on a web page, read only: python scripts/page.py workspace"""

from __future__ import annotations

import argparse
import os
import socket
import sys
import threading
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

if __name__ == "__main__":  # before the imports that take long
    from scripts.terminal import prepare_terminal

    prepare_terminal()

from modules.config.errors import UserError
from modules.config.installation import command_name, docs_page
from modules.page.access import MIN_TOKEN_CHARS, Access, is_loopback, is_usable_token, new_token
from modules.page.PageServer import PageServer
from modules.session.printing import print_text
from modules.session.program_end import end_program
from scripts.terminal import show

PORT = 8420
LOOPBACK = "127.0.0.1"
TOKEN_VARIABLE = "CHORUS_PAGE_TOKEN"
ANY = {"0.0.0.0": LOOPBACK, "::": "::1"}  # all addresses of the machine -> one of them, for the link


def main(argv: Sequence[str] | None = None) -> int:
    args = parse(argv)
    try:
        serve(args)
    except UserError as error:
        print_text(str(error), sys.stderr)
        return 2
    except KeyboardInterrupt:
        pass
    return 0


def serve(args: argparse.Namespace) -> None:
    folders = [checked(folder) for folder in args.folders]
    token = os.environ.pop(TOKEN_VARIABLE, "") or new_token()
    if not is_usable_token(token):
        raise UserError(
            f"{TOKEN_VARIABLE} can't be used: it has to have at least {MIN_TOKEN_CHARS} letters, digits, - or _."
        )
    names = [*args.name, *([] if args.address[:1].isdecimal() or ":" in args.address else [args.address])]
    try:
        server = PageServer(args.address, args.port, folders, Access(token, names))
    except (OSError, OverflowError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise UserError(
            f"The page can't be served at the address {args.address}, port {args.port} ({reason}): choose another port "
            "or an address of this machine."
        ) from None
    if args.until_stdin_ends:
        threading.Thread(target=end_with_stdin, args=(server,), daemon=True).start()
    with server:
        show(f"{link(args.address, server.server_port)}?token={token}")
        if not is_loopback(args.address):
            show(
                "Whoever has this address can see the runs. It is plain HTTP: whoever can listen on the network can "
                f"read it, too ({docs_page('watching')} has safer ways)."
            )
        if not args.until_stdin_ends:
            show("Ctrl-C ends it.")
        sys.stdout.flush()
        server.serve_forever()


def end_with_stdin(server: PageServer) -> None:
    sys.stdin.buffer.read()
    server.shutdown()


def link(address: str, port: int) -> str:
    """The address for a browser, of this machine's own in the network if it listens at all of them."""
    if address in ANY:
        address = network_address(address)
    return f"http://{f'[{address}]' if ':' in address else address}:{port}/"


def network_address(address: str) -> str:
    """That by which this machine reaches others; nothing is sent to find it."""
    family, far = (socket.AF_INET6, "2001:db8::1") if ":" in address else (socket.AF_INET, "192.0.2.1")
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect((far, 9))
            return str(probe.getsockname()[0])
    except OSError:
        return ANY[address]


def checked(folder: str) -> Path:
    """Raises UserError if there is no such folder."""
    path = Path(folder).expanduser()
    if not path.is_dir():
        raise UserError(f"{folder!r} is not a folder: give the one that the output folders of runs are in.")
    return path


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog=command_name("page"), description="Show runs on a web page, read only.")
    parser.add_argument("folders", nargs="*", default=["workspace"], metavar="FOLDER", help="default: workspace")
    text = "where to listen: 0.0.0.0 for the whole network; default: this machine only"
    parser.add_argument("--address", default=LOOPBACK, metavar="ADDRESS", help=text)
    parser.add_argument("--port", type=int, default=PORT, metavar="N", help="0 for a free one; default: %(default)s")
    text = "host names by which browsers call this machine, such as that of a proxy"
    parser.add_argument("--name", nargs="+", default=[], metavar="NAME", help=text)
    parser.add_argument("--until-stdin-ends", action="store_true", help=argparse.SUPPRESS)
    return parser.parse_args(argv)


if __name__ == "__main__":
    end_program(main)
