"""Counts the tokens of captions for the window, which imports no tokenizers: see modules/curation/TokenCounts.py.

The first line that it writes says how the base model reads captions, or why it can't be told. Then it answers each line
{"texts": [...]} on stdin by a line {"counts": [[tokens, where the caption is cut off or null], ...]}, until stdin ends.
"""

import argparse
import json
import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

if __name__ == "__main__":  # before the imports that take long
    from scripts.terminal import prepare_terminal

    prepare_terminal()
    os.environ["HF_HUB_OFFLINE"] = "1"  # nothing is downloaded to count tokens; read at import

from modules.config.errors import UserError
from modules.families.registry import FAMILIES
from modules.machine.hub import HUB_NAME, cached_folder
from modules.session.printing import print_line
from modules.session.program_end import end_program
from modules.weights.caption_tokens import count_tokens, longest_reading


def main(argv: list[str] | None = None) -> int:
    args = parse(argv)
    try:
        folder = model_folder(args.base, args.config_folder)
        reading = longest_reading(FAMILIES[args.family].with_text_chunks(args.chunks), folder)
    except UserError as error:
        answer({"problem": str(error)})
        return 2
    answer({"limit": reading.limit, "is_exact": reading.is_exact})
    for line in sys.stdin.buffer:
        answer({"counts": [count_tokens(reading, text) for text in json.loads(line)["texts"]]})
    return 0


def parse(argv: list[str] | None) -> argparse.Namespace:
    from scripts.family_option import family

    parser = argparse.ArgumentParser(description="Count the tokens of captions, asked by JSON lines on stdin.")
    parser.add_argument("--family", type=family, required=True, metavar="NAME")
    parser.add_argument("--base", default="", metavar="MODEL", help="as model.base")
    parser.add_argument("--config-folder", default="", metavar="DIR", help="as model.config_folder")
    parser.add_argument("--chunks", type=int, default=1, metavar="N", help="as model.text_chunks")
    return parser.parse_args(argv)


def model_folder(base: str, config_folder: str) -> Path:
    """The folder with the tokenizers of a base model. Raises UserError if it is not on this machine."""
    for path in (Path(os.path.expanduser(name)) for name in (base, config_folder) if name):
        if path.is_dir():
            return path
    folder = cached_folder(base) if HUB_NAME.fullmatch(base) else None
    if folder is None:
        name = base or "the base model"
        raise UserError(f"The tokenizer of {name} is not on this machine: tokens are counted once it is.")
    return folder


def answer(values: dict[str, object]) -> None:
    print_line(json.dumps(values))


if __name__ == "__main__":
    end_program(main)
