"""Queue training runs: python scripts/run_queue.py add --config run.yaml, then start.

The queue is a folder of plain files, and what works it off is a process of its own (docs/queue.md). The name is not
queue.py: a script's folder comes first on sys.path, and every script would import that in place of the standard
library's `queue`.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

if __name__ == "__main__":  # before the imports that take long
    from scripts.terminal import prepare_terminal

    prepare_terminal()

from modules.config.counted import counted
from modules.config.errors import UserError
from modules.config.files import apply_overrides, config_from_values, load_values, to_values
from modules.config.installation import command_name, docs_page, queue_folder
from modules.config.presets import load_preset, merge_values
from modules.config.TrainConfig import TrainConfig
from modules.config.validation import check_settings
from modules.config.visible_text import visible_line
from modules.machine.Machine import read_machine
from modules.queue.gpus import describe_gpus, read_gpus
from modules.queue.grid import count_text, grid_entries, make_grid, read_axis
from modules.queue.processes import continue_queue, turn_on
from modules.queue.queue_text import STATE_TEXTS, describe_entry, read_hours, read_time
from modules.queue.QueueEntry import TO_DO, QueueEntry
from modules.queue.TrainingQueue import EntryOptions, TrainingQueue
from modules.session.printing import print_line, print_text
from scripts.terminal import escape_unprintable, show

WAIT_SECONDS = 2.0
START_SECONDS = 30.0  # until the process of a queue has its lock


def main(argv: list[str] | None = None) -> int:
    """Returns 0, 1 if `start --wait` ended with an entry that has failed, or 2 for what can't be done."""
    args = parse(argv)
    escape_unprintable()
    try:
        return args.act(TrainingQueue(args.queue), args) or 0
    except UserError as error:
        print_text(error, sys.stderr)
        return 2
    except OSError as error:
        print_line(f"The queue {args.queue} can't be used ({error.strerror}): check its disk.", sys.stderr)
        return 2


def add(queue: TrainingQueue, args: argparse.Namespace) -> None:
    config = read_settings(args)
    check_settings(config)
    tell_added(queue, [queue.add(config, options_of(args))])


def grid(queue: TrainingQueue, args: argparse.Namespace) -> None:
    axes = [read_axis(text) for text in args.vary]
    config = read_settings(args)
    runs = make_grid(config, axes)
    entries = grid_entries(runs, args.name or Path(config.workspace_dir).name, options_of(args))
    print_line(count_text(axes))
    if args.dry_run:
        show("\n".join(visible_line(options.name) for _, options in entries))
        return
    tell_added(queue, queue.add_all(entries))


def list_entries(queue: TrainingQueue, args: argparse.Namespace) -> None:
    entries, now, settings = queue.entries(), time.time(), queue.settings()
    if args.json:
        rows = [
            {"id": one.id, "name": one.name, "state": one.state, "run_folder": one.run_folder, "text": one.record.text}
            for one in entries
        ]
        show(json.dumps({"is_on": settings.is_on, "side_by_side": settings.side_by_side, "entries": rows}, indent=2))
        return
    order = "side by side" if settings.side_by_side else "one after the other"
    lines = [f"The queue is {'on' if settings.is_on else 'off'}: {counted(len(entries), 'entry', 'entries')}, {order}."]
    has_gpus = bool(read_machine().gpus)
    width = max((len(entry.name) for entry in entries), default=0)
    for number, entry in enumerate(entries, 1):
        text = describe_entry(entry, now).partition("\n")[0]
        limit = f", {entry.limit_hours:g} h" if entry.limit_hours else ""
        what = f"{describe_gpus(entry.gpus, has_gpus)}{limit}"
        lines.append(f"{number:>3}  {entry.name:<{width}}  {STATE_TEXTS[entry.state]:<11}  {what:<12}  {text}".rstrip())
    show("\n".join(map(visible_line, [*lines, *queue.damaged()])))


def start(queue: TrainingQueue, args: argparse.Namespace) -> int:
    if args.side_by_side is not None:
        queue.set_side_by_side(args.side_by_side)
    waiting = [entry for entry in queue.entries() if entry.state in (*TO_DO, "running")]
    if not waiting:
        raise UserError("Nothing is waiting in the queue: add a run, or retry one.")
    process = turn_on(queue)
    deadline = time.monotonic() + START_SECONDS
    while process is not None and process.poll() is None and not queue.has_runner and time.monotonic() < deadline:
        time.sleep(0.05)
    if process is not None and process.poll() not in (None, 0):
        raise UserError(f"The queue's process could not start: {queue.runner_log_path} has the reason.")
    print_line(f"The queue is on: {counted(len(waiting), 'run')} to do. Log: {queue.runner_log_path}")
    return wait(queue) if args.wait else 0


