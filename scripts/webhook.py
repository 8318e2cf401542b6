"""Saves and tries the address to which runs send messages: python scripts/webhook.py save"""

from __future__ import annotations

import argparse
import getpass
import sys
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

if __name__ == "__main__":  # before the imports that take long
    from scripts.terminal import prepare_terminal

    prepare_terminal()

from modules.config.errors import UserError
from modules.config.installation import command_name, webhook_file
from modules.config.WebhookConfig import ON, SERVICES
from modules.loggers.webhook_address import Address, address_error, forget_address, read_address, save_address
from modules.loggers.webhook_sending import NotSentError, post_test
from modules.session.printing import print_text
from scripts.terminal import show


def main(argv: Sequence[str] | None = None) -> int:
    args = parse(argv)
    try:
        return args.run(args)
    except UserError as error:
        print_text(str(error), sys.stderr)
    except OSError as error:
        print_text(f"{webhook_file()} can't be removed ({error.strerror}): remove it yourself.", sys.stderr)
    except (KeyboardInterrupt, EOFError):
        print_text("Nothing was saved.", sys.stderr)
    return 2


def save(args: argparse.Namespace) -> int:
    """Ask for address and token, unseen on a terminal; from a pipe, they are its first two lines."""
    save_address(Address(asked("Address: "), asked("Token, if the server needs one: ")))
    show(f"Saved in {webhook_file()}, which only you can read.")
    return 0


def send_test(args: argparse.Namespace) -> int:
    if error := address_error(args.service):
        raise UserError(f"{error}.")
    address = read_address()
    assert address is not None
    try:
        post_test(args.service, address)
    except NotSentError as error:
        raise UserError(f"The message was not sent: {error}.") from None
    show(f"Sent to {SERVICES[args.service]}.")
    return 0


def forget(args: argparse.Namespace) -> int:
    forget_address()
    show("The address is no longer saved.")
    return 0


def asked(question: str) -> str:
    """Neither shown while it is typed nor part of the command, which other users and the shell's history see."""
    return (getpass.getpass(question) if sys.stdin.isatty() else sys.stdin.readline()).strip()


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog=command_name("webhook"), description="Save and try the address to which runs send messages."
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    for name, run, text in (
        ("save", save, "ask for address and token and save them on this machine"),
        ("test", send_test, "send a message to the saved address"),
        ("forget", forget, "remove the saved address"),
    ):
        added = commands.add_parser(name, help=text, description=text.capitalize())
        added.set_defaults(run=run)
        if run is send_test:
            added.add_argument("service", choices=tuple(ON[".service"]), help="what takes the message")
    return parser.parse_args(argv)


if __name__ == "__main__":
    sys.exit(main())
