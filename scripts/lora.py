"""Merges, combines, resizes and extracts LoRAs: python scripts/lora.py merge MODEL FOLDER --lora cat.safetensors:0.8"""

import argparse
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

if __name__ == "__main__":  # before the imports that take long
    from scripts.terminal import prepare_terminal

    prepare_terminal()

from modules.config.errors import UserError
from modules.config.installation import command_name
from modules.session.printing import print_line, print_text
from modules.session.program_end import end_program
from scripts.lora_and_strength import lora_and_strength, strength_of_each
from scripts.number_options import positive
from scripts.terminal import escape_unprintable, show


def main(argv: Sequence[str] | None = None) -> int:
    args = parse(argv)
    escape_unprintable()
    try:
        for path in args.run(args):
            show(str(path))
    except UserError as error:
        text = str(error).replace("model.config_folder", "--config").replace("model.base ", "")
        print_text(text, sys.stderr)
        return 2
    except OSError as error:
        print_line(f"{str(args.target)!r} can't be written ({error.strerror}): choose another path.", sys.stderr)
        return 2
    return 0


def say(text: str) -> None:
    """Something that does not end the work."""
    print_line(text, sys.stderr)


def merge(args: argparse.Namespace) -> list[Path]:
    from modules.methods.lora_tools import merge_into_model

    return [merge_into_model(args.base, strength_of_each(args.lora), args.target, args.dtype, args.config, say)]


def combine(args: argparse.Namespace) -> list[Path]:
    from modules.methods.lora_tools import combine

    loras = [(Path(path), strength) for path, strength in map(lora_and_strength, args.lora)]
    return [combine(loras, args.target, args.rank, args.family, args.dtype, say)]


def resize(args: argparse.Namespace) -> list[Path]:
    from modules.methods.lora_tools import resize

    return [resize(args.source, args.target, args.rank, args.keep, args.family, args.dtype, say)]


def extract(args: argparse.Namespace) -> list[Path]:
    from modules.methods.lora_tools import extract

    return extract(args.base, args.tuned, args.target, args.rank, args.kohya, args.dtype)


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    from scripts.family_option import family

    parser = argparse.ArgumentParser(prog=command_name("lora"), description="Make new files of LoRAs.")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    def command(run: Callable[[argparse.Namespace], list[Path]], text: str) -> argparse.ArgumentParser:
        added = commands.add_parser(run.__name__, help=text, description=text)
        added.set_defaults(run=run)
        return added

    def add_target(added: argparse.ArgumentParser, text: str) -> None:
        added.add_argument("target", type=file, help=text)
        added.add_argument(
            "--dtype", choices=("float32", "float16", "bfloat16"), default="", help="default: as in the source"
        )

    def add_family(added: argparse.ArgumentParser) -> None:
        added.add_argument("--family", type=family, metavar="NAME", default="", help="of a LoRA that does not tell")

    def add_loras(added: argparse.ArgumentParser) -> None:
        added.add_argument(
            "--lora", required=True, action="append", metavar="FILE[:STRENGTH]", help="can be given several times"
        )

    added = command(merge, "add LoRAs to the weights of a model")
    added.add_argument("base", help="diffusers folder, Hugging Face name or single file")
    add_target(added, "folder, or .safetensors file, to write; must not exist")
    add_loras(added)
    added.add_argument(
        "--config", default="", metavar="DIR", help="diffusers folder of the same kind; single files need it offline"
    )
    added = command(combine, "make one LoRA that does what several do together")
    add_target(added, "file to write; must not exist")
    add_loras(added)
    added.add_argument("--rank", type=positive, metavar="N", help="approximate it at this rank; default: exact")
    add_family(added)
    added = command(resize, "approximate a LoRA at a lower rank, by SVD")
    added.add_argument("source", type=file, help="LoRA file")
    add_target(added, "file to write; must not exist")
    added.add_argument("--rank", type=positive, metavar="N", help="the largest rank of a layer")
    added.add_argument(
        "--keep", type=share, default=1.0, metavar="SHARE", help="of a layer's squared norm, such as 0.95; default: 1"
    )
    add_family(added)
    added = command(extract, "make a LoRA of what a fine-tuned model adds to its base, by SVD")
    added.add_argument("base", help="diffusers folder")
    added.add_argument("tuned", help="diffusers folder of the fine-tuned model")
    add_target(added, "file to write; must not exist")
    added.add_argument("--rank", type=positive, required=True, metavar="N", help="rank of each layer")
    added.add_argument("--kohya", action="store_true", help="in kohya's format, as ComfyUI and A1111 read it")
    return parser.parse_args(argv)


def file(text: str) -> Path:
    return Path(text).expanduser()


def share(text: str) -> float:
    if not 0 < float(text) <= 1:
        raise argparse.ArgumentTypeError(f"{text} is not above 0 and at most 1")
    return float(text)


if __name__ == "__main__":
    end_program(main)
