"""Finds and downloads models of the Hugging Face Hub: python scripts/hub.py download NAMESPACE/MODEL"""

import argparse
import json
import sys
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

if __name__ == "__main__":  # before the imports that take long
    from scripts.terminal import prepare_terminal

    prepare_terminal()

from modules.config.errors import UserError
from modules.config.installation import command_name
from modules.config.ModelConfig import ModelConfig
from modules.machine.hub import (
    FoundModel,
    HubModel,
    download_model,
    find_models,
    known_index,
    models_on_disk,
    read_model,
)
from modules.session.byte_sizes import spoken_bytes
from modules.session.printing import print_text
from modules.session.program_end import end_program
from scripts.terminal import escape_unprintable, show


def main(argv: list[str] | None = None) -> int:
    args = parse(argv)
    escape_unprintable()
    try:
        args.run(args)
    except UserError as error:
        print_text(str(error), sys.stderr)
        return 2
    return 0


def parse(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog=command_name("hub"),
        description="Find and download models of the Hugging Face Hub, to its own cache, where a run looks for them.",
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    def add(name: str, run: Callable[[argparse.Namespace], None], argument: str, text: str) -> argparse.ArgumentParser:
        command = commands.add_parser(name, help=text, description=text)
        if argument:
            command.add_argument("text", metavar=argument)
        command.add_argument(
            "--json", action="store_true", help="print JSON: one line, or one for each step of a download"
        )
        command.set_defaults(run=run)
        return command

    name = "NAMESPACE/MODEL[@REVISION]"
    add("search", search, "TEXT", "list the models in diffusers' format whose names contain the text")
    add("list", list_models, "", "list the models that have been downloaded")
    add_parts(add("info", describe, name, "show a model's family, license and size"))
    add_parts(add("download", download, name, "download a model; one that was interrupted is continued"))
    return parser.parse_args(argv)


def add_parts(command: argparse.ArgumentParser) -> None:
    text = "that takes the place of the model's, whose weights are then not downloaded"
    command.add_argument("--vae", default="", metavar="PATH", help=f"VAE {text}")
    command.add_argument("--denoiser", default="", metavar="PATH", help=f"transformer or U-Net {text}")
    command.add_argument("--denoiser-2", default="", metavar="PATH", help=f"expert for low noise {text}")
    command.add_argument("--text-encoder", action="append", default=[], metavar="FILE", help=f"text encoder {text}")
    command.add_argument("--family", default="", help="only of a model of this family are these parts left out")


def search(args: argparse.Namespace) -> None:
    show_found(args, find_models(args.text))


def list_models(args: argparse.Namespace) -> None:
    show_found(args, models_on_disk())


def show_found(args: argparse.Namespace, models: list[FoundModel]) -> None:
    if args.json:
        show(json.dumps([asdict(model) for model in models]))
        return
    for model in models:
        size = f"  {spoken_bytes(model.num_bytes)}" if model.num_bytes else ""
        gated = "  gated" if model.is_gated else ""
        show(f"{model.name}{size}{f'  {model.license}' if model.license else ''}{gated}")
    if not models:
        show("No models found.")


def needed_model(args: argparse.Namespace) -> HubModel:
    """What a run needs of the model: without the weights of parts that nothing uses or that files replace."""
    from modules.families.registry import family_of
    from modules.weights.own_parts import replaced_parts

    index = known_index(args.text)
    family = family_of(index) if index else None
    if family is None:
        return read_model(args.text)
    parts: dict[str, Any] = {}
    if args.family in ("", family.name):
        parts = {"vae": args.vae, "denoiser": args.denoiser, "denoiser_2": args.denoiser_2}
        parts["text_encoders"] = args.text_encoder
    return read_model(args.text, replaced_parts(family, ModelConfig(base=args.text, **parts)))


def describe(args: argparse.Namespace) -> None:
    show_model(args, needed_model(args))


def show_model(args: argparse.Namespace, model: HubModel) -> None:
    from modules.families.registry import family_of

    family = family_of(model.index)
    if args.json:
        facts = {"family": family.name if family else None, "pipeline": model.index.get("_class_name")}
        sizes = {"num_bytes": model.num_bytes, "missing_bytes": model.missing_bytes}
        names = {"name": model.name, "commit": model.commit, "license": model.license, "is_gated": model.is_gated}
        show(json.dumps({**names, **facts, **sizes}))
        return
    kind = family.label if family else model.index.get("_class_name", "not in diffusers' format")
    left = f", {spoken_bytes(model.missing_bytes)} to download" if model.missing else ", downloaded"
    show(f"{model.name}: {kind}, {spoken_bytes(model.num_bytes)}{left}; license {model.license or 'unknown'}")


def download(args: argparse.Namespace) -> None:
    model = needed_model(args)
    if not model.index:
        raise UserError(f"{model.name!r} is not in diffusers' format: download its single file and use that.")
    if args.json:
        from huggingface_hub.utils import disable_progress_bars

        disable_progress_bars()
    else:
        show_model(args, model)

    def report(done: int, total: int) -> None:
        if args.json:
            print(json.dumps({"done": done, "total": total}), flush=True)

    path = download_model(model, report)
    show(json.dumps({"path": str(path)}) if args.json else str(path))


if __name__ == "__main__":
    end_program(main)
