import json
import sys
import threading
import time
import urllib.request

import pytest

from modules.config.errors import UserError
from modules.session.RunFolder import RunFolder
from modules.ui.models.TensorBoard import TensorBoard
from modules.ui.tabs import ToolsTab as module
from modules.ui.widgets.LogPane import ALL, MAX_LINES, SUPERVISOR
from modules.ui.windows import DoctorWindow as doctor_module
from modules.ui.windows.CrashReportWindow import CrashReportWindow
from modules.ui.windows.RunSummaryWindow import RunSummaryWindow
from tests.support.waiting import PATIENCE_SECONDS, wait_until

SERVER = """
import http.server, sys
address = sys.argv[sys.argv.index("--host") + 1], int(sys.argv[sys.argv.index("--port") + 1])
http.server.HTTPServer(address, http.server.SimpleHTTPRequestHandler).serve_forever()
"""


@pytest.fixture
def app(shared_app):
    return shared_app


@pytest.fixture
def folder(tmp_path):
    folder = RunFolder(tmp_path / "run")
    folder.create()
    return folder


@pytest.fixture
def tab(app, folder, wait_for):
    """The tab, with a log of two ranks and a supervisor."""
    for rank in (0, 1):
        tell(folder, rank, *[f"line {number} of {rank}" for number in range(3)])
    tell(folder, None, "Stopping")
    tab = app.open_tab("tools")
    app.run.attach(folder.path)
    wait_for(app, lambda: tab.log._history is app.run.history)  # until then, it shows the run of the last test
    wait_for(app, lambda: shown(tab).count("\n") >= 7 and not app.is_building)
    return tab


def tell(folder, rank, *texts, kind="status"):
    path = folder.supervisor_event_path if rank is None else folder.event_path(rank)
    with path.open("a") as file:
        for text in texts:
            file.write(json.dumps({"time": time.time(), "type": kind, "rank": rank, "text": text}) + "\n")


def shown(tab):
    return tab.log.text.get("1.0", "end")


class TestLog:
    def test_all_ranks_are_told(self, tab):
        text = shown(tab)
        assert text.count("Rank 0: line") == text.count("Rank 1: line") == 3
        assert "Supervisor: Stopping" in text

    def test_one_rank_can_be_picked(self, tab, app, wait_for):
        wait_for(app, lambda: tab.log.filter.cget("values") == [ALL, "Rank 0", "Rank 1", SUPERVISOR])
        tab.log.choose(1)
        wait_for(app, lambda: shown(tab).count("\n") == 3)
        assert shown(tab).count("Rank 1: line") == 3
        tab.log.choose(None)
        wait_for(app, lambda: shown(tab).count("\n") >= 7)

    def test_the_row_chosen_in_the_table_of_ranks_picks_it(self, tab, app, wait_for):
        app.log_rank = 1
        wait_for(app, lambda: "Rank 0" not in shown(tab) and shown(tab).count("Rank 1: line") == 3)

    def test_new_lines_come_by_themselves_and_warnings_have_a_colour(self, tab, app, folder, wait_for):
        tell(folder, 1, "slow disk", kind="warning")
        wait_for(app, lambda: "slow disk" in shown(tab))
        assert "warning" in tab.log.text.tag_names("end - 2 chars")

    def test_of_all_ranks_the_steps_of_rank_0_are_shown_and_of_one_rank_its_own(self, tab, app, folder, wait_for):
        step = {"time": time.time(), "type": "step", "epoch": 1, "step": 7, "steps_total": 9, "lr": 1e-4}
        for rank in (1, 0):
            with folder.event_path(rank).open("a") as file:
                file.write(json.dumps({**step, "rank": rank, "samples": 1, "seconds": 1.0}) + "\n")
            tell(folder, rank, f"after it on {rank}")
        wait_for(app, lambda: "after it on 0" in shown(tab) and "after it on 1" in shown(tab))
        assert "Rank 0: step 7/9" in shown(tab)
        assert "Rank 1: step 7/" not in shown(tab)
        tab.log.choose(1)
        wait_for(app, lambda: "after it on 1" in shown(tab))
        assert "Rank 1: step 7/" in shown(tab)

    def test_a_flood_is_cut_and_keeps_the_last(self, tab, app, folder, wait_for):
        tell(folder, 1, *[f"flood {number}" for number in range(MAX_LINES + 2000)])
        wait_for(app, lambda: f"flood {MAX_LINES + 1999}\n" in shown(tab))
        assert shown(tab).count("\n") == MAX_LINES

    def test_a_portion_is_one_insert(self, tab, app, folder, wait_for, monkeypatch):
        inserts = []
        insert = tab.log.text.insert
        monkeypatch.setattr(tab.log.text, "insert", lambda *arguments: inserts.append(1) or insert(*arguments))
        tell(folder, 1, *[f"many {number}" for number in range(400)])
        wait_for(app, lambda: "many 399\n" in shown(tab))
        assert len(inserts) < 10

    def test_another_run_has_another_log_of_all_ranks_as_it_may_lack_the_chosen_one(self, tab, app, tmp_path, wait_for):
        tab.log.choose(1)
        other = RunFolder(tmp_path / "other")
        other.create()
        tell(other, 0, "hello")
        app.run.attach(other.path)
        wait_for(app, lambda: "hello" in shown(tab))
        assert "line 0" not in shown(tab)
        assert tab.log.filter.get() == ALL

    def test_without_a_run_nothing_is_imported_for_its_losses(self, make_app):
        app = make_app(tab="tools")
        app.tabs["tools"].log.look()
        assert app.run._history is None  # it needs NumPy, which would stop the window for a fifth of a second


