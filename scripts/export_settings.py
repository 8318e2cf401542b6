"""Exports settings for kohya's sd-scripts: python scripts/export_settings.py run.yaml -o FOLDER"""

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

if __name__ == "__main__":
    from scripts.terminal import prepare_terminal

    prepare_terminal()

from modules.config.atomic_file import write_bytes
from modules.config.errors import UserError
from modules.config.files import apply_overrides, config_from_values, load_values
from modules.config.installation import command_name
from modules.config.presets import load_preset, merge_values
from modules.config.TrainConfig import TrainConfig
from modules.importers.ExportResult import ExportResult
from modules.importers.sd_scripts_export import export_settings
from modules.session.printing import print_line, print_text
from scripts.terminal import escape_unprintable, show

LOST = "not_exported.txt"


def main(argv: list[str] | None = None) -> int:
    args = parse(argv)
    escape_unprintable()
    try:
        result = export_settings(read_config(args))
        show(result.text())
        if not args.output:
            return 0
        write_files(result, Path(args.output), args.force)
    except UserError as error:
        print_text(str(error), sys.stderr)
        return 2
    print_line(f"Written to {args.output}, with the lists above in {LOST}. Start it in this folder with")
    print_line(f"  {result.command}")
    return 0


def parse(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog=command_name("export_settings"),
        description="Write settings of Chorus as files of sd-scripts (arguments, datasets and prompts), and show what "
        "they can't say and what means something else there.",
    )
    parser.add_argument("config", nargs="?", default="", metavar="FILE", help="settings, YAML or JSON")
    parser.add_argument("--preset", metavar="NAME", help="start from a preset")
    parser.add_argument("--set", metavar="PATH=VALUE", action="append", default=[], help="change one setting")
    parser.add_argument(
        "-o", "--output", default="", metavar="FOLDER", help="folder to write; without it, only the lists are shown"
    )
    parser.add_argument("--force", action="store_true", help="overwrite files that the folder has already")
    args = parser.parse_args(argv)
    if not args.config and not args.preset:
        parser.error("name the settings with FILE or --preset NAME")
    return args


def read_config(args: argparse.Namespace) -> TrainConfig:
    """Preset, then file, then --set; later ones win."""
    values = load_preset(args.preset) if args.preset else {}
    if args.config:
        values = merge_values(values, load_values(args.config))
    return config_from_values(apply_overrides(values, args.set), args.config or f"preset {args.preset}")


def write_files(result: ExportResult, folder: Path, is_forced: bool) -> None:
    """Write the files and the lists. Raises UserError if one is there already, or can't be written."""
    files = {**result.files, LOST: result.text() + "\n"}
    there = [name for name in files if (folder / name).exists()]
    if there and not is_forced:
        raise UserError(f"-o {folder}: {', '.join(there)} would be overwritten; name another folder, or add --force.")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, text in files.items():
            write_bytes(folder / name, text.encode("utf-8"))
    except OSError as error:
        raise UserError(f"-o {folder} can't be written: {error.strerror}; choose another place.") from error


if __name__ == "__main__":
    sys.exit(main())
