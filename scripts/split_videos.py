"""Divides videos by scene and length, or picks frames: python scripts/split_videos.py FOLDER --to NEW_FOLDER."""

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

if __name__ == "__main__":  # before the imports that take long
    from scripts.terminal import prepare_terminal

    prepare_terminal()

from modules.config.ConceptConfig import ConceptConfig
from modules.config.counted import counted
from modules.config.errors import UserError
from modules.config.installation import command_name, docs_page
from modules.config.visible_text import visible_line
from modules.curation.split_videos import SplitRule, split_videos
from modules.session.printing import print_text
from scripts.number_options import positive_real
from scripts.terminal import Progress, escape_unprintable, show

LEAST_SECONDS = 0.5


def main(argv: list[str] | None = None) -> int:
    """Returns 0 once the new folder is there, and 2 if it can't be made."""
    args = parse(argv)
    escape_unprintable()
    rule = SplitRule(args.scenes, args.seconds, args.least_seconds, args.frames)
    try:
        done = split_videos(ConceptConfig(path=args.folder), args.to, rule, Progress("Dividing videos"))
    except UserError as error:
        print_text(error, sys.stderr)
        return 2
    kind = "piece" if args.frames is None else "frame"
    lines = [f"{counted(done.num_written, kind)} of {counted(done.num_videos, 'video')} in {done.folder}"]
    lines += [f"left out: {path} ({reason})" for path, reason in done.unreadable]
    show("\n".join(map(visible_line, lines)))
    return 0


def parse(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog=command_name("split_videos"),
        description="Divide videos by scene and length, or pick frames, as new files in a new folder; the originals "
        f"stay as they are ({docs_page('dataset')}).",
    )
    parser.add_argument("folder", metavar="FOLDER", help="videos, with caption files next to them")
    parser.add_argument("--to", metavar="NEW_FOLDER", required=True, help="where to write the pieces; must not exist")
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
    if args.frames is not None and (args.scenes or args.seconds):
        parser.error("--frames picks images, and can't be combined with --scenes or --seconds")
    if args.frames is None and not args.scenes and not args.seconds:
        parser.error("say how to divide: --scenes, --seconds N, both, or --frames N")
    return args


if __name__ == "__main__":
    sys.exit(main())
