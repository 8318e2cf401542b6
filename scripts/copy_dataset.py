"""Writes a cleaned copy of a dataset to a new folder: python scripts/copy_dataset.py FOLDER --to NEW_FOLDER."""

import argparse
import sys
from collections.abc import Callable
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

if __name__ == "__main__":  # before the imports that take long
    from scripts.terminal import prepare_terminal

    prepare_terminal()

from modules.annotators.Cancellation import Cancellation
from modules.config.ConceptConfig import ConceptConfig
from modules.config.counted import counted
from modules.config.errors import UserError
from modules.config.installation import command_name, docs_page
from modules.config.visible_text import visible_line
from modules.curation.copy_dataset import DatasetCopy, copy_dataset
from modules.curation.measure_findings import duplicates_in
from modules.curation.MeasureIndex import measure_images
from modules.data.concepts import scan
from modules.data.errors import DataError
from modules.data.ImageSettings import FILE_NAME
from modules.data.videos import is_video
from modules.session.printing import print_text
from modules.session.program_end import end_program
from scripts.concept_option import add_concept_options, chosen_concept
from scripts.events import add_event_options, tell
from scripts.terminal import STOPPED, Progress, escape_unprintable, show

LISTED = 20


def main(argv: list[str] | None = None) -> int:
    """Returns 0 once the copy is there, 2 if it can't be made, STOPPED if canceled."""
    args = parse(argv)
    escape_unprintable()
    canceled = Cancellation()
    if args.listen:
        canceled.listen(sys.stdin)
    try:
        concept = chosen_concept(args)
        with canceled.by_signals():
            dropped, damaged = set[str](), dict[str, str]()
            if args.drop_duplicates:
                dropped, damaged = duplicates_and_damaged(concept, progress_of("Comparing images", args.json), canceled)
            progress = progress_of("Copying images", args.json)
            copy = copy_dataset(concept, args.to, dropped | damaged.keys(), progress, lambda: not canceled())
    except UserError as error:
        print_text(error, sys.stderr)
        return STOPPED if canceled() else 2
    if args.json:
        text = "\n".join(count_lines(copy, len(dropped), damaged))
        tell("end", folder=copy.concept.path, text=text, settings=changed_settings(concept, copy))
    else:
        show(as_text(concept, copy, len(dropped), damaged))
    return 0


def progress_of(what: str, in_json: bool) -> Callable[[int, int], None]:
    if in_json:
        return lambda done, total: tell("progress", text=what, done=done, total=total)
    return Progress(what)


def parse(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog=command_name("copy_dataset"),
        description=f"Copy a dataset without the images that {FILE_NAME} leaves out, and with its crops cut. "
        f"The original stays as it is ({docs_page('dataset')}).",
    )
    add_concept_options(parser, with_only=False)
    parser.add_argument("--to", metavar="NEW_FOLDER", required=True, help="where to write the copy; must not exist")
    parser.add_argument(
        "--drop-duplicates", action="store_true", help="leave out near-duplicates of better images, and damaged images"
    )
    add_event_options(parser)
    return parser.parse_args(argv)


def duplicates_and_damaged(
    concept: ConceptConfig, progress: Callable[[int, int], None], canceled: Callable[[], bool]
) -> tuple[set[str], dict[str, str]]:
    """The paths of images that look like better ones, and those that can't be decoded, with the reason.

    Raises DataError if it is canceled.
    """

    dataset = scan([replace(concept, enabled=True)], videos=True)
    paths = [path for path in dataset.paths if not is_video(path)]
    found = measure_images(dataset.concepts, paths, lambda done: progress(done, len(paths)), lambda: not canceled())
    if canceled():
        raise DataError("the copy was canceled.")
    damaged = {path: one for path, one in found.items() if isinstance(one, str)}
    measures = {path: one for path, one in found.items() if not isinstance(one, str)}
    return {path for group in duplicates_in(dataset, measures) for path in group.others}, damaged


def as_text(concept: ConceptConfig, copy: DatasetCopy, num_duplicates: int, damaged: dict[str, str]) -> str:
    lines = count_lines(copy, num_duplicates, damaged)
    lines.append("Settings of its concept that differ from those of the original:")
    lines += [f"  {name}: {value!r}" for name, value in changed_settings(concept, copy).items()]
    return "\n".join(map(visible_line, lines))


def count_lines(copy: DatasetCopy, num_duplicates: int, damaged: dict[str, str]) -> list[str]:
    num_left_out = copy.num_dropped - num_duplicates - len(damaged)
    counts = [
        f"{copy.num_cropped:,} of them cropped" if copy.num_cropped else "",
        f"{num_left_out:,} left out by {FILE_NAME}" if num_left_out else "",
        f"{counted(num_duplicates, 'near-duplicate')} dropped" if num_duplicates else "",
    ]
    lines = [", ".join([f"{counted(copy.num_images, 'image')} in {copy.concept.path}", *filter(None, counts)])]
    broken = [*copy.unreadable, *damaged.items()]
    lines += [f"left out: {path} ({reason})" for path, reason in broken[:LISTED]]
    if len(broken) > LISTED:
        lines.append(f"... and {len(broken) - LISTED} more that can't be read")
    return lines


def changed_settings(concept: ConceptConfig, copy: DatasetCopy) -> dict[str, Any]:
    values = {field.name: getattr(copy.concept, field.name) for field in fields(concept)}
    return {name: value for name, value in values.items() if value != getattr(concept, name)}


if __name__ == "__main__":
    end_program(main)
