"""Files and folders that are dropped on the window."""

import json
import sys
import tkinter

import pytest

from modules.ui.file_drops import accept_drops, dropped_paths
from modules.ui.windows.ImportWindow import ImportWindow

URIS = "text/uri-list"  # what file managers offer on X11
FOREIGN = {"__version": 11, "training_method": "LORA", "model_type": "STABLE_DIFFUSION_15", "lora_rank": 4}


@pytest.fixture
def app(shared_app):
    return shared_app


@pytest.fixture
def drop(app, wait_for):
    """`drop(data, target)` lets tkdnd, once it is loaded, handle a drop as it does after what X11 sends has come."""
    pytest.importorskip("tkinterdnd2")
    if app.tk.call("tk", "windowingsystem") != "x11":
        pytest.skip("the types of dropped data are those of X11")
    wait_for(app, lambda: app.tk.call("bind", app, "<<Drop>>"))

    def drop_it(data, target=None):
        call, target = app.tk.call, target or app.content
        call("tkdnd::generic::HandleEnter", target, "source", (URIS,), (), ("copy",), "")
        call("tkdnd::generic::SetDroppedData", data)
        call("tkdnd::generic::HandlePosition", target, "source", "", 5, 5)
        action = call("tkdnd::generic::HandleDrop", "", "", "", 5, 5, 0)
        app.update()
        return str(action)

    return drop_it


def test_a_settings_file_of_chorus_is_opened(app, drop, tmp_path):
    path = tmp_path / "my {odd} run.yaml"
    path.write_text("lora: {rank: 7}\n", encoding="utf-8")
    assert drop((str(path),)) == "copy"
    assert app.settings.get("lora.rank") == 7
    assert app.settings.source_file == str(path)


def test_a_file_of_another_trainer_is_shown_before_it_is_taken(app, drop, tmp_path, wait_for):
    path = tmp_path / "theirs.json"
    path.write_text(json.dumps(FOREIGN), encoding="utf-8")
    before = app.settings.values
    drop((str(path),))
    wait_for(app, lambda: any(isinstance(child, ImportWindow) for child in app.root.winfo_children()))
    assert app.settings.values == before


def test_a_model_that_chorus_lacks_is_refused_in_a_sentence(app, drop, tmp_path, wait_for):
    path = tmp_path / "theirs.json"
    path.write_text(json.dumps({**FOREIGN, "model_type": "WUERSTCHEN_2"}), encoding="utf-8")
    drop((str(path),))
    wait_for(app, lambda: "does not train this model" in app.message.cget("text"))
    assert "report" not in app.message.cget("text")


def test_folders_are_concepts_on_the_dataset_tab_and_are_explained_elsewhere(app, drop, tmp_path):
    folders = [tmp_path / "my cats", tmp_path / "dogs"]
    for folder in folders:
        folder.mkdir()
    app.open_tab("training")
    before = len(app.settings.get("concepts"))
    drop(tuple(map(str, folders)))
    assert len(app.settings.get("concepts")) == before
    assert "Dataset tab" in app.message.cget("text")
    app.open_tab("dataset")
    drop(tuple(map(str, folders)))
    assert [concept.path for concept in app.settings.get("concepts")[before:]] == list(map(str, folders))


def test_the_dataset_window_adds_folders_and_shows_the_last_one(app, drop, tmp_path, monkeypatch):
    from modules.ui.windows.DatasetWindow import open_dataset

    monkeypatch.setattr("modules.ui.windows.DatasetWindow.NUM_DECODERS", 0)
    (tmp_path / "foxes").mkdir()
    window, number = open_dataset(app, 0), len(app.settings.get("concepts"))
    drop((str(tmp_path / "foxes"), str(tmp_path / "a.png")), window.cells.canvas)
    assert app.settings.get(f"concepts.{number}.path") == str(tmp_path / "foxes")
    assert window.number == number
    assert "Only folders" in app.message.cget("text")


def test_several_files_and_files_of_no_settings_are_refused_in_a_sentence(app, drop, tmp_path):
    images = [tmp_path / "a.png", tmp_path / "b.png"]
    for image in images:
        image.write_bytes(b"\x89PNG")
    drop(tuple(map(str, images)))
    assert "2 files were dropped" in app.message.cget("text")
    drop((str(images[0]),))
    assert "settings files end in" in app.message.cget("text")


@pytest.mark.parametrize(
    ("data", "paths"),
    [
        ("/a/b.yaml", ["/a/b.yaml"]),
        ("{/my cats/a b.json} /c", ["/my cats/a b.json", "/c"]),
        ("{C:/Users/Jörg/my cats} D:/x.toml", ["C:/Users/Jörg/my cats", "D:/x.toml"]),
        (r"C:\\cats\\a.json", ["C:\\cats\\a.json"]),
        (r"/odd\{name /b", ["/odd{name", "/b"]),
        ("/odd{name", ["/odd{name"]),
        ("{/unbalanced", ["{/unbalanced"]),
        ("", []),
    ],
)
def test_dropped_lists_are_read_as_tcl_writes_them(data, paths, monkeypatch):
    monkeypatch.setattr("os.path.normpath", lambda path: path)
    assert dropped_paths(tkinter.Tcl(), data) == paths


@pytest.mark.parametrize("fault", [ImportError, RuntimeError("Unable to load tkdnd library.")])
def test_without_the_package_or_its_library_the_window_takes_no_drops(fault, monkeypatch):
    class Broken:
        @staticmethod
        def _require(window):
            raise fault

    broken = None if fault is ImportError else Broken
    monkeypatch.setitem(sys.modules, "tkinterdnd2.TkinterDnD", broken)
    monkeypatch.setitem(sys.modules, "tkinterdnd2", broken)
    assert accept_drops(tkinter.Tcl(), print) is False
