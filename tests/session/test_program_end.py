"""Programs end with their exit code and their last words, whatever their threads are doing."""

import ast
import re
import signal
import subprocess
import sys
import textwrap

import pytest

from modules.config.presets import ROOT
from tests.support.waiting import PATIENCE_SECONDS

SCRIPTS = ROOT / "scripts"

END = "from modules.session.program_end import end_program\n"

# pydantic's Rust code calls Python, where it waits for the GIL
COMPUTES = """
import sys, threading, time
from modules.config.files import config_from_values
sys.setswitchinterval(0.0005)

def compute():
    while True:
        config_from_values({"optimizer": {"learning_rate": 1e-4}})

for _ in range(3):
    threading.Thread(target=compute, daemon=True).start()
end_program(lambda: time.sleep(0.1))
"""


def run(code: str) -> subprocess.CompletedProcess:
    command = [sys.executable, "-c", END + textwrap.dedent(code)]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=PATIENCE_SECONDS)


def test_threads_that_compute_do_not_abort_a_program_that_ends():
    for _ in range(3):
        done = run(COMPUTES)
        assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize(
    ("main", "code", "errors"),
    [
        ("lambda: None", 0, ""),
        ("lambda: 3", 3, ""),
        ("lambda: sys.exit(4)", 4, ""),
        ("lambda: sys.exit('no')", 1, "no\n"),
        ("lambda: 1 / 0", 1, "ZeroDivisionError"),
    ],
)
def test_the_exit_code_is_that_of_sys_exit(main, code, errors):
    done = run(f"import sys\nend_program({main})")
    assert done.returncode == code
    assert errors in done.stderr


def test_what_python_does_at_its_end_is_done():
    done = run(
        """
        import atexit, sys, tempfile, threading, time
        folder = tempfile.TemporaryDirectory()
        atexit.register(lambda: print("at exit", end=""))
        threading.Thread(target=lambda: (time.sleep(0.2), print("thread"))).start()
        end_program(lambda: print(folder.name))
        """
    )
    folder, *rest = done.stdout.split("\n")
    assert rest == ["thread", "at exit"]
    assert not (ROOT / folder).exists()


@pytest.mark.skipif(sys.platform == "win32", reason="signals end programs there")
def test_ctrl_c_ends_a_program_that_reads_stdin_in_a_thread(tmp_path):
    """As the window's processes get it, too, if the window was started in a terminal."""
    command = [sys.executable, str(SCRIPTS / "runs.py"), "refresh", "--watch", str(tmp_path)]
    piped = subprocess.PIPE
    with subprocess.Popen(command, stdin=piped, stdout=piped, stderr=piped, cwd=ROOT) as process:
        (tmp_path / "run" / "events").mkdir(parents=True)
        (tmp_path / "run" / "events" / "rank-0.jsonl").write_text("")
        assert process.stdout.readline()  # it has looked, and goes on to do so
        process.send_signal(signal.SIGINT)
        assert process.wait(PATIENCE_SECONDS) == 130
        assert process.stderr.read() == b"Stopped.\n"


def test_the_programs_that_the_window_starts_end_so():
    named = {"train_ui.py", "queue_entry.py", "queue_runner.py"}
    for path in (ROOT / "modules" / "ui").rglob("*.py"):
        named |= set(re.findall(r'"(\w+\.py)"', path.read_text(encoding="utf-8")))
    scripts = [path for path in (*SCRIPTS.glob("*.py"), *SCRIPTS.glob("starting/*.py")) if path.name in named]
    assert len(scripts) > 12
    for script in scripts:
        last = ast.parse(script.read_text(encoding="utf-8")).body[-1]
        assert "end_program(main" in ast.unparse(last), script.name
