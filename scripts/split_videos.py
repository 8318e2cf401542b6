"""Divides videos by scene and length, or picks frames: python scripts/split_videos.py FOLDER --to NEW_FOLDER."""

import argparse
import base64
import io
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

if __name__ == "__main__":  # before the imports that take long
    from scripts.terminal import prepare_terminal

    prepare_terminal()

from modules.annotators.Cancellation import Cancellation
from modules.config.ConceptConfig import ConceptConfig
from modules.config.counted import counted
from modules.config.errors import UserError
from modules.config.installation import command_name, docs_page
from modules.config.visible_text import visible_line
from modules.curation.split_videos import SplitRule, preview_pieces, split_videos
from modules.session.printing import print_text
from modules.session.program_end import end_program
from scripts.concept_option import add_concept_options, chosen_concept
from scripts.events import add_event_options, tell
from scripts.number_options import positive, positive_real
from scripts.terminal import STOPPED, Progress, escape_unprintable, show

LEAST_SECONDS = 0.5
PREVIEWED = 24  # pieces or frames
PREVIEW_SIDE = 240  # pixels


def main(argv: list[str] | None = None) -> int:
    """Returns 0 once the new folder is there or shown, 2 if it can't be made, STOPPED if canceled."""
    args = parse(argv)
    escape_unprintable()
    canceled = Cancellation()
    if args.listen:
        canceled.listen(sys.stdin)
    rule = SplitRule(args.scenes, args.seconds, args.least_seconds, args.frames)
    try:
        concept = chosen_concept(args)
        with canceled.by_signals():
            if args.preview:
                preview(concept, rule, args, canceled)
            else:
                divide(concept, rule, args, canceled)
    except UserError as error:
        print_text(error, sys.stderr)
        return STOPPED if canceled() else 2
    return 0


def divide(concept: ConceptConfig, rule: SplitRule, args: argparse.Namespace, canceled: Cancellation) -> None:
    kind = "piece" if args.frames is None else "frame"
    if args.json:
        done = split_videos(
            concept,
            args.to,
            rule,
            lambda done, total: tell("progress", done=done, total=total),
            lambda: not canceled(),
            lambda number: tell("written", number=number, text=counted(number, kind)),
        )
    else:
        done = split_videos(concept, args.to, rule, Progress("Dividing videos"), lambda: not canceled())
    text = f"{counted(done.num_written, kind)} of {counted(done.num_videos, 'video')} in {done.folder}"
    if args.json:
        tell("end", folder=done.folder, text=text, left_out=done.unreadable)
        return
    lines = [text, *(f"left out: {path} ({reason})" for path, reason in done.unreadable)]
    show("\n".join(map(visible_line, lines)))


def preview(concept: ConceptConfig, rule: SplitRule, args: argparse.Namespace, canceled: Cancellation) -> None:
    """Tells the first pieces or frames, in JSON with their first frame as a PNG in base64."""
    num_shown = 0
    for piece in preview_pieces(concept, rule, args.preview, lambda: not canceled()):
        num_shown += 1
        if args.json:
            image, buffer = piece.image.copy(), io.BytesIO()
            image.thumbnail((PREVIEW_SIDE, PREVIEW_SIDE))
            image.save(buffer, "PNG")
            encoded = base64.b64encode(buffer.getvalue()).decode("ascii")
            tell("piece", path=piece.path, start=piece.span.start, end=piece.span.end, image=encoded)
        else:
            show(visible_line(f"{piece.path}: {piece.span.start:.2f} to {piece.span.end:.2f} s"))
    if args.json:
        kind = "piece" if args.frames is None else "frame"
        more = ", the first ones" if num_shown == args.preview else ""
        tell("end", folder="", text=f"{counted(num_shown, kind)}{more}; nothing was written.", left_out=[])


def parse(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog=command_name("split_videos"),
        description="Divide videos by scene and length, or pick frames, as new files in a new folder; the originals "
        f"stay as they are ({docs_page('dataset')}).",
    )
    add_concept_options(parser, with_only=False)
    parser.add_argument("--to", metavar="NEW_FOLDER", help="where to write the pieces; must not exist")
    parser.add_argument(
        "--preview",
        metavar="N",
        nargs="?",
        type=positive,
        const=PREVIEWED,
        help=f"only show the first pieces or frames, {PREVIEWED} by default",
    )
    add_event_options(parser)
    parser.add_argument("--scenes", action="store_true", help="divide where another scene begins")
    parser.add_argument(
        "--seconds", metavar="N", type=positive_real, help="divide what is longer than this into equal pieces"
    )
    parser.add_argument(
        "--least-seconds",
        metavar="N",
        type=positive_real,
        default=LEAST_SECONDS,
        help=f"leave out shorter pieces ({LEAST_SECONDS:g} by default)",
    )
    parser.add_argument(
        "--frames",
        metavar="N",
        type=positive_real,
        help="write the sharpest frame of every N seconds instead",
    )
    args = parser.parse_args(argv)
    if not args.to and not args.preview:
        parser.error("say where to write: --to NEW_FOLDER, or --preview to write nothing")
    if args.frames is not None and (args.scenes or args.seconds):
        parser.error("--frames picks images, and can't be combined with --scenes or --seconds")
    if args.frames is None and not args.scenes and not args.seconds:
        parser.error("say how to divide: --scenes, --seconds N, both, or --frames N")
    return args


if __name__ == "__main__":
    end_program(main)