class TestTensorBoard:
    @pytest.fixture
    def board(self):
        board = TensorBoard([sys.executable, "-c", SERVER])
        yield board
        board.stop()

    def test_the_curves_are_served_on_this_machine_only(self, board, tmp_path):
        (tmp_path / "events").touch()
        url = board.start(tmp_path)
        assert url.startswith("http://127.0.0.1:")
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))  # bypasses proxies
        assert opener.open(url).status == 200
        assert board.start(tmp_path) == url

    def test_a_stop_ends_the_process(self, board, tmp_path):
        (tmp_path / "events").touch()
        board.start(tmp_path)
        process = board._child.process
        board.stop()
        assert process.poll() is not None

    def test_without_curves_there_is_nothing_to_open(self, board, tmp_path):
        with pytest.raises(UserError, match="holds no curves"):
            board.start(tmp_path)
        with pytest.raises(UserError, match="can't be read: File name too long; allow reading it"):
            board.start(tmp_path / ("x" * 300))

    def test_a_start_that_fails_says_what_it_said(self, tmp_path):
        (tmp_path / "events").touch()
        with pytest.raises(UserError, match="no such luck"):
            TensorBoard([sys.executable, "-c", "raise SystemExit('no such luck')"]).start(tmp_path)

    def test_a_stop_is_for_a_start_that_waits_or_comes_late_too(self, tmp_path):
        (tmp_path / "events").touch()
        board = TensorBoard([sys.executable, "-c", "import time; time.sleep(600)"])  # never responds
        ends = []

        def start():
            with pytest.raises(UserError, match="was closed"):
                board.start(tmp_path)
            ends.append(1)

        first, second = threading.Thread(target=start), threading.Thread(target=start)
        first.start()
        wait_until(lambda: board._child is not None and board._child.process is not None)
        process = board._child.process
        second.start()  # waits for the first, and would start once that is stopped
        board.stop()
        for thread in (first, second):
            thread.join(PATIENCE_SECONDS)
        assert (len(ends), board._child) == (2, None)
        assert process.poll() is not None

    def test_the_button_opens_the_browser(self, tab, app, folder, board, wait_for, monkeypatch):
        opened = []
        monkeypatch.setattr(module.webbrowser, "open", opened.append)
        tab.tensorboard = board
        (folder.tensorboard_dir / "events").touch()
        for number, shown in enumerate((folder.tensorboard_dir, folder.path.parent)):  # this run, and all beside it
            tab._open[number].invoke()
            wait_for(app, lambda number=number: len(opened) == number + 1)
            wait_for(app, lambda: tab._open[0].cget("state") == "normal")
            assert board._folder == shown

    def test_a_run_without_curves_is_told(self, tab, app, wait_for):
        tab._open[0].invoke()
        wait_for(app, lambda: "holds no curves" in app.message.cget("text"))
        assert tab._open[0].cget("state") == "normal"


