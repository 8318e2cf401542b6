"""What each picture of the window shows: a scene prepares it, and returns the window to be taken."""

from __future__ import annotations

import math
import time
import tkinter
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple
from unittest.mock import patch

from PIL import Image, ImageDraw

from modules.config.installation import ROOT
from modules.session.RunFolder import RunFolder
from scripts.pictures import demo_run, example

if TYPE_CHECKING:
    from modules.ui.TrainUI import TrainUI
    from modules.ui.windows.DatasetWindow import DatasetWindow
    from modules.ui.windows.RunsWindow import RunsWindow

DEMO = ROOT / "workspace" / "pictures" / "demo"  # trained once, and kept for the next call
NOW = 1_781_521_200.0  # 2026-06-15 11:00 UTC
STEP = 320  # of the demo, at which it is shown while it trains
SIZE, LOW = "1280x800", "1280x560"  # of the main window
SETTLE_SECONDS = 2.0  # forms are built in slices, images decoded and folders read in threads
WAIT_SECONDS = 300.0
WALKS, FILMS = "images/walks", "images/films"
RUN, CATS, CAT_SETTINGS = Path("workspace/demo"), "images/my-cat", "my-cat.yaml"


class Scene(NamedTuple):
    """Prepares what a picture shows, and returns its window."""

    show: Callable[[TrainUI], tkinter.Misc]
    appearance: str = "dark"
    size: str = SIZE  # of the main window


def wait_for(app: TrainUI, condition: Callable[[], object]) -> None:
    end = time.monotonic() + WAIT_SECONDS
    while not condition():
        if time.monotonic() > end:
            raise TimeoutError("the window did not get there in time")
        app.update()
        time.sleep(0.01)


def settle(app: TrainUI) -> None:
    end = time.monotonic() + SETTLE_SECONDS
    wait_for(app, lambda: time.monotonic() > end and not app.is_building)


def _tab(name: str) -> Callable[[TrainUI], tkinter.Misc]:
    def show(app: TrainUI) -> tkinter.Misc:
        app.open_tab(name)
        return app

    return show


def _dataset(app: TrainUI) -> tkinter.Misc:
    tab = app.open_tab("dataset")
    settle(app)
    tab.cards.choose(0)
    return app


def _concept(app: TrainUI) -> tkinter.Misc:
    app.settings.set("concepts.0.augmentation.rotation", 8.0)
    tab = app.open_tab("dataset")
    settle(app)
    tab.edit(0)
    return tab._window


def _dataset_window(app: TrainUI) -> DatasetWindow:
    from modules.ui.windows.DatasetWindow import open_dataset

    folder = Path(CATS)
    min(folder.glob("*.jpg")).with_suffix(".txt").unlink(missing_ok=True)  # so that the window has something to say
    window = open_dataset(app, 0)
    wait_for(app, lambda: window.view.items and window.view.num_read == len(window.view.items))
    window.cells.choose(window.view.shown[4])
    return window


def _mask_painter(app: TrainUI) -> tkinter.Misc:
    """With a part of the cat's face as the mask."""
    window = _dataset_window(app)
    window.cells.choose(window.view.shown[2])
    window.side.toggle_painting()
    masks = window.side.masks
    wait_for(app, lambda: masks.opened is not None)
    assert masks.opened is not None
    view, (width, height) = masks.opened.view, masks.opened.painting.size
    masks.canvas.set_diameter(width / 3)
    settle(app)
    places = [view.to_screen(width * x, height * y) for x, y in ((0.3, 0.45), (0.5, 0.5), (0.45, 0.7))]
    for name, (x, y) in zip(("ButtonPress-1", "B1-Motion", "B1-Motion"), places, strict=True):
        masks.canvas.event_generate(f"<{name}>", x=round(x), y=round(y))
    masks.canvas.event_generate("<ButtonRelease-1>", x=round(places[-1][0]), y=round(places[-1][1]))
    return window


def _cropping(app: TrainUI) -> tkinter.Misc:
    """With the cat's face as the crop."""
    window = _dataset_window(app)
    window.cells.choose(window.view.shown[2])
    window.side.toggle_cropping()
    crops = window.side.crops
    wait_for(app, lambda: crops.frame is not None)
    settle(app)
    assert crops.frame is not None
    width, height = crops.frame.whole
    crops.frame.draw((0.12 * width, 0.2 * height), (0.85 * width, 0.85 * height))
    crops.canvas.refresh()
    crops._show_state()
    return window


