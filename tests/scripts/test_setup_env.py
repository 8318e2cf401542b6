"""scripts/setup_env.py makes the environment once; start-multi-gpu.sh uses it from any folder."""

import ast
import errno
import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest

from scripts import setup_env
from scripts.setup.installing import check_not_running, create_venv
from scripts.setup.lock import exclusive
from scripts.setup.SetupError import SetupError
from scripts.setup.stamp import venv_python, write_stamp
from scripts.setup_env import is_ready, set_up

REPOSITORY = Path(setup_env.__file__).resolve().parent.parent
BASE = ["requirements.txt"]
WITH_TESTS = ["requirements.txt", "requirements-test.txt"]
SCRIPTS = REPOSITORY / "scripts"
SETUP_FILES = [SCRIPTS / "setup_env.py", SCRIPTS / "__init__.py", *(SCRIPTS / "setup").glob("*.py")]
START_SCRIPTS = ("start-multi-gpu.sh", "start-ui.sh", "scripts/train_distributed.sh", "scripts/train_multigpu.sh")
needs_posix = pytest.mark.skipif(os.name == "nt", reason="stands in for Python with a shell script")


def silent(line: str) -> None:
    pass


class Workshop:
    """A repository with two requirements files, and an environment that is made and filled without pip."""

    def __init__(self, root: Path):
        self.root = root
        self.made = 0
        self.installed = []
        (root / "requirements.txt").write_text("torch==2.13.0  # tensors\nnumpy==2.4.6\n")
        (root / "requirements-test.txt").write_text("-r requirements.txt\npytest==9.2.0\n")

    def create(self, root: Path) -> None:
        self.made += 1
        python = venv_python(root)
        python.parent.mkdir(parents=True)
        python.write_text("#!/bin/sh\nexit 0\n")
        python.chmod(0o755)

    def install(self, root: Path, arguments: list[str], say) -> None:
        self.installed.append(arguments)

    def set_up(self, names=BASE, index="", install=None) -> None:
        if not is_ready(self.root, names, index):
            set_up(self.root, names, index, silent, create=self.create, install=install or self.install)


@pytest.fixture
def workshop(tmp_path, monkeypatch) -> Workshop:
    if os.name == "nt":
        pytest.skip("stands in for Python with a shell script")
    monkeypatch.setattr("scripts.setup.place.shutil.disk_usage", lambda path: SimpleNamespace(free=10**12))
    return Workshop(tmp_path)


def interrupted(root, arguments, say):
    raise KeyboardInterrupt


# --- once, and again when something changed


def test_the_second_set_up_does_nothing(workshop):
    workshop.set_up()
    workshop.set_up()
    assert workshop.made == 1
    assert workshop.installed == [["-r", str(workshop.root / "requirements.txt")]]


def test_changed_requirements_are_installed_into_the_same_environment(workshop):
    workshop.set_up()
    (workshop.root / "requirements.txt").write_text("numpy==2.4.7\n")
    workshop.set_up()
    assert workshop.made == 1
    assert len(workshop.installed) == 2


def test_what_the_tests_need_is_installed_on_top_and_serves_a_plain_start_too(workshop):
    workshop.set_up()
    workshop.set_up(WITH_TESTS)
    workshop.set_up(BASE)
    assert workshop.installed[1:] == [
        ["-r", str(workshop.root / "requirements.txt"), "-r", str(workshop.root / "requirements-test.txt")]
    ]


def test_another_build_of_torch_gets_a_new_environment(workshop):
    workshop.set_up()
    workshop.set_up(index="https://example.org/rocm")
    assert workshop.made == 2
    assert is_ready(workshop.root, BASE, "https://example.org/rocm")


def test_an_environment_whose_python_is_gone_is_made_anew(workshop):
    workshop.set_up()
    venv_python(workshop.root).unlink()
    assert not is_ready(workshop.root, BASE, "")
    workshop.set_up()
    assert workshop.made == 2


def test_another_python_behind_the_environment_installs_again(workshop):
    workshop.set_up()
    python = venv_python(workshop.root)
    newer = workshop.root / "python3.99"
    python.rename(newer)
    python.symlink_to(newer)
    assert not is_ready(workshop.root, BASE, "")
    workshop.set_up()
    assert len(workshop.installed) == 2


