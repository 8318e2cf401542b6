"""The windows that divide videos and copy a dataset, with the scripts that they run."""

import os

import pytest

from modules.ui.windows.CopyDatasetWindow import CopyDatasetWindow
from modules.ui.windows.dataset_tools import open_cleaned_copy, open_split_videos
from modules.ui.windows.SplitVideosWindow import FRAMES, SplitVideosWindow, spoken_seconds
from tests.support.pictures import write_pictures
from tests.support.videos import write_video


@pytest.fixture
def opened(app):
    """A function that opens the window of a kind for the first concept, whose folder is given."""

    def open_it(kind, opener, folder):
        app.settings.set("concepts.0.path", str(folder))
        opener(app, 0)
        return next(one for one in app.root.winfo_children() if type(one) is kind)

    return open_it


def test_pieces_are_previewed_written_and_added_to_the_dataset(app, opened, wait_for, tmp_path):
    (tmp_path / "walks").mkdir()
    write_video(tmp_path / "walks" / "walk.mp4", 32, fps=8)
    window = opened(SplitVideosWindow, open_split_videos, tmp_path / "walks")
    assert window.target.get() == str(tmp_path / "walks-clips")
    window.seconds.delete(0, "end")
    window.seconds.insert(0, "2")
    window.preview()
    wait_for(app, lambda: window.run is None)
    assert [(piece.start, piece.end) for piece in window.grid_view.pieces] == [(0, 2), (2, 4)]
    assert window.state_label.cget("text") == "2 pieces; nothing was written."
    assert not (tmp_path / "walks-clips").exists()
    window.start()
    wait_for(app, lambda: window.run is None)
    assert sorted(path.name for path in (tmp_path / "walks-clips").iterdir()) == ["walk_001.mp4", "walk_002.mp4"]
    assert window.target.get() == str(tmp_path / "walks-clips-2")  # for the next time
    before = len(app.settings.get("concepts"))
    window._actions[0].invoke()
    assert app.settings.get(f"concepts.{before}.path") == str(tmp_path / "walks-clips")


def test_a_low_window_shows_pieces_with_their_names(app, opened):
    """On a screen of 1024 x 700 pixels at a scale of 150 %."""
    app.theme.set_scale(1.5)
    window = opened(SplitVideosWindow, open_split_videos, "films")
    window.geometry("682x440")
    app.update()
    assert window.winfo_height() == 660
    assert window.grid_view.canvas.winfo_height() >= window.grid_view.cell_size()[1]


def test_what_can_not_be_divided_is_said_in_the_words_of_the_window(app, opened, wait_for, tmp_path):
    window = opened(SplitVideosWindow, open_split_videos, write_pictures(tmp_path / "images", [(8, 8)]))
    window.seconds.delete(0, "end")
    window.seconds.insert(0, "x")
    window.start()
    assert window.state_label.cget("text").startswith("At most 'x': is not a number of seconds")
    window.kind.set(FRAMES)
    window.start()
    wait_for(app, lambda: window.run is None)
    assert "has no video files" in window.state_label.cget("text")


def test_a_canceled_run_leaves_nothing_behind(app, opened, wait_for, tmp_path):
    for number in range(3):
        (tmp_path / "walks").mkdir(exist_ok=True)
        write_video(tmp_path / "walks" / f"{number}.mp4", 60, size=(320, 240))
    window = opened(SplitVideosWindow, open_split_videos, tmp_path / "walks")
    window.start()
    wait_for(app, lambda: window.run.progress.share is not None)
    window.start()
    wait_for(app, lambda: window.run is None)
    assert window.state_label.cget("text") == "Canceled: nothing was written."
    assert os.listdir(tmp_path) == ["walks"]


def test_a_cleaned_copy_is_written_and_trained_in_place_of_the_original(app, opened, wait_for, tmp_path):
    folder = write_pictures(tmp_path / "cats", [(16, 16), (24, 16)], ["a", "b"])
    window = opened(CopyDatasetWindow, open_cleaned_copy, folder)
    window.start()
    wait_for(app, lambda: window.run is None)
    assert window.state_label.cget("text") == f"2 images in {tmp_path / 'cats-clean'}"
    window._actions[0].invoke()
    assert app.settings.get("concepts.0.path") == str(tmp_path / "cats-clean")


def test_times_are_read_as_in_a_player():
    assert [spoken_seconds(one) for one in (4.16, 75, 3727.5)] == ["0:04.2", "1:15.0", "1:02:07.5"]
