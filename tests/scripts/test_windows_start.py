"""The batch files that start something, really run by Wine's cmd, with a stand-in for Python that says what it got.

Wine's cmd is not the one of Windows: it takes percent signs away from what it has inserted for %~dp0 and %*, and has no
%CMDCMDLINE%. So neither percent signs nor the pause after a double click can be tried here.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support.windows_program import telling_program

REPOSITORY = Path(__file__).resolve().parents[2]
BATCH_FILES = ("start-ui.bat", "start-multi-gpu.bat", "scripts/start.bat", "scripts/train_multigpu.bat")
TRAINING_CODE = 7

needs_wine = pytest.mark.skipif(shutil.which("wine") is None, reason="wine runs batch files elsewhere than on Windows")


@pytest.mark.parametrize("name", BATCH_FILES)
def test_batch_files_have_the_line_ends_without_which_cmd_misses_labels(name):
    content = (REPOSITORY / name).read_bytes()
    assert content.isascii()
    assert content.count(b"\n") == content.count(b"\r\n") > 0


@pytest.fixture(scope="module")
def wine_environment(tmp_path_factory) -> Iterator[dict[str, str]]:
    """For Windows in a folder of its own."""
    prefix = tmp_path_factory.mktemp("wine") / "prefix"
    link_windows(prefix)
    kept = {name: value for name, value in os.environ.items() if name not in ("DISPLAY", "PYTHON")}
    quiet = {"WINEDEBUG": "-all", "WINEDLLOVERRIDES": "mscoree,mshtml="}
    windows = {"PATHEXT": ".com;.exe;.bat;.cmd"}  # no registry has it
    environment = kept | quiet | windows | {"WINEPREFIX": str(prefix), "LC_ALL": "C.UTF-8"}
    command = ["wine", "cmd", "/c", "exit 0"]
    made = subprocess.run(command, env=environment, stdin=subprocess.DEVNULL, capture_output=True)
    if made.returncode != 0:
        pytest.skip(f"wine does not start: {made.stderr.decode(errors='replace')[-200:]}")
    yield environment
    subprocess.run(["wineserver", "-k"], env=environment, capture_output=True)


def link_windows(prefix: Path) -> None:
    """Windows' programs as links to those of Wine, which else copies 700 MB; where they are elsewhere it does."""
    programs = next(Path("/usr/lib").glob("*/wine/x86_64-windows"), None)
    if programs is None:
        return
    system = prefix / "drive_c" / "windows" / "system32"
    system.mkdir(parents=True)
    for path in programs.iterdir():
        (system / path.name).symlink_to(path)
    (prefix / ".update-timestamp").write_text("disable")  # Wine is not to make the rest


@pytest.fixture
def chorus(tmp_path) -> Path:
    """A checkout in a folder with an awkward name, with an environment whose Python ends with TRAINING_CODE."""
    root = tmp_path / "a b'cd&e!ü"
    (root / "scripts").mkdir(parents=True)
    for name in BATCH_FILES:
        shutil.copy(REPOSITORY / name, root / name)
    python = root / ".venv" / "Scripts" / "python.exe"
    python.parent.mkdir(parents=True)
    python.write_bytes(telling_program(TRAINING_CODE))
    return root


@pytest.fixture
def start(wine_environment, chorus, tmp_path) -> Callable[..., tuple[int, list[str], str]]:
    """A function that starts a batch file in another folder and gives (exit code, what Python was told, errors).

    tools: the folder with the system's Python.
    """

    def start(name: str, *arguments: str, tools: Path | None = None, **variables: str) -> tuple[int, list[str], str]:
        environment = wine_environment | variables | ({"WINEPATH": windows_path(tools)} if tools else {})
        command = ["wine", windows_path(chorus / name), *arguments]
        done = subprocess.run(command, env=environment, cwd=tmp_path, stdin=subprocess.DEVNULL, capture_output=True)
        errors = [line for line in done.stderr.decode(errors="replace").splitlines() if "Chorus" in line]
        return done.returncode, done.stdout.decode("utf-16-le").splitlines(), "\n".join(errors)

    return start


def windows_path(path: Path) -> str:
    return "Z:" + str(path).replace("/", "\\")


@pytest.fixture
def tools(tmp_path) -> Path:
    """A folder with a Python that does all that it is asked to."""
    folder = tmp_path / "my & tools"
    folder.mkdir()
    (folder / "python.exe").write_bytes(telling_program(0))
    return folder


@needs_wine
@pytest.mark.parametrize(
    ("name", "setup", "script"),
    [
        ("start-multi-gpu.bat", "", "start_multi_gpu.py"),
        ("start-ui.bat", "--ui", "train_ui.py"),
        ("scripts/train_multigpu.bat", "", "train_multigpu.py"),
    ],
)
def test_it_sets_up_then_hands_on_arguments_folder_and_exit_code(name, setup, script, start, tools, chorus, tmp_path):
    arguments = ["--config", "my & your!ü 'run'.yaml", 'say "x y"', "^caret (and) brackets^"]
    if setup:  # a Python of one's own choice, then
        python = f'"{windows_path(tools)}\\python.exe"'
        code, told, errors = start(name, *arguments, PYTHON=python.strip('"'))
    else:
        python = "python"
        code, told, errors = start(name, *arguments, tools=tools)
    assert (code, errors) == (TRAINING_CODE, "")
    set_up, folder_of_set_up, started, folder = told
    assert set_up.rstrip() == f"{python} scripts\\setup_env.py {setup}".rstrip()
    assert folder_of_set_up == windows_path(chorus)
    typed = r''' --config "my & your!ü 'run'.yaml" "say \"x y\"" "^caret (and) brackets^"'''
    scripts = windows_path(chorus / "scripts")
    assert started == rf'"{scripts}\..\.venv\Scripts\python.exe" "{scripts}\{script}"{typed}'
    assert folder == windows_path(tmp_path)


@needs_wine
def test_without_a_python_one_sentence_says_so(start):
    code, told, errors = start("start-multi-gpu.bat")
    assert (code, told) == (1, [])
    assert errors.startswith("Chorus needs Python 3.10 to 3.14 and found none; install one from https://")
    assert errors.count("\n") == 0


@needs_wine
def test_a_python_chosen_by_hand_that_does_not_work_is_refused_and_not_replaced(start, tools):
    code, told, errors = start("start-multi-gpu.bat", tools=tools, PYTHON=r"Z:\no where\python.exe")
    assert (code, told) == (1, [])
    assert errors.startswith(r'PYTHON="Z:\no where\python.exe" is not a working Python 3.10 to 3.14')


@needs_wine
def test_a_python_that_is_a_batch_file_comes_back(start, tools):
    (tools / "python.exe").unlink()
    (tools / "python.bat").write_bytes(b"@exit /b 0\r\n")
    code, told, _ = start("start-multi-gpu.bat", tools=tools)
    assert (code, len(told)) == (TRAINING_CODE, 2)


@needs_wine
def test_where_windows_starts_a_python_that_will_not_do_another_one_is_taken(start, tools):
    (tools / "python.exe").unlink()
    (tools / "py.bat").write_bytes(b"@if not %1==-3.12 exit /b 1\r\n@exit /b 0\r\n")
    code, told, _ = start("start-multi-gpu.bat", tools=tools)
    assert (code, len(told)) == (TRAINING_CODE, 2)