def test_a_damaged_stamp_installs_again(workshop):
    workshop.set_up()
    (workshop.root / ".venv" / "setup.json").write_text('{"interpreter": "/usr/b')
    workshop.set_up()
    assert workshop.made == 1
    assert len(workshop.installed) == 2


# --- interruptions


def test_an_interrupted_installation_goes_on_next_time(workshop):
    with pytest.raises(KeyboardInterrupt):
        workshop.set_up(install=interrupted)
    assert not is_ready(workshop.root, BASE, "")
    workshop.set_up()
    assert workshop.made == 1
    assert is_ready(workshop.root, BASE, "")


def test_after_an_interrupted_upgrade_the_old_requirements_do_not_count_as_installed(workshop):
    workshop.set_up()
    old = (workshop.root / "requirements.txt").read_text()
    (workshop.root / "requirements.txt").write_text("numpy==2.4.7\n")
    with pytest.raises(KeyboardInterrupt):
        workshop.set_up(install=interrupted)
    (workshop.root / "requirements.txt").write_text(old)
    assert not is_ready(workshop.root, BASE, "")


def test_after_an_interruption_another_build_of_torch_still_gets_a_new_environment(workshop):
    with pytest.raises(KeyboardInterrupt):
        workshop.set_up(index="https://example.org/rocm", install=interrupted)
    workshop.set_up()
    assert workshop.made == 2


def test_an_environment_that_was_only_half_made_is_made_anew(workshop):
    half_made = workshop.root / ".venv" / "lib"
    half_made.mkdir(parents=True)
    workshop.set_up()
    assert workshop.made == 1
    assert not half_made.exists()


def test_an_interrupted_write_leaves_the_old_stamp(workshop, monkeypatch):
    workshop.set_up()
    before = (workshop.root / ".venv" / "setup.json").read_text()
    monkeypatch.setattr(os, "replace", lambda source, target: interrupted(None, None, None))
    with pytest.raises(KeyboardInterrupt):
        write_stamp(workshop.root, "elsewhere", {})
    assert (workshop.root / ".venv" / "setup.json").read_text() == before


def test_two_set_ups_at_the_same_time_install_once(workshop):
    second_waits = threading.Event()
    first_installs = threading.Event()

    def slow_install(root, arguments, say):
        first_installs.set()
        assert second_waits.wait(120)
        workshop.install(root, arguments, say)

    def second():
        set_up(workshop.root, BASE, "", lambda line: second_waits.set(), workshop.create, workshop.install)

    first = threading.Thread(target=workshop.set_up, kwargs={"install": slow_install})
    first.start()
    assert first_installs.wait(120)
    second()
    first.join()
    assert len(workshop.installed) == 1


# --- what pip is told


def test_an_index_serves_torch_alone_and_first(workshop):
    calls = setup_env.pip_arguments(workshop.root, BASE, "https://example.org/cpu")
    assert calls == [
        ["torch==2.13.0", "--index-url", "https://example.org/cpu"],
        ["-r", str(workshop.root / "requirements.txt")],
    ]


def test_the_torch_of_the_real_requirements_is_found():
    first, _ = setup_env.pip_arguments(REPOSITORY, BASE, "https://example.org/cpu")
    assert first[0].startswith("torch==")


# --- a Python that won't do


@pytest.mark.parametrize("path", SETUP_FILES, ids=lambda path: path.name)
def test_a_python_too_old_can_parse_the_script(path):
    source = path.read_text(encoding="utf-8")
    ast.parse(source, feature_version=(3, 6))
    assert "from __future__" not in source  # annotations in there are a SyntaxError before 3.7


def test_the_window_is_refused_without_tkinter_before_anything_is_installed(workshop, monkeypatch, capsys):
    monkeypatch.setattr(setup_env, "has_tkinter", lambda python: False)
    assert setup_env.main(["--ui", "--quiet"], workshop.root) == 1
    assert "tkinter" in capsys.readouterr().err
    assert not (workshop.root / ".venv").exists()


