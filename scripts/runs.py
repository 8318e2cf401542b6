"""Lists and compares runs: python scripts/runs.py list workspace, python scripts/runs.py compare RUN RUN"""

from __future__ import annotations

import argparse
import json
import math
import shutil
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

if __name__ == "__main__":  # before the imports that take long
    from scripts.terminal import prepare_terminal

    prepare_terminal()

from modules.config.counted import counted
from modules.config.errors import UserError
from modules.config.installation import command_name
from modules.config.visible_text import visible_line
from modules.runs.comparison import SMOOTHED_STEPS, Comparison, compare_runs, described, line_of
from modules.runs.RunIndex import RunIndex
from modules.runs.RunTable import DESCENDING, FILTERS, SORTS, RunTable, TableRun, loss_text, spoken_duration
from modules.session.printing import print_text
from modules.session.program_end import end_program
from scripts.number_options import positive
from scripts.terminal import Progress, escape_unprintable, show

WATCH_SECONDS = 3.0  # between two looks at the folders
GAP = "  "
NUM_SHOWN = 10  # points of a curve in a terminal
AXES = ("step", "images", "seconds")


def main(argv: Sequence[str] | None = None) -> int:
    args = parse(argv)
    escape_unprintable()
    try:
        return args.run(args)
    except UserError as error:
        print_text(str(error), sys.stderr)
    except OSError as error:
        print_text(f"The index can't be written ({error.strerror}): check the disk, then try again.", sys.stderr)
    return 2


def list_runs(args: argparse.Namespace) -> int:
    table = RunTable()
    table.filter_name, table.text, table.order = args.only, " ".join(args.search), args.sort
    table.is_descending = args.sort in DESCENDING
    folders = [checked(folder) for folder in args.folders]
    found = []
    for folder in folders:
        index = RunIndex(folder)
        index.refresh(told=Progress("Reading runs"))
        found.append((folder, index.glance()))
    table.take(found)
    runs = table.shown()
    if args.json:
        show(json.dumps([described(run.row, run.folder) for run in runs], indent=2, ensure_ascii=True))
        return 0
    for line in in_columns(runs):
        show(line)
    if not runs:
        hidden = f", {counted(len(table.runs), 'is', 'are')} hidden by --only and --search" if table.runs else ""
        show(f"No run to list in {', '.join(map(str, folders))}{hidden}.")
    return 0


def compare(args: argparse.Namespace) -> int:
    comparison = compare_runs(args.runs)
    if args.json:
        show(json.dumps(comparison.to_plain(args.axis, args.smooth), indent=2, ensure_ascii=True))
        return 0
    for line in compared_lines(comparison, args):
        show(line)
    return 0


def refresh(args: argparse.Namespace) -> int:
    """Bring the indexes up to date; with --watch until stdin ends, so that the window can have it done."""
    indexes = [RunIndex(checked(folder)) for folder in args.folders]
    is_over, told = threading.Event(), None if args.watch else Progress("Reading runs")
    if args.watch:
        threading.Thread(target=wait_for_end_of_stdin, args=(is_over,), daemon=True).start()
    while True:
        changed = [index.refresh(lambda: not is_over.is_set(), told) for index in indexes]
        if args.watch and any(changed):
            show("changed")
            sys.stdout.flush()
        if not args.watch or is_over.wait(WATCH_SECONDS):
            return 0


def wait_for_end_of_stdin(is_over: threading.Event) -> None:
    sys.stdin.buffer.read()
    is_over.set()


def in_columns(runs: Sequence[TableRun]) -> list[str]:
    """A line for each run, below the titles; the last column, what differs from the run before, is cut."""
    if not runs:
        return []
    titles = ("Run", "State", "Started", "Preset", "Base", "Loss", "Duration", "Samples", "Differs from the one before")
    rows = [titles, *map(cells_of, runs)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(titles) - 1)]
    room = max(len(titles[-1]), shutil.get_terminal_size((160, 24)).columns - sum(widths) - len(GAP) * len(widths))
    lines = []
    for row in rows:
        last = row[-1] if len(row[-1]) <= room else f"{row[-1][: room - 1]}…"
        lines.append(GAP.join([*(cell.ljust(width) for cell, width in zip(row, widths, strict=False)), last]).rstrip())
    return lines