class TestWindows:
    def test_the_report_is_read_and_copied(self, tab, app, folder, wait_for):
        text = "Rank 1 was killed by SIGKILL: lower batch_size."
        folder.write_exit("failed", rank=1, kind="killed", text=text, signal="SIGKILL")
        wait_for(app, lambda: tab._report.cget("state") == "normal")
        window = tab.show_report()
        wait_for(app, lambda: "signal: SIGKILL" in window.box.get("1.0", "end"))
        assert "lower Batch size." in window.heading.cget("text")  # as the window calls it
        assert "lower batch_size." in window.box.get("1.0", "end")  # as files do
        window.copy()
        assert "signal: SIGKILL" in app.clipboard_get()
        window.destroy()

    def test_a_report_closed_at_once_harms_nothing(self, app, folder, wait_for, monkeypatch):
        came, show = [], CrashReportWindow._show
        monkeypatch.setattr(CrashReportWindow, "_show", lambda *found: (came.append(found), show(*found)))
        CrashReportWindow(app, folder.path).destroy()
        wait_for(app, lambda: came)
        app.update()  # an exception in it fails the test

    def test_the_summary_starts_once(self, app):
        starts = []
        window = RunSummaryWindow(app, "Steps: 5", lambda: starts.append(1))
        app.update()
        assert "Steps: 5" in window.box.get("1.0", "end")
        window.start()
        assert starts == [1]
        assert not window.winfo_exists()

    def test_a_mere_check_offers_no_start(self, app):
        window = RunSummaryWindow(app, "Steps: 5")
        app.update()
        assert [button.cget("text") for button in window.bar.winfo_children()] == ["Close", "Copy"]
        window.destroy()


class TestDoctor:
    """With a fake script; tests/scripts/test_doctor.py runs the real one."""

    CHECKS = (
        {"name": "clock", "state": "ok", "text": "2026", "remedy": "", "details": [], "values": {}},
        {"name": "GPUs", "state": "warning", "text": "in use", "remedy": "End it.", "details": ["GPU 0"], "values": {}},
        {"name": "port", "state": "fails", "text": "busy", "remedy": "Free it.", "details": [], "values": {}},
    )

    @pytest.fixture
    def script(self, monkeypatch):
        """The fake script that the window starts; it ends once its `answer` is set."""

        class Script:
            answer = None
            started = []

            def __init__(self, name, config, options):
                self.name, self.config, self.options = name, config, options
                self.cancelled = threading.Event()
                self.started.append(self)

            def run(self):
                while not self.cancelled.wait(0.01):
                    if self.answer is not None:
                        return self.answer

            def cancel(self):
                self.cancelled.set()

        monkeypatch.setattr(doctor_module, "ScriptRun", Script)
        return Script

    def test_the_report_is_shown_in_colours_and_copied(self, tab, app, script, wait_for):
        tab.open_doctor()
        window = app.winfo_children()[-1]
        assert "Checking" in window.heading.cget("text")
        tab.open_doctor()
        assert [(one.name, one.options) for one in script.started] == [("doctor.py", ["--json"])]
        script.answer = json.dumps({"checks": self.CHECKS}).encode()
        wait_for(app, lambda: window.results)
        assert window.heading.cget("text") == "Training would fail: port (and 1 warning)."
        text = window.box.get("1.0", "end-1c").splitlines()
        tags = [window.box.tag_names(f"{number}.0") for number in range(1, len(text) + 1)]
        assert [tag[0] for tag in tags] == ["ok", *["warning"] * 3, *["fails"] * 2]
        window.copy()
        assert "--> Free it." in app.clipboard_get()
        window.again.invoke()
        wait_for(app, lambda: len(script.started) == 2 and window.again.cget("state") == "normal")
        window.destroy()

    def test_after_a_fault_it_can_be_checked_again(self, tab, app, script, wait_for, faults, monkeypatch):
        monkeypatch.setattr(script, "run", lambda self: 1 / 0)
        tab.open_doctor()
        window = app.winfo_children()[-1]
        wait_for(app, lambda: faults)
        assert isinstance(faults.pop(), ZeroDivisionError)
        assert window.again.cget("state") == "normal"

    def test_closing_the_window_ends_the_check(self, tab, app, script, wait_for):
        tab.open_doctor()
        app.winfo_children()[-1].destroy()
        wait_for(app, script.started[-1].cancelled.is_set)
