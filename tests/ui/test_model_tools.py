"""The window of the LoRA and model tools: each is the script that a terminal has."""

import threading
from pathlib import Path
from types import SimpleNamespace

import pytest

from modules.config.errors import UserError
from modules.ui.models.model_tools import TOOLS, tool_options, with_labels_of
from modules.ui.windows.ModelToolsWindow import ModelToolsWindow
from scripts import convert, lora

LORAS = [("cat.safetensors", "0.8"), (" ", "1"), ("dog.safetensors", "")]
ALL_VALUES = {
    "base": "base", "target": "new.safetensors", "loras": LORAS, "dtype": "float16", "config": "folder", "rank": "8",
    "family": "Stable Diffusion XL", "source": "-old.safetensors", "keep": "0.9", "tuned": "tuned", "kohya": True,
}  # fmt: skip


def tool(command: str):
    return next(tool for tool in TOOLS if tool.command == command)


@pytest.mark.parametrize("tool", TOOLS, ids=lambda tool: tool.label)
def test_every_field_is_passed_to_the_script(tool):
    parse = lora.parse if tool.script == "lora.py" else convert.parse
    args = vars(parse(tool_options(tool, ALL_VALUES)))
    expected = {
        **{name: value for name, value in ALL_VALUES.items() if isinstance(value, str)},
        "loras": ["cat.safetensors:0.8", "dog.safetensors"], "family": "sdxl", "kohya": True,
        "rank": 8, "keep": 0.9,
    }  # fmt: skip
    for field in tool.fields:
        given = args["lora" if field.name == "loras" else field.name]
        assert (str(given) if isinstance(given, Path) else given) == expected[field.name]


@pytest.mark.parametrize(
    ("command", "changes", "sentence"),
    [
        ("merge", {"target": " "}, "Save as is empty: fill it in."),
        ("merge", {"loras": []}, "LoRAs is empty: choose a file."),
        ("merge", {"loras": [("cat", "strong")]}, "Strength 'strong' is not a number: change it."),
        ("extract", {"rank": ""}, "Rank is empty: fill it in."),
        ("resize", {"rank": "many"}, "Max rank 'many' is not a number: change it."),
    ],
)
def test_what_is_missing_is_said_before_a_process_starts(command, changes, sentence):
    with pytest.raises(ValueError, match=sentence):
        tool_options(tool(command), {**ALL_VALUES, **changes})


def test_what_may_be_empty_is_left_out():
    options = tool_options(tool(""), {"source": "model", "target": "new"})
    assert options == ["--", "model", "new"]
    assert with_labels_of(tool(""), "give a folder as --config.") == "give a folder as Diffusers config folder."


@pytest.fixture
def window(app, monkeypatch):
    """The window, whose scripts are recorded instead of started."""
    made = []

    def make(tool, options):
        script = SimpleNamespace(tool=tool, options=options, end=threading.Event(), result=b"", warnings="")
        script.is_cancelled = False

        def run():
            script.end.wait()
            if isinstance(script.result, Exception):
                raise script.result
            return script.result

        def cancel():
            script.is_cancelled = True
            script.end.set()

        script.run, script.cancel = run, cancel
        made.append(script)
        return script

    monkeypatch.setattr("modules.ui.windows.ModelToolsWindow.tool_run", make)
    window = ModelToolsWindow(app)
    yield window, made
    window.destroy()


def test_a_tool_runs_with_its_own_result_error_and_cancel(app, window, wait_for):
    window, made = window
    window._kept |= {"loras": [("cat.safetensors", "0.5")], "target": "merged"}
    window._read = {}
    window.show_tool("Merge into a model")
    window.start()
    assert made[0].options[:5] == ["merge", "--lora", "cat.safetensors:0.5", "--", app.settings.get("model.base")]
    assert window.bar.is_moving
    assert window.button.cget("text") == "Cancel"
    made[0].result, made[0].warnings = b"merged\n", "2 layers are left out, see --config."
    made[0].end.set()
    wait_for(app, lambda: not window.is_running)
    assert window.note.cget("text") == "Saved merged.\n2 layers are left out, see Diffusers config folder."
    window.show_tool("Combine LoRAs")  # asks for the same LoRAs and file
    window.start()
    made[1].result = UserError("'merged' exists already: choose another path.")
    made[1].end.set()
    wait_for(app, lambda: not window.is_running)
    assert window.note.cget("text") == "'merged' exists already: choose another path."
    window.start()
    window.start()
    assert made[2].is_cancelled
    assert window.note.cget("text") == "Canceled."
    assert not window.bar.is_moving