def cells_of(run: TableRun) -> tuple[str, ...]:
    row = run.row
    name = f"{'* ' if row.marks.star else ''}{row.shown_name}{''.join(f' #{tag}' for tag in row.marks.tags)}"
    started = time.strftime("%Y-%m-%d %H:%M", time.localtime(row.started)) if row.started else ""
    cells = (name, run.state(), started, run.preset, run.base, loss_text(row.loss), spoken_duration(row.seconds))
    return tuple(map(visible_line, (*cells, f"{row.num_samples or ''}", run.changes_text())))


def compared_lines(comparison: Comparison, args: argparse.Namespace) -> list[str]:
    """Figures, differing settings and some points of the curves, with a column for each run."""
    runs = comparison.runs
    rows = [("", *(run.name for run in runs))]
    rows.append(("State", *(TableRun(run.folder, run.row).state() for run in runs)))
    rows.append(("Steps", *(f"{run.row.step:,}" for run in runs)))
    rows.append(("Images", *(f"{run.row.images:,}" for run in runs)))
    rows.append(("Duration", *(spoken_duration(run.row.seconds) for run in runs)))
    rows.append(("Loss", *(loss_text(run.row.loss) for run in runs)))
    rows.append(("Validation loss", *(loss_text(run.row.validation) for run in runs)))
    rows.append(("", *("" for _ in runs)))
    rows += [(one.label, *one.values) for one in comparison.differences]
    if not comparison.differences:
        rows.append(("Settings", *("the same" for _ in runs)))
    rows.append(("", *("" for _ in runs)))
    lines = [line_of(run.points(), args.axis, args.smooth) for run in runs]
    last = max((line[-1][0] for line in lines if line), default=0.0)
    for number in range(1, NUM_SHOWN + 1 if last else 1):
        at = last * number / NUM_SHOWN
        values = (next((y for x, y in line if x >= at), math.nan) for line in lines)
        cells = ("" if math.isnan(value) else f"{value:.4f}" for value in values)
        rows.append((f"loss at {args.axis} {at:,.0f}", *cells))
    cut = [tuple(cell if len(cell) <= 40 else f"{cell[:39]}…" for cell in map(visible_line, row)) for row in rows]
    widths = [max(len(row[column]) for row in cut) for column in range(len(runs) + 1)]
    return [GAP.join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in cut]


def checked(folder: str) -> Path:
    """Raises UserError if there is no such folder."""
    path = Path(folder).expanduser()
    if not path.is_dir():
        raise UserError(f"{folder!r} is not a folder: give the one that the output folders of runs are in.")
    return path


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog=command_name("runs"), description="List and compare runs.")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    text = "list the runs in the subfolders of folders"
    added = commands.add_parser("list", help=text, description=text.capitalize())
    added.set_defaults(run=list_runs)
    add_folders(added)
    added.add_argument("--only", choices=tuple(FILTERS), default="all", help="default: %(default)s")
    added.add_argument("--sort", choices=tuple(SORTS), default="started", help="default: %(default)s")
    added.add_argument(
        "--search", nargs="+", default=[], metavar="WORD", help="that all have to match, such as cat or tag:good"
    )
    added.add_argument("--json", action="store_true", help="as JSON, with all settings")
    text = "compare figures, settings and loss of runs"
    added = commands.add_parser("compare", help=text, description=text.capitalize())
    added.set_defaults(run=compare)
    added.add_argument("runs", nargs="+", metavar="RUN", help="output folder of a run")
    added.add_argument("--axis", choices=AXES, default="step", help="of the loss; default: %(default)s")
    added.add_argument(
        "--smooth", type=positive, default=int(SMOOTHED_STEPS), metavar="N", help="over N steps; default: %(default)s"
    )
    added.add_argument("--json", action="store_true", help="as JSON, with the curves")
    text = "bring the index of the runs up to date, as the window does"
    added = commands.add_parser("refresh", help=text, description=text.capitalize())
    added.set_defaults(run=refresh)
    add_folders(added)
    added.add_argument("--watch", action="store_true", help="go on until stdin ends")
    return parser.parse_args(argv)


def add_folders(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("folders", nargs="*", default=["workspace"], metavar="FOLDER", help="default: workspace")


if __name__ == "__main__":
    end_program(main)
