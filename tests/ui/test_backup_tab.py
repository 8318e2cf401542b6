import shutil
import threading

import pytest

from modules.config.files import config_from_values
from modules.session.RunFolder import RunFolder
from modules.ui.tabs import BackupTab as module
from modules.ui.tabs.BackupTab import size_text
from tests.support.backup_files import write_backup


@pytest.fixture
def app(shared_app):
    return shared_app


@pytest.fixture
def folder(app, tmp_path):
    """The run folder of the settings."""
    folder = run_with_backups(tmp_path)
    app.settings.set("workspace_dir", str(folder.path))
    return folder


def run_with_backups(tmp_path) -> RunFolder:
    """A run folder with three backups; the one of step 20 is damaged."""
    folder = RunFolder(tmp_path / "run")
    folder.create()
    for step in (5, 10, 20):
        write_backup(folder.backup_dir, step)
    state = folder.backup_dir / "step-000000020" / "state.json"
    state.write_text(state.read_text().replace("20", "21"))
    return folder


@pytest.fixture
def tab(app, folder, wait_for, monkeypatch):
    monkeypatch.setattr(module, "LOOK_SECONDS", 0.2)
    tab = app.open_tab("backup")
    wait_for(app, lambda: tab._folder is not None and tab._folder.path == folder.path)
    wait_for(app, lambda: module.CHECKING not in tab.states.values())
    return tab


@pytest.fixture
def started(app, monkeypatch):
    """The arguments of starts, which are recorded instead of carried out."""
    calls = []
    monkeypatch.setattr(app.run, "start", lambda config, resume=False: calls.append((config, resume)))
    return calls


def rows(tab):
    return [tab.table.item(name, "values") for name in tab.table.get_children()]


def choose(tab, app, step):
    tab.table.selection_set(f"step-{step:09d}")
    app.update()


def test_the_newest_is_first_and_damage_is_told(tab):
    assert [row[0] for row in rows(tab)] == ["20", "10", "5"]
    states = [row[3] for row in rows(tab)]
    assert states[0].startswith("damaged: state.json")
    assert states[1:] == ["complete", "complete"]


def test_the_latest_whole_one_is_offered_and_the_damage_of_another_is_said_in_full(tab, app):
    assert tab.chosen().step == 10
    choose(tab, app, 20)
    assert "other content than was written" in tab._detail.cget("text")


def test_a_damaged_backup_can_not_be_chosen(tab, app, started):
    choose(tab, app, 20)
    assert tab._resume.cget("state") == "disabled"
    tab.resume()
    assert started == []
    assert "is damaged" in app.message.cget("text")


def test_going_on_from_an_earlier_one_puts_later_ones_aside_and_resumes(tab, app, started, wait_for, monkeypatch):
    questions = []
    monkeypatch.setattr(module, "ask", lambda *arguments: questions.append(arguments[2]) or "Resume")
    choose(tab, app, 10)
    assert tab._resume.cget("state") == "normal"
    tab._resume.invoke()
    wait_for(app, lambda: started)
    ((config, resume),) = started
    assert resume
    assert config.workspace_dir == app.settings.get("workspace_dir")
    assert "1 later backup is set aside" in questions[0]
    wait_for(app, lambda: rows(tab)[0][3].endswith("set aside"))


@pytest.mark.parametrize("step", [5, 20])
def test_two_fast_presses_of_resume_ask_and_start_once(tab, app, folder, started, wait_for, monkeypatch, step):
    shutil.rmtree(folder.backup_dir / "step-000000020")
    write_backup(folder.backup_dir, 20)  # complete, so that nothing is asked
    tab.states = dict.fromkeys(tab.backups, module.COMPLETE)
    goings, go_on, questions = [], threading.Event(), []

    def go_back_to(*place) -> None:
        goings.append(place)
        go_on.wait(120)

    def ask(*arguments) -> str:
        questions.append(arguments)
        return "Resume"

    monkeypatch.setattr(module, "go_back_to", go_back_to)
    monkeypatch.setattr(module, "ask", ask)
    choose(tab, app, step)
    tab.resume()
    tab._on_run(app.run.state)
    assert tab._resume.cget("state") == "disabled"
    tab.resume()
    go_on.set()
    wait_for(app, lambda: started)
    assert (len(goings), len(started), len(questions)) == (1, 1, int(step == 5))
    assert tab._resume.cget("state") == "normal"  # because the fake start created no run


