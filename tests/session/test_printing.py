"""Everything that is printed goes through the functions that make text safe for a terminal."""

import ast
import io
from collections.abc import Iterator

import pytest

from modules.config.presets import ROOT
from modules.machine.doctor.CheckResult import CheckResult
from modules.machine.doctor.report import result_lines
from modules.session.crash_report import crash_report
from modules.session.OtherRankCallbacks import OtherRankCallbacks
from modules.session.printing import print_line, print_text
from modules.session.Questions import Questions
from modules.session.RunFolder import RunFolder
from modules.session.StepInfo import StepInfo
from modules.session.TerminalCallbacks import TerminalCallbacks

NAME = "a\x1b]0;pwned\x07\n\u202egnp.png"
SHOWN = r"a\x1b]0;pwned\x07\n\u202egnp.png"

# They print only text from this repository, or run before the packages are installed.
FOR_DEVELOPERS = {
    "scripts/setup/saying.py",
    "scripts/setup_env.py",
    "scripts/benchmark.py",
    "scripts/memory.py",
    "scripts/generated_file.py",
    "scripts/window_pictures.py",
}
# forward the output of torchrun's ranks, and what libraries said on import
PASSES_ON = {"modules/launch/launchers.py", "scripts/starting/standby.py"}
PRINTS = (
    "print", "input", "tqdm.write", "sys.stdout.write", "sys.stderr.write", "traceback.print_exc",
    "traceback.print_exception",
)  # fmt: skip


def printed(call) -> str:
    stream = io.StringIO()
    call(stream)
    return stream.getvalue()


def test_a_name_stays_on_its_line_and_a_text_keeps_its_lines():
    assert printed(lambda stream: print_line(f"{NAME} is left out.", stream)) == f"{SHOWN} is left out.\n"
    assert printed(lambda stream: print_text("one\n\ttwo \x1b[2J", stream)) == "one\n\ttwo \\x1b[2J\n"


def test_the_terminal_of_another_node_has_a_first_and_a_last_line():
    def tell(stream):
        for callbacks in (OtherRankCallbacks(2, stream, node=1, num_ranks=2), OtherRankCallbacks(3, stream)):
            callbacks.on_started(0.0)
            callbacks.on_status("Loading libraries")
            callbacks.on_finished(1200)

    assert printed(tell) == (
        "Node 1: starting 2 ranks; the terminal of node 0 shows the progress\nNode 1: done after 1,200 steps\n"
    )


class Screen(io.StringIO):
    def isatty(self):
        return True


@pytest.mark.parametrize("kind", [io.StringIO, Screen])
def test_neither_a_terminal_nor_a_log_gets_what_a_name_holds(kind):
    def tell(stream):
        for callbacks in (TerminalCallbacks(stream), OtherRankCallbacks(1, stream)):
            callbacks.on_status(NAME)
            callbacks.on_sample(NAME, "a prompt", 1)
            callbacks.on_warning(f"{NAME} is left out.")
            callbacks.on_failed(f"RuntimeError: {NAME}\n  in the second line")

    stream = kind()
    tell(stream)
    assert stream.getvalue().splitlines() == [
        SHOWN,
        f"Sample at step 1: {SHOWN}",
        f"Warning: {SHOWN} is left out.",
        r"Failed: RuntimeError: a\x1b]0;pwned\x07",  # a line break within an error may be intended
        r"\u202egnp.png",
        "  in the second line",
        f"Warning from rank 1: {SHOWN} is left out.",
    ]


def test_the_bar_still_moves():
    screen = Screen()
    callbacks = TerminalCallbacks(screen)
    callbacks.on_step(StepInfo(1, 1, 2, loss=0.5, smooth_loss=0.5, lr=1e-4, samples=1, seconds=1.0, grad_norm=0.1))
    callbacks.on_warning(NAME)
    callbacks.close()
    assert "\r" in screen.getvalue()
    assert f"Warning: {SHOWN}\n" in screen.getvalue()


def test_a_report_names_files_on_one_line_each(tmp_path):
    folder = RunFolder(tmp_path / "run")
    folder.create()
    folder.write_exit("failed", rank=0, kind="user_error", text=f"{NAME} is broken.")
    folder.log_path(0).write_text(f"by a library: {NAME}", encoding="utf-8")
    report = crash_report(folder.path)
    assert all(line.isprintable() for line in report.splitlines())
    result = CheckResult("disk", "warning", f"{NAME} is slow", f"Use another than {NAME}.", (NAME,))
    assert result_lines(result)[1:] == [f"{'':13}{SHOWN}", f"{'':9}--> Use another than {SHOWN}."]


def test_a_question_shows_names_on_one_line(monkeypatch):
    asked = []
    monkeypatch.setattr("builtins.input", lambda prompt: asked.append(prompt) or "")
    assert Questions({}).ask("folder", "Folder", str, NAME) == NAME
    assert asked == [f"Folder [{SHOWN}]: "]


def test_nothing_but_fixed_text_is_printed_past_these_functions():
    assert list(raw_prints('print("Done.")\nprint(f"Saved {path}")')) == [2]
    sources = [path for room in ("modules", "scripts") for path in (ROOT / room).rglob("*.py")]
    names = {path.relative_to(ROOT).as_posix(): path for path in sources}
    found = [
        f"{name}:{line}"
        for name, path in sorted(names.items())
        if name not in FOR_DEVELOPERS | PASSES_ON and not name.startswith("scripts/benchmarks/")
        for line in raw_prints(path.read_text(encoding="utf-8"))
    ]
    assert found == [], "print these by print_line or print_text of modules/session/printing.py"


def raw_prints(source: str) -> Iterator[int]:
    """The lines of calls that print anything but a literal text or ASCII JSON."""
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.Call):
            continue
        name = ast.unparse(node.func)
        is_made = any(not isinstance(one, ast.Constant) and not is_made_visible(one) for one in node.args)
        if name in PRINTS and (is_made or name.startswith("traceback.")):
            yield node.lineno


def is_made_visible(node: ast.expr) -> bool:
    return isinstance(node, ast.Call) and ast.unparse(node.func) in ("visible_line", "visible_text", "json.dumps")