def test_the_window_is_refused_without_tkinter_in_an_environment_that_is_ready(workshop, monkeypatch, capsys):
    workshop.set_up(index=setup_env.wanted_index(workshop.root))
    venv_python(workshop.root).write_text("#!/bin/sh\nexit 1\n")
    assert setup_env.main(["--ui"], workshop.root) == 1
    assert "tkinter" in capsys.readouterr().err
    assert setup_env.main([], workshop.root) == 0


# --- failures


def test_a_new_environment_is_refused_before_the_download_where_the_disk_is_too_full(workshop, monkeypatch):
    monkeypatch.setattr("scripts.setup.place.shutil.disk_usage", lambda path: SimpleNamespace(free=2.4e9))
    with pytest.raises(SetupError, match=r"has 2\.4 GB free, and the packages need 3 GB; free some space"):
        workshop.set_up(index="https://example.org/cpu")
    with pytest.raises(SetupError, match="need 14 GB"):
        workshop.set_up(index="https://example.org/cu130")
    assert workshop.installed == []


def test_a_full_disk_does_not_keep_an_environment_from_its_upgrade(workshop, monkeypatch):
    workshop.set_up()
    monkeypatch.setattr("scripts.setup.place.shutil.disk_usage", lambda path: SimpleNamespace(free=2.4e9))
    workshop.set_up(WITH_TESTS)
    assert len(workshop.installed) == 2


def test_a_folder_that_is_copied_to_the_cloud_is_warned_of(workshop, monkeypatch, capsys):
    monkeypatch.setenv("OneDrive", str(workshop.root.parent))
    workshop.create(workshop.root)  # whose pip does nothing
    assert setup_env.main([], workshop.root) == 0
    assert f"Warning: {workshop.root} is in a folder that OneDrive or iCloud Drive copies" in capsys.readouterr().err


def test_a_failing_pip_shows_its_last_lines_and_one_sentence(workshop, capsys):
    workshop.create(workshop.root)
    pip = 'i=0; while [ $i -lt 20 ]; do i=$((i+1)); echo line $i; done; [ "$1" = -c ] || exit 3'
    venv_python(workshop.root).write_text(f"#!/bin/sh\n{pip}\n")
    assert setup_env.main(["--quiet"], workshop.root) == 1
    *lines, sentence = capsys.readouterr().err.splitlines()
    assert lines == [f"    line {number}" for number in range(6, 21)]
    assert sentence.startswith("Installing the packages failed (pip's exit code 3): check the network and ")
    assert str(workshop.root / ".venv" / "setup.log") in sentence


def test_pip_downloads_to_the_disk_of_the_environment_and_leaves_nothing_there(workshop):
    workshop.create(workshop.root)
    venv_python(workshop.root).write_text('#!/bin/sh\n[ "$1" = -c ] || ls -d "$TMPDIR"\n')
    set_up(workshop.root, BASE, "", silent)
    downloads = workshop.root / ".venv" / "downloads"
    assert (workshop.root / ".venv" / "setup.log").read_text() == f"{downloads}\n"
    assert not downloads.exists()


def test_packages_are_compiled_on_all_cores_when_pip_is_done(workshop):
    workshop.create(workshop.root)
    package = workshop.root / "packages" / "package"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("here = True")
    (package / "of_python_2.py").write_text("print 1")
    there = f"import sysconfig; sysconfig.get_path = lambda name: {str(package.parent)!r}"
    stub = f'case "$2" in *compileall*) exec "{sys.executable}" -c "{there}; $2";; *) echo "$@";; esac'
    venv_python(workshop.root).write_text(f"#!/bin/sh\n{stub}\n")
    set_up(workshop.root, BASE, "", silent)
    assert " --no-compile " in (workshop.root / ".venv" / "setup.log").read_text().splitlines()[0]
    assert Path(importlib.util.cache_from_source(package / "__init__.py")).is_file()


def test_a_torch_that_cannot_be_loaded_is_told_and_is_not_taken_for_installed(workshop):
    workshop.create(workshop.root)
    said = "OSError: [WinError 126] Error loading c10.dll or one of its dependencies."
    venv_python(workshop.root).write_text(f'#!/bin/sh\n[ "$2" != "import torch" ] || {{ echo "{said}"; exit 1; }}\n')
    with pytest.raises(
        SetupError, match=r"can't be loaded: .+ https://aka\.ms/vc14/vc_redist\.x64\.exe, and start again"
    ):
        workshop.set_up()
    assert not is_ready(workshop.root, BASE, "")


