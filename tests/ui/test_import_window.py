"""Opening another program's settings file shows what becomes of it, and replaces nothing before that is wanted."""

import json
import re

import pytest

from modules.ui.windows.ImportWindow import ImportWindow

SETTINGS = {
    "__version": 11,
    "training_method": "LORA",
    "model_type": "STABLE_DIFFUSION_15",
    "lora_rank": 4,
    "resolution": "640",
    "concepts": [{"name": "cats", "path": "/cats", "image": {}, "text": {}}],
}


@pytest.fixture
def window(app, tmp_path, wait_for):
    path = tmp_path / "theirs.json"
    path.write_text(json.dumps(SETTINGS), encoding="utf-8")
    app.top_bar.open_file(path)
    wait_for(app, lambda: any(isinstance(child, ImportWindow) for child in app.root.winfo_children()))
    return next(child for child in app.root.winfo_children() if isinstance(child, ImportWindow))


def press(window, text: str) -> None:
    next(button for button in window.bar.winfo_children() if button.cget("text") == text).invoke()


def test_the_lists_are_shown_first_and_cancel_changes_nothing(app, window):
    before = app.settings.values
    shown = window.box.get("1.0", "end")
    assert all(text in shown for text in ("lora_rank 4 -> lora.rank 4", "another meaning here", "Not taken"))
    count = re.search("with the same meaning: ([0-9]+)", shown)[1]
    assert f": {count} settings with the same meaning, " in window.heading.cget("text")
    press(window, "Cancel")
    assert app.settings.values == before


def test_the_settings_are_taken_in_one_step_and_never_saved_over_the_file(app, window):
    before = app.settings.values
    press(window, "Use settings")
    assert (app.settings.get("lora.rank"), app.settings.get("epochs")) == (4, 100)
    assert app.settings.source_file == ""
    app.settings.undo()
    assert app.settings.values == before


def test_the_data_alone_leaves_all_else(app, window):
    app.settings.set("lora.rank", 7)
    press(window, "Data only")
    assert (app.settings.get("lora.rank"), app.settings.get("data.resolution")) == (7, 640)
    assert app.settings.get("concepts.0.path") == "/cats"