def pause(queue: TrainingQueue, args: argparse.Namespace) -> None:
    if args.entry is None:
        queue.set_on(False)
        print_line("The queue is off: runs that were started go on, and no other starts.")
        return
    entry = queue.change(chosen(queue, args.entry).id, held=True)
    running = entry.state == "running"
    print_line(f"{entry.name} {'stops within two steps, with a backup' if running else 'is paused'}.")


def retry(queue: TrainingQueue, args: argparse.Namespace) -> None:
    entry = queue.retry(chosen(queue, args.entry).id)
    continue_queue(queue)
    how = "continues from its latest backup" if entry.record.was_started else "starts"
    print_line(f"{entry.name} is in the queue again and {how} when its turn comes.")


def move(queue: TrainingQueue, args: argparse.Namespace) -> None:
    entry, last = chosen(queue, args.entry), len(queue.entries())
    if args.place in ("up", "down"):
        queue.move(entry.id, -1 if args.place == "up" else 1)
    elif args.place.isdecimal() and args.place.isascii() and int(args.place) > 0:
        queue.move_to(entry.id, int(args.place) - 1)
    elif args.place in ("first", "last"):
        queue.move_to(entry.id, 0 if args.place == "first" else last)
    else:
        raise UserError(f"place {args.place!r}: write up, down, first, last or a number from 1.")
    list_entries(queue, argparse.Namespace(json=False))


def copy(queue: TrainingQueue, args: argparse.Namespace) -> None:
    tell_added(queue, [queue.copy(chosen(queue, args.entry).id)])


def edit(queue: TrainingQueue, args: argparse.Namespace) -> None:
    entry = chosen(queue, args.entry)
    if args.config or args.preset or args.set:
        values = to_values(read_settings(args)) if args.config or args.preset else to_values(entry.config())
        config = config_from_values(apply_overrides(values, args.set))
        check_settings(config)
        entry = queue.edit(entry.id, config)
    given = options_of(args)
    fields = {"name": given.name, "gpus": given.gpus}
    changes: dict[str, object] = {name: value for name, value in fields.items() if value}
    if args.at is not None:
        changes["not_before"] = given.not_before
    if args.hours is not None:
        changes["limit_hours"] = given.limit_hours
    entry = queue.change(entry.id, **changes)
    print_line(f"Changed {entry.name}.")


def remove(queue: TrainingQueue, args: argparse.Namespace) -> None:
    for entry in [chosen(queue, one) for one in args.entries]:  # numbers change with each that goes
        queue.remove(entry.id)
        print_line(f"Removed {entry.name}; its run folder {entry.run_folder} stays.")


def chosen(queue: TrainingQueue, text: str) -> QueueEntry:
    """The entry with this number in the list, or this name or id."""
    entries = queue.entries()
    is_number = text.isascii() and text.isdecimal() and text not in [entry.name for entry in entries]
    if is_number and 0 < int(text) <= len(entries):
        return entries[int(text) - 1]
    return queue.entry(text)


def wait(queue: TrainingQueue) -> int:
    """Print what changes until nothing is left to do. Ctrl-C ends the waiting, not the queue."""
    told: dict[str, str] = {}
    began = {entry.id for entry in queue.entries() if entry.state in (*TO_DO, "running")}
    while True:
        entries = queue.entries()
        began |= {entry.id for entry in entries if entry.state in (*TO_DO, "running")}
        for entry in entries:
            if told.get(entry.id) != entry.state and entry.id in began:
                told[entry.id] = entry.state
                text = entry.record.text.partition("\n")[0]
                print_line(f"{entry.name}: {STATE_TEXTS[entry.state].lower()}{f' ({text})' if text else ''}")
        if not queue.settings().is_on and not any(entry.is_claimed for entry in entries):
            return int(any(entry.id in began and entry.state == "failed" for entry in entries))
        if continue_queue(queue) is not None:
            print_line("The queue's process had ended and was started again.")
            time.sleep(START_SECONDS / 10)
        time.sleep(WAIT_SECONDS)


