"""Makes the pictures of docs/images: the demo's before and after, and the tabs and windows of Chorus.

    python scripts/window_pictures.py [--only NAME ...]

Whatever samples, curves and times they show are those of a real run of the demo, which is trained first, on the CPU,
if a picture shows it and no earlier call trained it. The other pictures show an example that nobody trains
(scripts/pictures/example.py); scripts/pictures/scenes.py prepares each. Clock and machine are fixed, so that only a
change of the window changes a picture. Needs Xvfb, and no display.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
import tkinter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from PIL import Image, ImageColor, ImageGrab  # noqa: E402

from modules.launch.demo import save_before_and_after  # noqa: E402
from modules.session.RunFolder import RunFolder  # noqa: E402
from modules.ui.toolkit import load_toolkit  # noqa: E402
from scripts.name_option import name_among  # noqa: E402
from scripts.pictures import demo_run, example  # noqa: E402
from scripts.pictures.scenes import (  # noqa: E402
    CAT_SETTINGS,
    CATS,
    DEMO,
    EXAMPLES,
    FINISHED,
    NOW,
    PICTURES,
    RUN,
    RUNNING,
    SHOW_THE_DEMO,
    SIZE,
    STEP,
    Scene,
    settle,
    wait_for,
)
from tests.support.fake_nvml import FakeNvml, real  # noqa: E402
from tests.support.virtual_screen import virtual_screen  # noqa: E402

if TYPE_CHECKING:
    import numpy as np

    from modules.ui.TrainUI import TrainUI

IMAGES = ROOT / "docs" / "images"
EXACT_COLOURS = 128  # of the 256 in a picture: a flat window has no more
GIB = 2**30


def main(argv: list[str] | None = None) -> int:
    args = parse(argv)
    wanted = set(args.only or PICTURES)
    run = demo_run.train_demo(DEMO) if wanted & SHOW_THE_DEMO else None
    if run is not None and "demo" in wanted:
        with Image.open(save_before_and_after(run)) as grid:
            save(grid, "demo")
    load_toolkit()
    with tempfile.TemporaryDirectory() as temporary, fixed_surroundings(Path(temporary)):
        for scenes, opened in ((EXAMPLES, open_example), (RUNNING, open_running), (FINISHED, open_finished)):
            for appearance in ("dark", "light"):
                chosen = {name: scene for name, scene in scenes.items() if scene.appearance == appearance}
                if chosen := {name: scene for name, scene in chosen.items() if name in wanted}:
                    with opened(run, appearance) as app:
                        take(app, chosen)
    return 0


def parse(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Make the pictures of the documentation.")
    parser.add_argument(
        "--only",
        nargs="+",
        metavar="NAME",
        type=name_among(PICTURES, "picture", "docs/images"),
        help=f"these, not all: {', '.join(PICTURES)}",
    )
    return parser.parse_args(argv)


def take(app: TrainUI, scenes: dict[str, Scene]) -> None:
    for name, scene in scenes.items():
        app.geometry(scene.size)
        settle(app)
        window = scene.show(app)
        settle(app)
        for text in app.banner.texts:  # of settings and runs that were only loaded for the picture
            app.banner.close(text)
        save(grab(app, window), name)
        if window is not app:
            with patch("modules.ui.windows.ImageSide.ImageSide.save"):  # what is edited is for this picture alone
                window.destroy()


# --- surroundings -----------------------------------------------------------------------------------------------------


@contextmanager
def fixed_surroundings(folder: Path) -> Iterator[None]:
    """A display, a clock and a working folder that are the same on every machine."""
    os.environ["TZ"] = "UTC"
    time.tzset()
    # Modules that the window imports take the names from here, so they are replaced before it is imported.
    time.time = lambda: NOW
    with virtual_screen() as display:
        os.environ["DISPLAY"] = display
        (folder / "resources").mkdir()
        (folder / "resources" / "demo").symlink_to(ROOT / "resources" / "demo")
        example.write_cats(folder / CATS)
        os.chdir(folder)  # so that the paths which the window shows are relative ones
        try:
            yield
        finally:
            os.chdir(ROOT)


@contextmanager
def open_window(appearance: str, nvml: FakeNvml, cores: int, memory: int, **preferences: object) -> Iterator[TrainUI]:
    """The window on a machine with these GPUs, cores and bytes of memory. preferences: further ones."""
    from modules.machine import Machine
    from modules.ui.models import BackgroundChecks
    from modules.ui.TrainUI import TrainUI

    sys.modules["pynvml"] = nvml
    told: dict[str, Any] = {"first_free_port": lambda port: port, "ask_about": lambda *asked: (example.ON_THE_HUB, "")}
    read: dict[str, Any] = {"num_cores": lambda: cores, "memory_bytes": lambda: memory, "ram_bytes": lambda: memory}
    with (
        patch.multiple(Machine, **read),
        patch.multiple(BackgroundChecks, **told),
        tempfile.TemporaryDirectory() as state,
    ):
        looks = {"appearance": appearance, "scale": 1.0, "geometry": SIZE, **preferences}
        (Path(state) / "window.json").write_text(json.dumps(looks), encoding="utf-8")
        app = TrainUI(Path(state), Path(state, "queue"))
        try:
            wait_for(app, lambda: app.devices.machine is not None)
            yield app
        finally:
            app.destroy()


@contextmanager
def open_example(run: RunFolder | None, appearance: str) -> Iterator[TrainUI]:
    """Settings for the cats on four GPUs, and no run. run: of the demo, to be listed among the recent ones."""
    with ExitStack() as stack:
        runs = [str(demo_run.copy_demo(run, Path("workspace/digits"), NOW - 7200).path)] if run else []
        app = stack.enter_context(open_window(appearance, example.idle_gpus(), 32, 256 * GIB, runs=runs))
        home = app.open_tab("home")
        wait_for(app, lambda: home.own is not None and home.own._are_presets_read)
        app.settings.set("family", "sdxl")
        home.own.quick.use_folder(CATS)
        app.settings.set("workspace_dir", "workspace/my-cat")
        app.settings.set("concepts.0.name", "my cat")
        places = (f"/data/{CAT_SETTINGS}", "/opt/chorus/.venv/bin/python", "/opt/chorus", "/data", "eth0")
        from modules.launch.command_text import Places

        app.launch.set_places(Places(*places), False)
        wait_for(app, lambda: app.devices.num_samples)
        settle(app)
        yield app


@contextmanager
def open_running(run: RunFolder | None, appearance: str) -> Iterator[TrainUI]:
    """The demo at STEP, on two cores, as it was trained."""
    assert run is not None  # SHOW_THE_DEMO has all scenes of it
    shown = demo_run.copy_demo(run, RUN, NOW, STEP)
    with demo_run.as_if_running(shown, NOW), open_demo_run(appearance) as app:
        yield app


@contextmanager
def open_finished(run: RunFolder | None, appearance: str) -> Iterator[TrainUI]:
    assert run is not None  # SHOW_THE_DEMO has all scenes of it
    demo_run.copy_demo(run, RUN, NOW)
    with open_demo_run(appearance) as app:
        yield app


@contextmanager
def open_demo_run(appearance: str) -> Iterator[TrainUI]:
    no_gpu = FakeNvml(init_error=real.NVML_ERROR_LIBRARY_NOT_FOUND)
    with open_window(appearance, no_gpu, demo_run.NUM_RANKS, 16 * GIB) as app:
        app.settings.load_run(RUN)
        app.run.attach(RUN)
        wait_for(app, lambda: app.run.state.step)
        settle(app)
        yield app


# --- files ------------------------------------------------------------------------------------------------------------


def grab(app: TrainUI, window: tkinter.Misc) -> Image.Image:
    """What of `window` is on the screen."""
    window.lift()
    app.update()
    left, top = window.winfo_rootx(), window.winfo_rooty()
    box = (left, top, left + window.winfo_width(), top + window.winfo_height())
    return ImageGrab.grab(box, xdisplay=os.environ["DISPLAY"])


def save(picture: Image.Image, name: str) -> None:
    """Write a picture with a palette of its own."""
    import numpy as np

    pixels = np.asarray(picture.convert("RGB"))
    present, indexes = np.unique(pixels.reshape(-1, 3), axis=0, return_inverse=True)
    palette = palette_of(present, np.bincount(indexes.reshape(-1)))
    # Pillow would round the colours while it looks for the nearest one, and surfaces would change theirs.
    nearest = [((palette - colour) ** 2).sum(1).argmin() for colour in present.astype(np.int64)]
    flat = Image.fromarray(np.array(nearest, np.uint8)[indexes].reshape(pixels.shape[:2]), "P")
    flat.putpalette(np.uint8(palette).tobytes())
    path = IMAGES / f"{name}.png"
    flat.save(path, optimize=True)
    print(f"{path.name}: {path.stat().st_size // 1024} KiB")


def palette_of(present: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """int64[up to 256, 3]: the colours of the theme and the most frequent ones as they are, or all text would look
    soiled; and the most fitting ones for all other pixels, which are those of photos.

    present: uint8[n, 3], the colours of a picture. counts: int64[n], how many pixels have each.
    """
    import numpy as np

    own = theme_colours()  # a few letters in one of them must not be lost to the many pixels of a photo
    is_own = np.array([tuple(colour) in own for colour in present])
    order = np.lexsort((-counts, ~is_own))
    exact, others = order[:EXACT_COLOURS], order[EXACT_COLOURS:]
    colours = present[exact].astype(np.int64)
    if len(others):
        rest = Image.fromarray(np.repeat(present[others], counts[others], axis=0)[None])
        mixed = rest.quantize(256 - EXACT_COLOURS, Image.Quantize.MEDIANCUT).getpalette()
        colours = np.concatenate((colours, np.array(mixed, np.int64).reshape(-1, 3)))
    return colours


def theme_colours() -> set[tuple[int, ...]]:
    from modules.ui.theme import Theme

    pairs = (value for value in vars(Theme).values() if isinstance(value, tuple))
    return {ImageColor.getrgb(colour) for pair in pairs for colour in pair}


if __name__ == "__main__":
    sys.exit(main())