def test_a_person_who_thinks_again_changes_nothing(tab, app, folder, started, monkeypatch):
    monkeypatch.setattr(module, "ask", lambda *arguments: None)
    choose(tab, app, 5)
    tab.resume()
    app.update()
    assert started == []
    assert not list(folder.backup_dir.glob("aside-*"))


def test_settings_with_a_mistake_are_not_resumed_with(tab, app, started, monkeypatch):
    app.settings.set("batch_size", "x")
    monkeypatch.setattr(module, "ask", lambda *arguments: "Resume")
    choose(tab, app, 5)
    tab.resume()
    assert started == []
    assert app.tab_bar.selected == "training"  # where its field says what is wrong
    assert app.problems.error("batch_size") == "Batch size: 'x' is not a number."


def test_a_run_elsewhere_is_resumed_with_its_own_settings(app, folder, started, tab, tmp_path, wait_for, monkeypatch):
    folder.freeze_config(config_from_values({"workspace_dir": str(folder.path), "seed": 7}))
    folder.event_path(0).write_text('{"time": 1.0, "type": "status", "rank": 0, "text": "x"}\n')
    app.run.attach(folder.path)
    app.settings.set("workspace_dir", str(tmp_path / "other"))
    monkeypatch.setattr(module, "ask", lambda *arguments: "Resume")
    wait_for(app, lambda: tab.chosen() is not None and app.run.state.exit is not None)
    tab.resume()
    wait_for(app, lambda: started)
    assert started[0][0].seed == 7


def test_a_new_backup_appears_by_itself(tab, app, folder, wait_for):
    write_backup(folder.backup_dir, 30)
    wait_for(app, lambda: rows(tab)[0][0] == "30" and rows(tab)[0][3] == "complete")


def test_a_look_and_a_comparison_that_fail_are_no_end_of_them(make_app, tmp_path, wait_for, faults, monkeypatch):
    app, folder = make_app(tab="tools"), run_with_backups(tmp_path)
    app.settings.set("workspace_dir", str(folder.path))
    looks, list_backups, damage = [], module.list_backups, module.damage

    def fail_first(folder):
        looks.append(folder)
        if len(looks) == 1:
            raise RuntimeError("look")
        return list_backups(folder)

    def fail_of_10(path):
        if path.name.endswith("-000000010"):
            raise RuntimeError("comparison")
        return damage(path)

    monkeypatch.setattr(module, "LOOK_SECONDS", 0.05)
    monkeypatch.setattr(module, "list_backups", fail_first)
    monkeypatch.setattr(module, "damage", fail_of_10)
    tab = app.open_tab("backup")
    wait_for(app, lambda: tab.backups and module.CHECKING not in tab.states.values())
    assert [row[3] for row in rows(tab)][1:] == ["damaged: it can't be read", "complete"]
    assert [str(error) for error in faults] == ["look", "comparison"]
    faults.clear()


def test_the_running_run_can_be_asked(tab, app, monkeypatch):
    asked = []
    monkeypatch.setattr(app.run, "command", asked.append)
    assert tab._back_up.cget("state") == tab._save.cget("state") == "disabled"
    app.run.state.is_running = True
    tab._on_run(app.run.state)
    tab._back_up.invoke()
    tab._save.invoke()
    app.run.state.is_running = False
    assert asked == ["backup", "save"]


def test_the_schedule_can_be_edited(tab, app):
    from modules.ui.widgets.form import find_field

    for name in ("every", "unit", "keep", "at_end"):
        assert find_field(tab, f"backup.{name}") is not None


@pytest.mark.parametrize(
    ("num_bytes", "text"),
    [(0, "0 B"), (999, "999 B"), (2048, "2.0 KiB"), (5 << 30, "5.0 GiB"), (1 << 40, "1024.0 GiB")],
)
def test_sizes_read_well(num_bytes, text):
    assert size_text(num_bytes) == text
