"""The sampling tab: prompts and their settings, and samples on request."""

import dataclasses
from tkinter import font as tkfont
from tkinter import ttk

import pytest
from PIL import Image

from modules.config.errors import UserError
from modules.ui.models.coming_prompts import coming_prompts
from modules.ui.models.RunState import SavedModel


@pytest.fixture
def app(shared_app):
    return shared_app


@pytest.fixture
def tab(app):
    made = app.open_tab("sampling")
    for _ in made._steps:
        pass
    app.update()
    return made


def rows(tab) -> list[tuple]:
    tree = tab.prompts.tree
    return [tuple(str(value) for value in tree.item(item, "values")) for item in tree.get_children()]


def prompts(app) -> list[str]:
    return [sample.prompt for sample in app.settings.get("sampling.samples")]


def hint_of(tab, number: int):
    """The label in the box of a prompt, in the form that is there now."""
    return tab._edited.form.fields[f"sampling.samples.{number}.prompt"].editor._hint


def press(app, widget, key: str) -> None:
    widget.focus_force()
    app.update()
    widget.event_generate(key)
    app.update()


def test_every_prompt_is_listed(app, tab):
    assert [row[1] for row in rows(tab)] == prompts(app)
    assert rows(tab)[0] == ("✓", "a handwritten zero", "42", "32 x 32", "2")


def test_a_choice_opens_the_settings_of_that_prompt(app, tab):
    tab.prompts.choose(3)
    app.update()
    assert tab._edited.form.paths[0] == "sampling.samples.3.prompt"
    fields = {path.rpartition(".")[2] for path in tab._edited.form.paths}
    assert fields == {field.name for field in dataclasses.fields(app.settings.get("sampling.samples.3"))}


def test_what_is_typed_is_seen_in_the_list(app, tab):
    app.settings.set("sampling.samples.2.prompt", "a fox\nin snow")
    app.settings.set("sampling.samples.2.width", 64)
    assert rows(tab)[2][1:4] == ("a fox in snow", "42", "64 x 32")


def test_a_prompt_without_a_size_follows_the_training_resolution(app, tab):
    app.settings.set("sampling.samples.2.width", None)
    app.settings.set("data.resolution", 64)
    assert rows(tab)[2][3] == "64 x 32"
    app.settings.set("data.resolution", 96)
    assert rows(tab)[2][3] == "96 x 32"


def test_a_new_prompt_takes_the_size_of_the_others(app, tab):
    count = len(prompts(app))
    tab.prompts.add()
    app.update()
    new = app.settings.get(f"sampling.samples.{count}")
    assert (new.prompt, new.width, new.steps) == ("", 32, 20)
    assert tab.prompts.chosen == count
    assert rows(tab)[-1][1] == "(dataset caption 1)"


def test_prompts_without_a_text_say_which_caption_they_take(app, tab):
    for number in (0, 1, 2):
        app.settings.set(f"sampling.samples.{number}.prompt", "")
    app.settings.set("sampling.samples.1.enabled", False)
    assert [row[1] for row in rows(tab)[:3]] == [
        "(dataset caption 1)",
        "(a dataset caption)",
        "(dataset caption 2)",
    ]


def test_the_settings_of_a_prompt_are_right_below_the_list(app, tab):
    tab.prompts.choose(1)
    app.update()
    edited, page = tab._edited, tab._side._parent_canvas
    assert tab.prompts.winfo_rooty() < edited.winfo_rooty() < page.winfo_rooty() + page.winfo_height() / 2
    assert edited.winfo_rooty() < tab.sample_now.winfo_rooty()


def test_the_first_prompt_of_all_can_be_added(app, tab):
    while prompts(app):
        app.settings.remove("sampling.samples", 0)
    app.update()
    assert rows(tab) == []
    tab.prompts.add()
    app.update()
    assert len(prompts(app)) == 1


def test_a_duplicate_stands_below_the_prompt_and_is_chosen(app, tab):
    tab.prompts.choose(1)
    app.update()
    tab.prompts.duplicate()
    app.update()
    assert prompts(app)[:4] == ["a handwritten zero", "a handwritten one", "a handwritten one", "a handwritten two"]
    assert tab.prompts.chosen == 2


def test_prompts_can_be_moved(app, tab):
    tab.prompts.choose(0)
    app.update()
    tab.prompts.move(-1)
    tab.prompts.move(1)
    app.update()
    assert prompts(app)[:2] == ["a handwritten one", "a handwritten zero"]
    assert tab.prompts.chosen == 1


def test_space_switches_a_prompt_off_and_delete_removes_it(app, tab):
    tab.prompts.choose(0)
    press(app, tab.prompts.tree, "<space>")
    assert app.settings.get("sampling.samples.0.enabled") is False
    assert rows(tab)[0][0] == ""
    press(app, tab.prompts.tree, "<Delete>")
    assert prompts(app)[0] == "a handwritten one"