def test_a_file_that_cannot_be_removed_is_named_in_a_sentence(workshop, monkeypatch, capsys):
    (workshop.root / ".venv" / "Lib").mkdir(parents=True)

    def rmtree(path):
        raise PermissionError(13, "Access is denied", f"{path}/torch/c10.dll")

    monkeypatch.setattr(shutil, "rmtree", rmtree)
    assert setup_env.main(["--quiet"], workshop.root) == 1
    assert capsys.readouterr().err.endswith(
        "Lib/torch/c10.dll: Access is denied; close what uses it and start again.\n"
    )


def test_packages_are_not_replaced_below_a_running_chorus_on_windows(workshop):
    workshop.create(workshop.root)
    python = venv_python(workshop.root)
    check_not_running(workshop.root, "win32")
    shutil.copy(shutil.which("sleep"), python)
    with subprocess.Popen(["sleep", "600"], executable=python) as process:
        try:
            with pytest.raises(SetupError, match=r"running from this folder.+ close its window"):
                check_not_running(workshop.root, "win32")
            check_not_running(workshop.root, "linux")
        finally:
            process.kill()


@needs_posix
def test_a_disk_without_locks_is_used_without(tmp_path, monkeypatch):
    def flock(file, operation):
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr("fcntl.flock", flock)
    with exclusive(tmp_path / ".venv" / "setup.lock", silent):
        pass


@needs_posix
def test_a_folder_that_cannot_be_written_is_named(tmp_path):
    (tmp_path / ".venv").write_text("in the way")
    with (
        pytest.raises(SetupError, match=r"setup\.lock can't be written .+ folder of your own"),
        exclusive(tmp_path / ".venv" / "setup.lock", silent),
    ):
        pass


# --- for real


@pytest.fixture
def odd_checkout(tmp_path) -> Path:
    """A checkout in a folder with an awkward name, that requires nothing and whose start script tells what it got."""
    root = tmp_path / "a b'cd&e%f!ü"
    (root / "scripts").mkdir(parents=True)
    for name in (*START_SCRIPTS, "scripts/setup_env.py", "scripts/find_python.sh"):
        shutil.copy(REPOSITORY / name, root / name)
    shutil.copytree(REPOSITORY / "scripts" / "setup", root / "scripts" / "setup")
    (root / "requirements.txt").write_text("# nothing\n")
    for name in ("start_multi_gpu.py", "train_ui.py", "train_distributed.py", "train_multigpu.py"):
        (root / "scripts" / name).write_text(
            "import json, os, sys\nprint(json.dumps([sys.prefix, os.getcwd(), sys.argv[1:]]))\nsys.exit(7)\n"
        )
    return root


def make_environment(root: Path) -> None:
    """Really make it, but without pip, which takes seconds."""
    index = setup_env.wanted_index(root)
    set_up(
        root,
        BASE,
        index,
        silent,
        create=lambda root: create_venv(root, ("--without-pip",)),
        install=lambda root, arguments, say: None,
    )


def run_start_script(
    root: Path, *arguments: str, cwd: Path, script: str = "start-multi-gpu.sh", **environ: str
) -> subprocess.CompletedProcess:
    return subprocess.run(
        [shutil.which("bash"), str(root / script), *arguments],
        cwd=cwd,
        env={**os.environ, "PYTHON": sys.executable, **environ},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
    )


def test_a_real_environment_is_made_once_and_found_at_once(odd_checkout, capsys):
    make_environment(odd_checkout)
    stamp = odd_checkout / ".venv" / "setup.json"
    before = stamp.stat().st_mtime_ns
    assert setup_env.main(["--print-python"], odd_checkout) == 0
    out, err = capsys.readouterr()
    python = out.splitlines()[-1]
    assert (err, stamp.stat().st_mtime_ns) == ("", before)
    prefix = subprocess.check_output([python, "-c", "import sys; print(sys.prefix)"], text=True).strip()
    assert Path(prefix) == odd_checkout / ".venv"


