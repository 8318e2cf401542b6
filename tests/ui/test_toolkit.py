"""Loading CustomTkinter while other windows are open."""

import os
import subprocess
import sys

import pytest

from modules.config.presets import ROOT

SCRIPT = "from modules.ui.toolkit import load_toolkit; load_toolkit(); import shutil; print(shutil.copy.__module__)"
OVERTAKEN = """
import os
mkdir = os.mkdir
def overtaken(path, *mode):
    mkdir(path, *mode)
    mkdir(path, *mode)
os.mkdir = overtaken
"""


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere CustomTkinter copies no fonts")
def test_a_font_that_an_open_window_has_mapped_is_never_written_into(tmp_path):
    fonts = tmp_path / ".fonts"

    def load() -> dict[str, tuple[int, int]]:
        environment = {**os.environ, "HOME": str(tmp_path)}
        done = subprocess.run([sys.executable, "-c", SCRIPT], cwd=ROOT, env=environment, capture_output=True, text=True)
        assert (done.stdout, done.stderr) == ("shutil\n", "")
        return {path.name: (path.stat().st_ino, path.stat().st_mtime_ns) for path in fonts.iterdir()}

    first = load()
    assert "CustomTkinter_shapes_font.otf" in first
    assert load() == first
    other = fonts / "CustomTkinter_shapes_font.otf"
    other.write_bytes(b"of another version")
    with other.open("rb") as mapped:
        assert load().keys() == first.keys()
        assert mapped.read() == b"of another version"
    assert other.read_bytes() != b"of another version"


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere CustomTkinter copies no fonts")
def test_a_window_that_starts_at_the_same_moment_and_makes_the_folder_first_is_no_error(tmp_path):
    environment = {**os.environ, "HOME": str(tmp_path)}
    command = [sys.executable, "-c", OVERTAKEN + SCRIPT]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("shutil\n", "")
    assert (tmp_path / ".fonts" / "CustomTkinter_shapes_font.otf").exists()