def _captioner(app: TrainUI) -> tkinter.Misc:
    """With a preview of a server's captions, of a server that only exists here."""
    from modules.ui.models.AnnotatorRun import Result
    from modules.ui.models.CaptionerChoices import STYLES
    from modules.ui.windows.CaptionerWindow import SERVER
    from modules.ui.windows.DatasetWindow import open_dataset

    dataset = open_dataset(app, 0)
    wait_for(app, lambda: dataset.view.items and dataset.view.num_read == len(dataset.view.items))
    dataset.caption.captioner.open_window()
    window = dataset.caption.captioner.window
    assert window is not None  # it was opened
    window.geometry("760x1090")
    window.source.set(SERVER)
    window.address.insert(0, "http://localhost:11434/v1")
    window.server_model.insert(0, "qwen3-vl")
    window.style.set(STYLES["subject"])
    window.name.insert(0, "ohwx cat")
    window.show_rows()
    paths = [item.path for item in dataset.view.items]
    previewed = zip(example.PREVIEWED, (paths[0], paths[4], paths[8]), strict=True)
    window._show_preview([Result(path, text) for text, path in previewed])
    window.panel.tell("A preview: nothing was written.")
    window._page._parent_canvas.yview_moveto(0)  # to what was chosen
    return window


def _masks_window(app: TrainUI) -> tkinter.Misc:
    """With a preview of masks that were drawn for the picture."""
    from modules.ui.models.AnnotatorRun import Result

    dataset = _dataset_window(app)
    dataset.caption.masker.open_window()
    window = dataset.caption.masker.window
    assert window is not None  # it was opened
    window.geometry("760x1010")
    window.words.insert(0, "eyes, nose")
    results = []
    for number, boxes in example.MASKED.items():
        path, mask = dataset.view.items[number].path, Image.new("L", (256, 256))
        for box in boxes:
            ImageDraw.Draw(mask).ellipse(box, fill=255)
        file = Path(f"mask_{number}.png").absolute()
        mask.save(file)
        share = mask.histogram()[255] / (256 * 256)
        results.append(Result(path, f"{share:.0%} of it is learned.", mask=str(file)))
    window._show_preview(results)
    window.panel.tell("A preview: nothing was written.")
    return window


def _statistics(app: TrainUI) -> tkinter.Misc:
    """Of images of many sizes, in place of the cats."""
    from modules.ui.windows.dataset_tools import open_statistics
    from modules.ui.windows.StatisticsWindow import StatisticsWindow

    example.write_walks(Path(WALKS))
    app.settings.set_many({"concepts.0.path": WALKS, "concepts.0.name": "walks"})
    open_statistics(app, 0)
    window = next(one for one in app.winfo_children() if type(one) is StatisticsWindow)
    window.geometry("1000x790")
    wait_for(app, lambda: window._shown is not None and not window._shown.reading)
    window._is_open = False  # it keeps the figures of the walks
    app.settings.set_many({"concepts.0.path": CATS, "concepts.0.name": "my cat"})
    return window


def _split_videos(app: TrainUI) -> tkinter.Misc:
    """With the pieces of a film of four scenes."""
    from modules.ui.windows.dataset_tools import open_split_videos
    from modules.ui.windows.SplitVideosWindow import SplitVideosWindow

    example.write_film(Path(FILMS) / "cat.mp4")
    app.settings.set_many({"concepts.0.path": FILMS, "concepts.0.name": "films"})
    open_split_videos(app, 0)
    window = next(one for one in app.winfo_children() if type(one) is SplitVideosWindow)
    window.geometry("740x620")
    window.seconds.delete(0, "end")
    window.seconds.insert(0, "3")
    window.preview()
    wait_for(app, lambda: window.run is None)
    app.settings.set_many({"concepts.0.path": CATS, "concepts.0.name": "my cat"})
    return window


def _several_machines(app: TrainUI) -> tkinter.Misc:
    app.settings.set_many({"num_nodes": 2, "master_addr": "node0.local", "use_torchrun": True})
    app.open_tab("training")._configure_nodes()
    return app.winfo_children()[-1]


def _crash_report(app: TrainUI) -> tkinter.Misc:
    from modules.ui.windows.CrashReportWindow import CrashReportWindow

    folder = Path("workspace/my-cat")
    config = app.settings.config()
    assert config is not None  # no setting is invalid
    example.write_failed_run(folder, config, NOW)
    return CrashReportWindow(app, folder)


def _problems(app: TrainUI) -> tkinter.Misc:
    app.settings.set("optimizer.learning_rate", "3e-x")
    app.settings.set_many({"num_nodes": 1, "master_addr": "localhost", "batch_size_mode": "global", "batch_size": 6})
    app.open_tab("training")
    return app