def tell_added(queue: TrainingQueue, entries: Sequence[QueueEntry]) -> None:
    has_gpus = bool(read_machine().gpus)
    for entry in entries:
        print_line(f"Added {entry.name}: {describe_gpus(entry.gpus, has_gpus)}, {entry.run_folder}")
    if queue.settings().is_on:
        continue_queue(queue)
    else:
        print_line(f"The queue is off: start it with {command_name('run_queue')} start.")


def read_settings(args: argparse.Namespace) -> TrainConfig:
    """The preset, then the file, then --set. Raises UserError."""
    if not args.config and not args.preset:
        raise UserError("Name the settings with --config FILE or --preset NAME.")
    values = load_preset(args.preset) if args.preset else {}
    if args.config:
        values = merge_values(values, load_values(args.config))
    return config_from_values(apply_overrides(values, args.set), source=args.config or f"preset {args.preset}")


def options_of(args: argparse.Namespace) -> EntryOptions:
    options = EntryOptions(
        name=args.name or "",
        gpus=None if args.gpus is None else read_gpus(args.gpus),
        not_before=read_time(args.at or ""),
        limit_hours=read_hours(args.hours or ""),
    )
    return replace(options, resumes=getattr(args, "resume", False))


def parse(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog=command_name("run_queue"), description=f"Queue training runs ({docs_page('queue')})."
    )
    where = queue_folder()
    parser.add_argument("--queue", metavar="FOLDER", type=Path, default=where, help="another queue than the window's")
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    adding = _command(commands, "add", add, "add a run; its settings are frozen")
    _add_settings(adding)
    adding.add_argument("--resume", action="store_true", help="go on with the run in workspace_dir")
    varying = _command(commands, "grid", grid, "add a run for every combination of values")
    _add_settings(varying)
    varying.add_argument(
        "--vary", metavar="PATH=A,B", action="append", required=True, help="a setting and its values; several times"
    )
    varying.add_argument("--dry-run", action="store_true", help="only list the runs")
    listing = _command(commands, "list", list_entries, "list the entries with their state")
    listing.add_argument("--json", action="store_true", help="for programs")
    starting = _command(commands, "start", start, "start what is waiting, now and after a reboot")
    starting.add_argument("--wait", action="store_true", help="return when nothing is left to do")
    starting.add_argument(
        "--side-by-side", action=argparse.BooleanOptionalAction, help="several runs at once, on different GPUs"
    )
    pausing = _command(commands, "pause", pause, "start no further run; with ENTRY: stop that one with a backup")
    pausing.add_argument("entry", nargs="?", metavar="ENTRY", help="number, name or id")
    _with_entry(_command(commands, "retry", retry, "let a failed, stopped or paused run go on"))
    moving = _with_entry(_command(commands, "move", move, "change the order"))
    moving.add_argument("place", metavar="PLACE", help="up, down, first, last or a number from 1")
    _with_entry(_command(commands, "copy", copy, "add a run once more"))
    editing = _with_entry(_command(commands, "edit", edit, "change the settings or options of a run"))
    _add_settings(editing)
    removing = _command(commands, "remove", remove, "remove entries; run folders stay")
    removing.add_argument("entries", nargs="+", metavar="ENTRY", help="number, name or id")
    return parser.parse_args(argv)


def _command(
    commands: argparse._SubParsersAction, name: str, act: Callable[..., object], text: str
) -> argparse.ArgumentParser:
    command = commands.add_parser(name, help=text, description=text[0].upper() + text[1:] + ".")
    command.set_defaults(act=act)
    return command


def _with_entry(parser: argparse.ArgumentParser) -> argparse.ArgumentParser:
    parser.add_argument("entry", metavar="ENTRY", help="number, name or id")
    return parser


def _add_settings(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--config", metavar="FILE", help="settings, YAML or JSON")
    parser.add_argument("--preset", metavar="NAME", help="start from a preset")
    parser.add_argument("--set", metavar="PATH=VALUE", action="append", default=[], help="change one setting")
    parser.add_argument("--name", help="what the entry is called; by default as its run folder")
    parser.add_argument("--gpus", metavar="all|N|0,2", help="GPUs: all, how many, or which; else as in the settings")
    parser.add_argument("--at", metavar="TIME", help="not before 22:30, or 2026-12-01 22:30")
    parser.add_argument("--hours", metavar="N", help="stop with a backup after so many hours of training")


if __name__ == "__main__":
    sys.exit(main())
