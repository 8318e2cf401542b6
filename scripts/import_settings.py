"""Imports the settings of another trainer: python scripts/import_settings.py FILE -o run.yaml"""

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

if __name__ == "__main__":
    from scripts.terminal import prepare_terminal

    prepare_terminal()

from modules.config.errors import UserError
from modules.config.files import save_config
from modules.config.installation import command_name
from modules.config.validation import find_problems
from modules.importers.import_files import import_files
from modules.session.printing import print_line, print_text
from scripts.terminal import escape_unprintable, show


def main(argv: list[str] | None = None) -> int:
    args = parse(argv)
    escape_unprintable()
    try:
        result = import_files(args.files)
        if args.data_only:
            result = result.data_alone()
        config = result.config()
        show(result.text())
        if not args.output:
            return 0
        if Path(args.output).exists():
            raise UserError(f"-o {args.output}: this file exists; name another one, or delete it.")
        save_config(config, args.output)
    except UserError as error:
        print_text(str(error), sys.stderr)
        return 2
    problems = [problem.message for problem in find_problems(config)]
    if problems:
        show("\n".join(["To be changed before a start:", *(f"  {message}" for message in problems)]))
    print_line(f"Written to {args.output}: start it with {command_name('train')} --config {args.output}")
    return 0


def parse(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog=command_name("import_settings"),
        description="Import the settings of another trainer, and show what was taken, what means something else here "
        "and what was not taken.",
    )
    parser.add_argument("files", nargs="+", metavar="FILE", help="settings; behind them files of concepts and samples")
    parser.add_argument(
        "-o",
        "--output",
        default="",
        metavar="FILE",
        help="settings file to write; without it, only the lists are shown",
    )
    parser.add_argument(
        "--data-only", action="store_true", help="import the folders of images and what belongs to them"
    )
    return parser.parse_args(argv)


if __name__ == "__main__":
    sys.exit(main())
