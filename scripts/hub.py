"""Finds and downloads models of the Hugging Face Hub: python scripts/hub.py download NAMESPACE/MODEL"""

import argparse
import json
import sys
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

if __name__ == "__main__":  # before the imports that take long
    from scripts.terminal import prepare_terminal

    prepare_terminal()

from modules.config.errors import UserError
from modules.config.installation import command_name
from modules.machine.hub import FoundModel, HubModel, download_model, find_models, models_on_disk, read_model
from modules.session.byte_sizes import spoken_bytes
from modules.session.printing import print_text
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

    def add(name: str, run: Callable[[argparse.Namespace], None], argument: str, text: str) -> None:
        command = commands.add_parser(name, help=text, description=text)
        if argument:
            command.add_argument("text", metavar=argument)
        command.add_argument(
            "--json", action="store_true", help="print JSON: one line, or one for each step of a download"
        )
        command.set_defaults(run=run)

    name = "NAMESPACE/MODEL[@REVISION]"
    add("search", search, "TEXT", "list the models in diffusers' format whose names contain the text")
    add("list", list_models, "", "list the models that have been downloaded")
    add("info", describe, name, "show a model's family, license and size")
    add("download", download, name, "download a model; one that was interrupted is continued")
    return parser.parse_args(argv)


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


def describe(args: argparse.Namespace) -> None:
    show_model(args, read_model(args.text))


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
    model = read_model(args.text)
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
    sys.exit(main())
