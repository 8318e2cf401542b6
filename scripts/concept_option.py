"""Options of the dataset tools that say which images they work on."""

from __future__ import annotations

import argparse
import json

from modules.config.ConceptConfig import ConceptConfig
from modules.config.errors import UserError
from modules.config.files import load_config


def add_concept_options(parser: argparse.ArgumentParser, with_only: bool = True) -> None:
    """with_only: whether some of the images can be chosen."""
    parser.add_argument("folder", metavar="FOLDER", nargs="?", help="of images, with subfolders")
    parser.add_argument(
        "--config", metavar="FILE", help="settings of a run, whose concepts are used in place of FOLDER"
    )
    parser.add_argument("--concept", type=int, default=0, metavar="N", help="number of the concept; default: 0")
    if with_only:
        parser.add_argument("--only", metavar="FILE", help="a JSON list of the paths of images to choose")


def chosen_concept(args: argparse.Namespace) -> ConceptConfig:
    """Raises UserError."""
    if bool(args.folder) == bool(args.config):
        raise UserError("Name a folder of images, or settings with --config FILE; one of the two.")
    if args.folder:
        return ConceptConfig(path=args.folder)
    concepts = load_config(args.config).concepts
    if not 0 <= args.concept < len(concepts):
        raise UserError(f"--concept {args.concept}: {args.config} has {len(concepts)} concepts, counted from 0.")
    return concepts[args.concept]


def chosen_paths(args: argparse.Namespace) -> list[str] | None:
    """Those of --only; None without. Raises UserError."""
    if not args.only:
        return None
    try:
        with open(args.only, encoding="utf-8") as file:
            paths = json.load(file)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or "it is no JSON"
        raise UserError(
            f"--only {args.only!r}: can't be read ({reason}): give a file with a JSON list of paths."
        ) from error
    if not isinstance(paths, list) or not all(isinstance(path, str) for path in paths):
        raise UserError(f"--only {args.only!r}: is no JSON list of paths.")
    return paths
