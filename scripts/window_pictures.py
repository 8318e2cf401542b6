"""Makes docs/images/window: a picture of each tab and window, dark and light, at two scales.

    python scripts/window_pictures.py [--out FOLDER] [--scales 1.0 1.5] [--appearances dark light] [--size 1280x800]
        [--only NAME ...]

The run and the GPUs in them are made up (tests/support/shown_run.py). Needs a display with room for the window at the
largest scale; without one: xvfb-run -s "-screen 0 1920x1200x24" python scripts/window_pictures.py
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
import tkinter
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from PIL import Image, ImageColor, ImageGrab  # noqa: E402

from modules.ui.toolkit import load_toolkit  # noqa: E402
from tests.support import shown_run  # noqa: E402

if TYPE_CHECKING:
    from modules.session.RunFolder import RunFolder
    from modules.ui.TrainUI import TrainUI

COLOURS = 128  # in a picture: a flat window needs no more, and a file has about 60 KB
SETTLE_SECONDS = 1.6  # forms are built in slices, pictures decoded and folders read in threads
BEAT_SECONDS = 1.0
TABS = (
    "home", "general", "model", "dataset", "training", "multi-GPU", "sampling", "backup", "tools", "monitor",
)  # fmt: skip


def main(argv: list[str] | None = None) -> int:
    args = parse(argv)
    load_toolkit()
    args.out = args.out.absolute()
    args.out.mkdir(parents=True, exist_ok=True)
    sys.modules["pynvml"] = shown_run.busy_gpus()
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        shown_run.make_workspace(folder)
        os.chdir(folder)  # so that the paths which the window shows are relative ones
        try:
            with shown_run.running(folder) as run:
                for appearance in args.appearances:
                    for scale in args.scales:
                        take_all(args, run, appearance, scale)
        finally:
            os.chdir(ROOT)  # Windows removes no folder that a program is in
    return 0


def parse(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Make pictures of the window for the documentation.")
    parser.add_argument("--out", metavar="FOLDER", type=Path, default=ROOT / "docs" / "images" / "window")
    parser.add_argument("--scales", nargs="+", type=float, default=[1.0, 1.5])
    parser.add_argument("--appearances", nargs="+", choices=("dark", "light"), default=["dark", "light"])
    parser.add_argument("--size", default="1280x800", help="of the window, in unscaled pixels (%(default)s)")
    parser.add_argument("--only", nargs="+", metavar="NAME", default=[], help="these tabs and windows, not all")
    return parser.parse_args(argv)


def take_all(args: argparse.Namespace, run: RunFolder, appearance: str, scale: float) -> None:
    """All pictures in one look."""
    app = open_main_window(run, {"appearance": appearance, "scale": scale, "geometry": args.size})
    try:
        for name, show in {**{tab: _opener(tab) for tab in TABS}, **WINDOWS}.items():
            name = name.lower().replace("-", "_")
            if args.only and name not in args.only:
                continue
            window = show(app)
            settle(app)
            save(grab(app, window), args.out / f"{name}_{appearance}_{scale:.1f}.png")
            if window is not app:
                window.destroy()
    finally:
        app.destroy()


def open_main_window(run: RunFolder, looks: dict[str, object]) -> TrainUI:
    """The window with the demo on eight GPUs, following the made-up run. looks: as in Preferences."""
    from modules.launch.command_text import Places
    from modules.ui.TrainUI import TrainUI

    with tempfile.TemporaryDirectory() as state:
        (Path(state) / "window.json").write_text(json.dumps(looks), encoding="utf-8")
        app = TrainUI(Path(state))
        app.settings.load_file(shown_run.SETTINGS_FILE)
        app.settings.set("distributed_backend", "nccl")
        app.settings.set("lora.rank", 24)
        chorus = "/opt/chorus"  # instead of where it is on this machine
        python = f"{chorus}/.venv/bin/python"
        app.launch.set_places(Places("/data/demo.yaml", python, chorus, chorus, "eth0"), False)
        app.every(BEAT_SECONDS, lambda: shown_run.beat(run))
        app.run.attach(run.path)
        settle(app)
    return app


def settle(app: TrainUI) -> None:
    end = time.monotonic() + SETTLE_SECONDS
    while time.monotonic() < end or app.is_building:
        app.update()
        time.sleep(0.01)


def grab(app: TrainUI, window: tkinter.Misc) -> Image.Image:
    """What of `window` is on the screen."""
    window.lift()
    app.update()
    left, top = window.winfo_rootx(), window.winfo_rooty()
    box = (left, top, left + window.winfo_width(), top + window.winfo_height())
    return ImageGrab.grab(box, xdisplay=os.environ.get("DISPLAY"))


def save(picture: Image.Image, path: Path) -> None:
    picture = picture.convert("RGB")
    # The most frequent colours as they are: those of surfaces. A quantiser would mix some, and all text looks soiled.
    # Those of the theme come first, as a few letters in a colour of their own would be lost to the greys of a photo.
    counted = picture.getcolors(picture.width * picture.height) or ()
    frequent = sorted(((count, colour) for count, colour in counted if isinstance(colour, tuple)), reverse=True)
    own = theme_colours()
    colours = sorted((colour for _, colour in frequent), key=lambda colour: colour not in own)[:COLOURS]
    palette = Image.new("P", (1, 1))
    palette.putpalette([part for colour in colours for part in colour])
    picture.quantize(palette=palette, dither=Image.Dither.NONE).save(path, optimize=True)
    print(f"{path.name}: {path.stat().st_size // 1024} KiB")


def theme_colours() -> set[tuple[int, ...]]:
    from modules.ui.theme import Theme

    pairs = (value for value in vars(Theme).values() if isinstance(value, tuple))
    return {ImageColor.getrgb(colour) for pair in pairs for colour in pair}


def _opener(tab: str) -> Callable[[TrainUI], tkinter.Misc]:
    def show(app: TrainUI) -> tkinter.Misc:
        opened = app.open_tab(tab)
        settle(app)
        if tab == "dataset":
            opened.cards.choose(0)
        if tab == "sampling":
            row = opened.gallery.table.rows[0]
            opened.gallery.compare(row, opened.gallery.table.steps[0], opened.gallery.table.steps[-1])
        return app

    return show


def _several_machines(app: TrainUI) -> tkinter.Misc:
    app.settings.set("num_nodes", 2)
    app.settings.set("master_addr", "node0.local")
    app.settings.set("use_torchrun", True)
    app.open_tab("training")._configure_nodes()
    return app.winfo_children()[-1]


def _concept(app: TrainUI) -> tkinter.Misc:
    app.settings.set("concepts.0.augmentation.rotation", 8.0)
    tab = app.open_tab("dataset")
    settle(app)
    tab.edit(0)
    return tab._window


def _crash_report(app: TrainUI) -> tkinter.Misc:
    from modules.ui.windows.CrashReportWindow import CrashReportWindow

    return CrashReportWindow(app, Path("workspace/larger-batch"))


def _problems(app: TrainUI) -> tkinter.Misc:
    app.settings.set("optimizer.learning_rate", "3e-x")
    app.settings.set("optimizer.beta1", "1.2")
    app.settings.set_many({"batch_size_mode": "global", "batch_size": 18})
    app.open_tab("training")
    return app


def _ranks(app: TrainUI) -> tkinter.Misc:
    tab = app.open_tab("multi-GPU")
    settle(app)
    tab._page._parent_canvas.yview_moveto(1)
    return app


WINDOWS = {
    "ranks": _ranks,
    "several_machines": _several_machines,
    "concept": _concept,
    "crash_report": _crash_report,
    "problems": _problems,
}

if __name__ == "__main__":
    sys.exit(main())