@needs_posix
@pytest.mark.parametrize("script", START_SCRIPTS)
def test_the_start_script_works_from_any_folder_and_hands_on_arguments_and_exit_code(odd_checkout, tmp_path, script):
    make_environment(odd_checkout)
    arguments = ["--config", 'my run\'s "$HOME" & 5% `x`!ü.yaml', ""]
    told = [str(odd_checkout / ".venv"), str(tmp_path), arguments]
    done = run_start_script(odd_checkout, *arguments, cwd=tmp_path, script=script)
    assert done.returncode == 7, done.stderr
    assert json.loads(done.stdout) == told
    links = tmp_path / "my links"
    links.mkdir()
    (links / "first").symlink_to(Path("..") / odd_checkout.name / script)
    (links / "second").symlink_to("first")
    done = run_start_script(links, *arguments, cwd=tmp_path, script="second")
    assert (done.returncode, json.loads(done.stdout)) == (7, told), done.stderr


@pytest.mark.parametrize("script", [*START_SCRIPTS, "scripts/find_python.sh"])
def test_the_start_script_has_nothing_that_the_bash_of_macos_does_not_know(script):
    text = (REPOSITORY / script).read_text(encoding="utf-8")
    newer = r"mapfile|readarray|declare -A|local -n|readlink -f|realpath|\$\{\w+(\^|,|@[A-Z])|&>>|\|&|coproc|wait -n"
    code = "\n".join(line.partition("# ")[0] for line in text.splitlines())
    assert re.findall(newer, code) == []
    if shutil.which("bash"):
        assert subprocess.run(["bash", "-n", str(REPOSITORY / script)]).returncode == 0


@needs_posix
def test_the_start_script_says_in_a_sentence_that_there_is_no_python(odd_checkout, tmp_path):
    tools = tmp_path / "tools"
    tools.mkdir()
    (tools / "dirname").symlink_to(shutil.which("dirname"))
    (tools / "python3").write_text("#!/bin/sh\nexit 1\n")  # as one that is too old
    (tools / "python3").chmod(0o755)
    done = run_start_script(odd_checkout, cwd=tmp_path, PATH=str(tools), PYTHON="")
    assert done.returncode == 1
    assert done.stderr.startswith("Chorus needs Python 3.10 to 3.14 and found none; install one")
    assert done.stderr.count("\n") == 1


@needs_posix
def test_where_the_systems_python_is_too_new_the_start_script_takes_another_one(odd_checkout, tmp_path):
    make_environment(odd_checkout)
    tools = tmp_path / "tools"
    tools.mkdir()
    (tools / "dirname").symlink_to(shutil.which("dirname"))
    answer = f'"{sys.executable}" -c "import sys; sys.version_info = (3, 15, 0); $2"'
    (tools / "python3").write_text(f'#!/bin/sh\n[ "$1" = -c ] || exit 9\nexec {answer}\n')
    (tools / "python3").chmod(0o755)
    (tools / "python3.12").symlink_to(sys.executable)
    done = run_start_script(odd_checkout, cwd=tmp_path, PATH=str(tools), PYTHON="")
    assert (done.returncode, done.stderr) == (7, "")


@needs_posix
def test_a_python_chosen_by_hand_that_does_not_work_is_refused_and_not_replaced(odd_checkout, tmp_path):
    done = run_start_script(odd_checkout, cwd=tmp_path, PYTHON="/nowhere/python")
    assert done.returncode == 1
    assert done.stderr.startswith("PYTHON=/nowhere/python is not a working Python 3.10 to 3.14")


@needs_posix
@pytest.mark.slow
def test_the_start_script_sets_up_a_fresh_checkout_with_pip(odd_checkout, tmp_path):
    first = run_start_script(odd_checkout, cwd=tmp_path)
    assert first.returncode == 7, first.stderr
    assert "The environment is ready." in first.stderr
    second = run_start_script(odd_checkout, cwd=tmp_path)
    assert (second.returncode, second.stderr) == (7, "")
    assert second.stdout == first.stdout


@pytest.mark.parametrize("name", WITH_TESTS)
def test_every_requirement_is_pinned(name):
    lines = [line.split("#")[0].strip() for line in (REPOSITORY / name).read_text(encoding="utf-8").splitlines()]
    assert [line for line in lines if line and "==" not in line and not line.startswith("-r ")] == []