def test_a_click_on_the_mark_switches_a_prompt_off(app, tab):
    app.update()
    x, y, width, height = tab.prompts.tree.bbox("1", "on")
    tab.prompts.tree.event_generate("<Button-1>", x=x + width // 2, y=y + height // 2)
    app.update()
    assert app.settings.get("sampling.samples.1.enabled") is False


def test_removing_the_last_prompts_one_by_one_leaves_an_empty_list(app, tab):
    tab.prompts.choose(len(prompts(app)) - 1)
    app.update()
    while prompts(app):
        tab.prompts.remove()
        app.update()
    assert tab._edited is None
    assert tab.prompts._on_chosen[0].cget("state") == "disabled"


def test_undo_of_an_added_prompt_takes_its_form_away(app, tab):
    tab.prompts.add()
    app.update()
    app.settings.undo()
    app.update()
    assert tab.prompts.chosen is None
    assert tab._edited is None


def test_a_problem_of_a_prompt_opens_its_form(app, tab):
    app.settings.set("sampling.samples.5.steps", "0")
    app.flash("sampling.samples.5.steps")
    app.update()
    assert tab.prompts.chosen == 5
    assert "sampling.samples.5.steps" in tab._edited.form.fields


def test_samples_are_asked_for_only_while_a_run_goes_on(app, tab, monkeypatch):
    asked = []
    monkeypatch.setattr(app.run, "command", asked.append)
    assert tab.sample_now.cget("state") == "disabled"
    app.run.state.is_running = True
    tab._on_run(app.run.state)
    tab.sample_now.invoke()
    assert asked == ["sample"]
    app.run.state.is_stopping = True
    tab._on_run(app.run.state)
    assert tab.sample_now.cget("state") == "disabled"


def test_a_run_folder_that_is_gone_is_told(app, tab, monkeypatch):
    def refuse(name: str) -> None:
        raise UserError("the folder is gone.")

    told = []
    monkeypatch.setattr(app.run, "command", refuse)
    monkeypatch.setattr(app, "show_message", lambda text, kind="info": told.append((text, kind)))
    tab._sample_now()
    assert told == [("the folder is gone.", "error")]


class FakeScript:
    """Stands for a run of scripts/sample_run.py."""

    def __init__(self, result):
        self.result, self.cancelled = result, False

    def run(self):
        if isinstance(self.result, Exception):
            raise self.result
        return self.result

    def cancel(self):
        self.cancelled = True


@pytest.fixture
def ended(app, tab, tmp_path, monkeypatch):
    """Returns a function that lets a run end and presses Sample now; the script gives a result."""

    def press(result) -> FakeScript:
        script, waiting = FakeScript(result), []

        def make_script(run, model, step, config, standby) -> FakeScript:
            script.config = config
            return script

        monkeypatch.setattr("modules.ui.cards.SampleNowCard.run_samples_script", make_script)
        monkeypatch.setattr(app, "in_background", lambda *work: waiting.append(work))
        monkeypatch.setattr("modules.ui.keyboard.DOUBLE_CLICK_SECONDS", 0.0)  # since the last test has pressed it
        app.run.state.folder, app.run.state.exit = tmp_path, {"status": "finished"}
        app.run.state.saved = [SavedModel(20, tmp_path / "cat.safetensors")]
        tab._on_run(app.run.state)
        tab.sample_now.invoke()
        script.waiting = waiting
        return script

    return press


def finish(script) -> None:
    work, show, fail = script.waiting[0]
    try:
        result = work()
    except UserError as error:
        fail(error)
    else:
        show(result)


def test_a_run_that_has_ended_is_sampled_with_its_saved_model(app, tab, ended, tmp_path):
    image = tmp_path / "000_a cat_seed42.png"
    script = ended(f"{image}\n".encode())
    assert (tab.sample_now.cget("text"), tab.finished.winfo_manager()) == ("Cancel", "grid")
    assert script.config == app.settings.config()
    finish(script)
    assert tab.finished.strip.samples == [("a cat_seed42", str(image))]
    assert (tab.sample_now.cget("text"), tab.sample_now.cget("state")) == ("Sample now", "normal")


def test_an_error_while_sampling_an_ended_run_is_shown(tab, ended):
    finish(ended(UserError("There is no model.")))
    assert tab.finished._note.cget("text") == "There is no model."
    assert tab.sample_now.cget("text") == "Sample now"


def test_sampling_an_ended_run_can_be_cancelled(tab, ended):
    script = ended(None)
    tab.sample_now.invoke()
    assert script.cancelled
    finish(script)
    assert tab.finished._note.cget("text") == "Cancelled."


def test_every_heading_of_the_list_fits_its_column(app, tab, settle):
    settle(app)
    tree = tab.prompts.tree
    font = tkfont.Font(app, ttk.Style(app).lookup("Treeview.Heading", "font"))
    padding = 2 * app.theme.scaled(8)
    widths = {name: font.measure(tree.heading(name)["text"]) + padding for name in tree["columns"]}
    assert {name for name, width in widths.items() if width > tree.column(name)["width"]} == set()


def test_the_box_of_an_empty_prompt_shows_the_caption_that_will_be_used(app, tab, wait_for, settle, tmp_path):
    for number, text in enumerate(("a black cat", "a black cat", "a white dog")):
        Image.new("RGB", (8, 8)).save(tmp_path / f"{number}.png")
        (tmp_path / f"{number}.txt").write_text(text)
    app.settings.set("concepts.0.path", str(tmp_path))
    for number in (0, 1, 2):
        app.settings.set(f"sampling.samples.{number}.prompt", "")
    app.settings.set("sampling.samples.1.enabled", False)
    for number, shown in ((0, "a black cat"), (2, "a white dog"), (1, "")):
        tab.prompts.choose(number)
        settle(app)
        expected = f"From the dataset: {shown}" if shown else "from a caption"
        wait_for(app, lambda number=number, expected=expected: hint_of(tab, number).cget("text") == expected)
        assert hint_of(tab, number).winfo_ismapped()
    app.settings.set("sampling.samples.1.prompt", "a fox")
    wait_for(app, lambda: not hint_of(tab, 1).winfo_ismapped())
    assert coming_prompts(app.settings.config(), 2) == ("a black cat", "a white dog")
