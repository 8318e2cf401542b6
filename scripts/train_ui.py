"""Opens the window: python scripts/train_ui.py [--config FILE]"""

import argparse
import os
import signal
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from modules.config.installation import (
    IS_INSTALLED,
    ROOT,
    command_name,
    queue_folder,
    window_folder,
    window_state_folder,
)
from modules.session.program_end import end_program

FINISH_SECONDS = 3.0  # that what the window's threads still do may take once it has closed


def main(argv: list[str] | None = None) -> int:
    args = parse(argv)
    try:
        return show_shortcut() if args.shortcut else open_window(args)
    except KeyboardInterrupt:  # while it opens
        return 130


def open_window(args: argparse.Namespace) -> int:
    """Returns when it is closed, with the exit code."""
    config = args.config.expanduser().absolute() if args.config else None
    state_dir = args.state.expanduser().absolute()
    folder = window_folder()  # a window has no folder that a person could see
    folder.mkdir(parents=True, exist_ok=True)
    os.chdir(folder)
    import tkinter

    from modules.session.printing import print_line
    from modules.ui.toolkit import load_toolkit

    load_toolkit()
    from modules.ui.OpeningWindow import OpeningWindow

    try:
        opening = OpeningWindow(state_dir)
        if not opening.show():
            return 0
        from modules.ui.TrainUI import TrainUI  # with the settings, which take longer than all before

        window = TrainUI.take_over(opening, queue_folder())
    except tkinter.TclError as error:
        text = f"The window can't be opened ({error}): start it on a desktop, or use {command_name('train')}."
        print_line(text, sys.stderr)
        return 1
    if config is not None:
        window.top_bar.open_file(config)
    window.standby.start(window)
    # Ctrl-C in the terminal is the cross in the title bar: Tk would print a traceback, and go on
    before = signal.signal(signal.SIGINT, lambda number, frame: window.after_idle(window.close))
    try:
        window.mainloop()
    finally:
        signal.signal(signal.SIGINT, before)
    window.finish(FINISH_SECONDS)
    return 0


def show_shortcut() -> int:
    """Makes an icon on this desktop and says where; the exit code."""
    from modules.config.errors import UserError
    from modules.session.printing import print_line
    from scripts.starting.shortcut import make_shortcut

    # by its path: unlike -m, it imports nothing from the folder that the desktop starts it in
    command = [sys.executable, str(ROOT / "scripts" / "train_ui.py")] if IS_INSTALLED else [str(ROOT / "start-ui.sh")]
    try:
        print_line(f"A double click on {make_shortcut(command, Path.home(), sys.platform)} opens the window now.")
    except UserError as error:
        print_line(error, sys.stderr)
        return 2
    except OSError as error:
        print_line(f"{error.filename} can't be written ({error.strerror}).", sys.stderr)
        return 1
    return 0


def parse(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog=command_name("train_ui"), description="Open the window of Chorus.")
    parser.add_argument("--config", metavar="FILE", type=Path, help="settings to open, YAML or JSON")
    parser.add_argument(
        "--state",
        metavar="FOLDER",
        type=Path,
        default=window_state_folder(),
        help=f"where the window keeps its last settings; its queue stays that of {command_name('run_queue')}",
    )
    parser.add_argument("--shortcut", action="store_true", help="make an icon that opens it by a double click, and end")
    return parser.parse_args(argv)


if __name__ == "__main__":
    end_program(main, waits=False)  # `open_window` has
