"""Converts a model or a LoRA to the other format: python scripts/convert.py model.safetensors folder --config DIR"""

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

if __name__ == "__main__":  # before the imports that take long
    from scripts.terminal import prepare_terminal

    prepare_terminal()

from modules.config.errors import UserError
from modules.config.installation import command_name
from modules.session.printing import print_line, print_text
from modules.session.program_end import end_program
from scripts.terminal import escape_unprintable, show


def main(argv: list[str] | None = None) -> int:
    args = parse(argv)
    escape_unprintable()
    try:
        from modules.weights.convert import convert

        def warn(text: str) -> None:
            print_line(text, sys.stderr)

        show(str(convert(args.source, args.target, args.dtype, args.config, args.family, warn)))
    except UserError as error:
        # the settings' names, as the options here are called
        text = str(error).replace("model.config_folder", "--config").replace("model.base ", "")
        print_text(text, sys.stderr)
        return 2
    except OSError as error:
        print_line(f"{args.target!r} can't be written ({error.strerror}): choose another path.", sys.stderr)
        return 2
    return 0


def parse(argv: list[str] | None) -> argparse.Namespace:
    from scripts.family_option import family

    parser = argparse.ArgumentParser(
        prog=command_name("convert"),
        description="Convert a model or a LoRA to the other format: a diffusers folder to a single .safetensors file, "
        "such a file to a folder (or, for another type, to a file again), "
        "a LoRA with diffusers' names to one with kohya's, as ComfyUI and A1111 read it, and "
        "back. Which way follows from the source.",
    )
    parser.add_argument("source", help="diffusers folder, single file or LoRA")
    parser.add_argument("target", help="folder or .safetensors file to write; must not exist")
    parser.add_argument("--dtype", choices=("float32", "float16", "bfloat16"), default="", help="default: as in source")
    parser.add_argument(
        "--config", default="", metavar="DIR", help="diffusers folder of the same kind; single files need it offline"
    )
    parser.add_argument(
        "--family", type=family, metavar="NAME", default="", help="family of a LoRA, if it can't be detected"
    )
    return parser.parse_args(argv)


if __name__ == "__main__":
    end_program(main)