def _queue(app: TrainUI) -> tkinter.Misc:
    """With a grid of runs, of which one has failed and one is running."""
    app.settings.set("num_nodes", 1)  # after the picture of several machines, which the queue refuses
    app.queue._next_start = math.inf  # it only looks as if it were on
    example.write_queue(app.queue.queue, app.settings.config(), NOW)
    tab = app.open_tab("queue")
    app.queue.look()
    wait_for(app, lambda: app.queue.view.running)
    settle(app)
    tab.table.selection_set(app.queue.view.rows[1].id)
    return app


def _monitor(app: TrainUI) -> tkinter.Misc:
    """With the samples that the base model could not draw."""
    tab = app.open_tab("monitor")
    settle(app)
    tab.samples.strip._scroll(0, "moveto", "1.0")
    return app


def _sampling(app: TrainUI) -> tkinter.Misc:
    """With the digits that the base model could not draw, at all steps."""
    import customtkinter as ctk

    tab = app.open_tab("sampling")
    settle(app)
    gallery = tab.gallery
    (size,) = (menu for menu in gallery.title.master.winfo_children() if isinstance(menu, ctk.CTkOptionMenu))
    size.set("Small")
    gallery._resize("Small")
    settle(app)
    gallery.grid_view._scroll(1, "moveto", "1.0")
    gallery.compare(gallery.table.rows[-1], gallery.table.steps[0], gallery.table.steps[-1])
    gallery.grid_view._scroll(0, "moveto", "0.0")
    return app


def _finished(app: TrainUI) -> tkinter.Misc:
    tab = app.open_tab("monitor")
    settle(app)
    tab.trying.generate()
    wait_for(app, lambda: not tab.trying.is_generating)
    tab.samples.strip._scroll(0, "moveto", "1.0")
    return app


def _runs(app: TrainUI) -> RunsWindow:
    """The demo, and copies of it as it was at earlier steps."""
    from modules.config.files import load_config, save_config
    from modules.runs.marks import change_marks
    from modules.runs.RunIndex import RunIndex
    from modules.ui.models.RunsModel import RunsModel
    from modules.ui.windows.RunsWindow import RunsWindow

    demo, folder = RunFolder(DEMO), RUN.parent
    for number, (name, step) in enumerate((("demo-first", 200), ("demo-again", STEP))):
        copy = demo_run.copy_demo(demo, folder / name, NOW - 7200 * (2 - number), step)
        config = load_config(copy.config_path)
        config.max_steps, config.workspace_dir = step, str(folder / name)
        save_config(config, copy.config_path)
        copy.write_exit("finished" if number else "stopped", rank=0)
    change_marks(
        folder / "demo-again", name="Enough steps", tags=("good", "digits"), note="As good as 500 steps.", star=True
    )
    with patch.object(RunsModel, "start", lambda model: [RunIndex(one).refresh() for one in model.folders]):
        window = RunsWindow(app)
        wait_for(app, lambda: window.table.runs and all(run.row.is_read for run in window.table.runs))
    window.geometry("1240x560")
    settle(app)
    window.list.choose_folders([run.folder for run in window.table.runs if run.row.marks.star])
    return window


def _compare(app: TrainUI) -> tkinter.Misc:
    from modules.ui.windows.CompareRunsWindow import CompareRunsWindow

    runs = _runs(app)
    window = CompareRunsWindow(app, tuple(run.folder for run in runs.table.shown()))
    runs.destroy()
    wait_for(app, lambda: window.pages)
    window.geometry("1240x560")
    return window


EXAMPLES = {
    "home": Scene(_tab("home"), size="1280x680"),
    "model": Scene(_tab("model"), size=LOW),
    "dataset": Scene(_dataset),
    "training": Scene(_tab("training")),
    "multi_gpu": Scene(_tab("multi-GPU"), size="1280x975"),
    "concept": Scene(_concept),
    "crash_report": Scene(_crash_report),
    "dataset_window": Scene(_dataset_window),
    "mask_painter": Scene(_mask_painter),
    "crop": Scene(_cropping),
    "captioner": Scene(_captioner, size="1280x1000"),
    "masks_window": Scene(_masks_window, size="1280x1000"),
    "statistics": Scene(_statistics),
    "split_videos": Scene(_split_videos),
    "several_machines": Scene(_several_machines),
    "queue": Scene(_queue, size=LOW),
    "problems": Scene(_problems),
}
RUNNING = {
    "monitor_dark": Scene(_monitor),
    "sampling": Scene(_sampling, size="1360x800"),
    "backup": Scene(_tab("backup"), size=LOW),
    "monitor_light": Scene(_monitor, "light"),
}
FINISHED = {
    "finished": Scene(_finished, size="1280x1000"),
    "runs": Scene(_runs),
    "compare": Scene(_compare),
}
PICTURES = ("demo", *EXAMPLES, *RUNNING, *FINISHED)
SHOW_THE_DEMO = {"demo", "home", *RUNNING, *FINISHED}  # pictures that need a trained one
