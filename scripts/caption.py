"""Writes captions for the images of a folder: python scripts/caption.py FOLDER --model FOLDER_OR_HUB_NAME"""

from __future__ import annotations

import argparse
import getpass
import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

if __name__ == "__main__":  # before the imports that take long
    from scripts.terminal import prepare_terminal

    prepare_terminal()

from modules.annotators.Cancellation import Cancellation
from modules.annotators.caption_run import MAX_SIDE, NUM_FRAMES, Wanted, caption_concept
from modules.annotators.caption_writing import CaptionWriter, interrupted_work
from modules.annotators.Captioner import CHARACTER_THRESHOLD, GENERAL_THRESHOLD, MAX_TOKENS, CaptionOptions
from modules.annotators.captioner_kinds import STYLES
from modules.annotators.chat_client import KEY_VARIABLE, ChatServer, server_address
from modules.annotators.reports import JsonReport, TextReport
from modules.config.ConceptConfig import ConceptConfig
from modules.config.errors import UserError
from modules.config.installation import command_name, docs_page
from modules.session.printing import print_text
from modules.session.program_end import end_program
from scripts.annotator_options import add_device_options, add_preview_option, add_report_options, memory_message
from scripts.concept_option import add_concept_options, chosen_concept, chosen_paths
from scripts.number_options import positive, positive_real, share
from scripts.terminal import STOPPED, escape_unprintable, show


def main(argv: list[str] | None = None) -> int:
    """Returns 0 if all images have a caption, 1 if some have failed, 2 if none could be made, STOPPED if canceled."""
    args = parse(argv)
    escape_unprintable()
    canceled = Cancellation()
    if args.listen:
        canceled.listen(sys.stdin)
    try:
        concept = chosen_concept(args)
        wanted = read_wanted(args, concept, canceled)
        report = (JsonReport if args.json else TextReport)(show)
        record = interrupted_work(concept, wanted) if args.overwrite and not args.preview else None
        with canceled.by_signals(), CaptionWriter(concept, f"Captions: {args.model or args.server}") as write:
            num_failed = caption_concept(concept, wanted, write, record, report)
    except UserError as error:
        print_text(error, sys.stderr)
        return 2
    except (RuntimeError, MemoryError, OSError) as error:
        if not (message := memory_message(error, "--batch-size and --max-side")):
            raise
        print_text(message, sys.stderr)
        return 2
    if canceled():
        return STOPPED
    return int(num_failed > 0)


def read_wanted(args: argparse.Namespace, concept: ConceptConfig, canceled: Cancellation) -> Wanted:
    """Raises UserError."""
    options = CaptionOptions(
        args.style,
        args.name.strip(),
        args.prompt.strip(),
        args.max_tokens,
        args.general_threshold,
        args.character_threshold,
        f"{concept.tag_separator.strip() or ','} ",
    )
    server = None
    if args.server:
        server = ChatServer(server_address(args.server), read_key(args), args.timeout, canceled)
    elif not args.model:
        raise UserError("--model: name a folder or a model on the Hub, or give a --server.")
    return Wanted(
        args.model,
        options,
        server,
        args.dtype,
        args.gpu,
        args.cpu,
        args.batch_size,
        args.frames,
        args.max_side,
        args.preview,
        args.overwrite,
        args.restart,
        chosen_paths(args),
        args.videos,
        canceled,
    )


def read_key(args: argparse.Namespace) -> str:
    """From the environment or the terminal, never from the command line, which other users of the machine can read."""
    if args.ask_key:
        return getpass.getpass("Key of the server: ").strip()
    if args.key_from and args.key_from not in os.environ:
        raise UserError(f"--key-from {args.key_from}: there is no such environment variable; set it to the key.")
    return os.environ.get(args.key_from or KEY_VARIABLE, "").strip()


def parse(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog=command_name("caption"),
        description="Write captions or tags for the images of a folder that have none, with a model on this machine or "
        f"on a server. {docs_page('dataset')} says which models there are.",
    )
    add_concept_options(parser)
    source = parser.add_argument_group("who writes")
    source.add_argument(
        "--model", default="", metavar="NAME", help="a folder, a model on the Hub, or one of the server's models"
    )
    source.add_argument(
        "--server",
        metavar="ADDRESS",
        help="of a server with OpenAI's chat form, such as http://localhost:11434/v1; the images are sent there",
    )
    key = source.add_mutually_exclusive_group()
    key.add_argument(
        "--key-from", metavar="VARIABLE", help=f"environment variable with the server's key; default: {KEY_VARIABLE}"
    )
    key.add_argument("--ask-key", action="store_true", help="ask for the server's key")
    source.add_argument(
        "--timeout", type=positive_real, default=120.0, metavar="SECONDS", help="for one answer; default: %(default)s"
    )
    add_device_options(source)
    text = parser.add_argument_group("what is written")
    text.add_argument("--style", choices=STYLES, default="", help="default: the model's first; subject needs --name")
    text.add_argument("--name", default="", metavar="NAME", help="what the subject is called in the captions")
    text.add_argument("--prompt", default="", metavar="TEXT", help="what the model is told, in place of a style")
    text.add_argument("--max-tokens", type=positive, default=MAX_TOKENS, metavar="N", help="default: %(default)s")
    for option, default in (("general", GENERAL_THRESHOLD), ("character", CHARACTER_THRESHOLD)):
        text.add_argument(
            f"--{option}-threshold",
            type=share,
            default=default,
            metavar="P",
            help=f"of taggers: probability from which {option} tags are written; default: %(default)s",
        )
    images = parser.add_argument_group("which images")
    images.add_argument("--overwrite", action="store_true", help="also images that have a caption")
    images.add_argument("--restart", action="store_true", help="with --overwrite: forget what an interrupted run did")
    images.add_argument("--videos", action="store_true", help="also clips")
    images.add_argument(
        "--frames", type=positive, default=NUM_FRAMES, metavar="N", help="of a clip, for models that see several"
    )
    images.add_argument("--max-side", type=positive, default=MAX_SIDE, metavar="PIXELS", help="default: %(default)s")
    images.add_argument("--batch-size", type=positive, default=1, metavar="N", help="images at a time")
    add_preview_option(images, "show the captions of {}")
    add_report_options(parser)
    args = parser.parse_args(argv)
    if args.restart and not args.overwrite:
        parser.error("--restart needs --overwrite: without it, captions that are there stay as they are")
    return args


if __name__ == "__main__":
    end_program(main)
