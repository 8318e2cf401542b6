"""Trains from the command line: python scripts/train.py --config run.yaml [--set path=value ...]"""

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from modules.config.errors import UserError
from modules.config.files import apply_overrides, config_from_values, load_values
from modules.config.presets import load_preset, merge_values
from modules.config.TrainConfig import TrainConfig


def main(argv: list[str] | None = None) -> int:
    args = parse(argv)
    sys.stdout.reconfigure(errors="backslashreplace")  # a file name that the terminal can't show ends nothing
    try:
        config = read_config(args)
        if args.dry_run:
            from modules.data.run_summary import summarize

            print(summarize(config))
            return 0
        from modules.trainer.run import run_training

        return run_training(config, resume=args.resume)
    except UserError as error:
        print(error, file=sys.stderr)
        return 2


def parse(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Train a diffusion model.")
    parser.add_argument("--config", metavar="FILE", help="settings, YAML or JSON (docs/settings.md lists them)")
    parser.add_argument("--preset", metavar="NAME", help="start from resources/presets/NAME.yaml")
    parser.add_argument("--set", metavar="PATH=VALUE", action="append", default=[], help="change one setting")
    parser.add_argument("--resume", action="store_true", help="go on from the newest backup in workspace_dir")
    parser.add_argument("--dry-run", action="store_true", help="say what the run would do, and end")
    args = parser.parse_args(argv)
    if not args.config and not args.preset:
        parser.error("name the settings with --config FILE or --preset NAME")
    return args


def read_config(args: argparse.Namespace) -> TrainConfig:
    """Preset, then file, then --set; later ones win."""
    values = load_preset(args.preset) if args.preset else {}
    if args.config:
        values = merge_values(values, load_values(args.config))
    return config_from_values(apply_overrides(values, args.set), source=args.config or f"preset {args.preset}")


if __name__ == "__main__":
    sys.exit(main())
