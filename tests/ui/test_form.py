"""Forms generated from the declarations of the settings."""

import tkinter

import customtkinter as ctk
import pytest

from modules.config.describe import settings_by_path
from modules.ui import keyboard
from modules.ui.theme import Theme
from modules.ui.widgets.Field import value_text
from modules.ui.widgets.form import COLUMN_WIDTH, CardSpec, SettingsForm, SettingsPage, find_field
from modules.ui.widgets.make_field import ChoiceField, SwitchField
from modules.ui.widgets.PartList import PartList
from modules.ui.widgets.typed_fields import EntryField, PathField, TextField


@pytest.fixture
def app(shared_app):
    return shared_app


@pytest.fixture
def make_form(app):
    def make(*paths, **options) -> SettingsForm:
        form = SettingsForm(app.content, app, paths, **options)
        form.grid(row=0, column=0)
        form.finish()
        app.lift()
        app.update()
        return form

    return make


def type_into(app, entry: ctk.CTkEntry, text: str) -> None:
    """Type like a user: replace the text, ending with single keys."""
    entry._entry.focus_force()
    app.update()
    entry._entry.delete(0, "end")
    entry._entry.insert(0, text)
    entry._entry.event_generate("<KeyRelease>", keysym="x")
    app.update()


def click(app, widget) -> None:
    canvas = widget._canvas
    canvas.event_generate("<Enter>")
    canvas.event_generate("<Button-1>")
    canvas.event_generate("<ButtonRelease-1>")
    app.update()


def test_an_empty_field_of_gpus_says_that_it_means_all(make_form):
    assert make_form("device_indexes").fields["device_indexes"].entry.cget("placeholder_text") == "all"


def test_every_setting_has_a_field_of_its_type(app, make_form):
    app.settings.add("embeddings", {"placeholder": "new-word"})
    kinds = {"bool": SwitchField, "choice": ChoiceField}
    paths = [path.replace("[]", ".0") for path, info in settings_by_path().items() if info.type != "list"]
    form = make_form(*paths)
    assert list(form.fields) == paths
    for field in form.fields.values():
        kind = kinds.get(field.info.type, EntryField)
        assert isinstance(field, (kind, PathField, TextField)), field.path
        assert field.label.cget("text") == field.info.label
        for text in (field.info.help, field.info.unit, f"Name: {field.path}"):
            assert text in field.help_text()


def test_a_list_of_parts_has_no_field(app, make_form):
    with pytest.raises(ValueError, match="list of parts"):
        make_form("concepts")


def test_a_number_that_is_typed_reaches_the_settings(app, make_form):
    form = make_form("epochs")
    type_into(app, form.fields["epochs"].entry, "7")
    assert app.settings.get("epochs") == 7


def test_files_of_a_list_are_typed_with_semicolons_and_chosen_one_after_another(app, make_form, monkeypatch):
    path = "model.text_encoders"
    field = make_form(path, all_importances=True).fields[path]
    type_into(app, field.entry, "a, b.safetensors;  c.safetensors ;")
    assert app.settings.get(path) == ["a, b.safetensors", "c.safetensors"]
    asked = []
    monkeypatch.setattr(
        "modules.ui.widgets.typed_fields.ask_path",
        lambda app, question, parent: asked.append(question) or "d.safetensors",
    )
    field._browse()
    assert asked[0].start == "c.safetensors"
    assert app.settings.get(path) == ["a, b.safetensors", "c.safetensors", "d.safetensors"]
    assert field.read() == "a, b.safetensors; c.safetensors; d.safetensors"


def test_a_refused_number_is_kept_with_the_reason_below_it(app, make_form):
    form = make_form("optimizer.beta1", all_importances=True)
    field = form.fields["optimizer.beta1"]
    type_into(app, field.entry, "1.2")
    app.focus_force()
    app.update()
    assert field.entry.get() == "1.2"
    assert field._problem.cget("text") == "Beta 1: must be at least 0 and below 1."
    assert field._problem.winfo_ismapped()
    assert field.entry.cget("border_color") == Theme.error
    type_into(app, field.entry, "0.8")
    assert not field._problem.winfo_ismapped()
    assert field.entry.cget("border_color") != Theme.error


def test_what_is_being_typed_is_not_rewritten_until_the_field_is_left(app, make_form):
    form = make_form("optimizer.learning_rate", "epochs")
    entry = form.fields["optimizer.learning_rate"].entry
    type_into(app, entry, "1e-4")
    assert entry.get() == "1e-4"
    form.fields["epochs"].entry._entry.focus_force()
    app.update()
    assert entry.get() == "0.0001"


def test_what_is_typed_on_before_the_form_has_caught_up_is_not_taken_away(app, make_form):
    """The next key is pressed before the first one is released."""
    app.settings.add("sampling.samples", {})
    prompt = f"sampling.samples.{len(app.settings.get('sampling.samples')) - 1}.prompt"
    form = make_form("epochs", prompt)
    entry, box = form.fields["epochs"].entry, form.fields[prompt].editor
    type_into(app, entry, "")
    for widget, keys, end, value in ((entry._entry, "60", "end", 60), (box._textbox, "ox", "end-1c", "ox")):
        widget.focus_force()
        app.update()
        widget.insert(end, keys[0])
        widget.event_generate("<KeyRelease>", keysym=keys[0])
        widget.insert(end, keys[1])
        app.update()
        widget.event_generate("<KeyRelease>", keysym=keys[1])
        app.update()
        assert app.settings.get("epochs" if widget is entry._entry else prompt) == value
    assert (entry.get(), box.get("1.0", "end-1c")) == ("60", "ox")


def test_the_key_of_an_undo_that_goes_up_does_not_type_the_old_text_again(app, make_form):
    prompt = "sampling.samples.0.prompt"
    form = make_form("optimizer.beta1", prompt, all_importances=True)
    for path, text in (("optimizer.beta1", "1.2"), ("optimizer.beta1", "0.8"), (prompt, "a dog")):
        field, before = form.fields[path], app.settings.get(path)
        widget = field.focus_widget()
        widget.focus_force()
        app.update()
        field.write(text)
        widget.event_generate("<KeyRelease>", keysym="x")
        app.update()
        assert app.settings.shown(path) != before
        app.settings.undo()
        widget.event_generate("<KeyRelease>", keysym="z")
        app.update()
        assert (app.settings.shown(path), field.read()) == (before, str(before))


def test_control_a_marks_all_of_a_field(app, make_form):
    entry = make_form("epochs").fields["epochs"].entry._entry
    entry.focus_force()
    app.update()
    entry.event_generate("<Control-a>")
    assert entry.selection_get() == "100"


def test_undo_shows_the_old_value_in_the_field(app, make_form):
    form = make_form("epochs", "enable_multi_gpu", "method")
    before = form.fields["epochs"].entry.get()
    app.settings.set("epochs", "9")
    click(app, form.fields["enable_multi_gpu"].editor)
    form.fields["method"].commit("full")
    assert app.settings.get("enable_multi_gpu") is False
    for _ in range(3):
        app.settings.undo()
    app.update()
    assert form.fields["epochs"].entry.get() == before
    assert form.fields["enable_multi_gpu"].editor.get() == 1
    assert form.fields["method"].editor.get() == "LoRA"


def test_a_field_appears_when_its_setting_matters(app, make_form):
    form = make_form("method", "lora.rank")
    assert form.fields["lora.rank"].editor.winfo_ismapped()
    app.settings.set("method", "full")
    app.update()
    assert not form.fields["lora.rank"].editor.winfo_ismapped()
    assert not form.fields["lora.rank"].label.winfo_ismapped()


def test_a_setting_that_the_method_refuses_is_shown_only_while_it_is_on(app, make_form):
    path = "loss.masked_training"
    form = make_form(path)
    app.settings.set(path, True)
    app.settings.set("method", "slider")
    assert form.fields[path].is_shown  # with the reason and the button that turns it off
    app.problems.apply(app.problems.at(path)[0].remedy)
    assert not form.fields[path].is_shown
    app.settings.set("method", "lora")
    assert form.fields[path].is_shown


def test_advanced_settings_are_shown_when_asked_for_or_changed(app, make_form):
    form = make_form("optimizer.beta1", "optimizer.beta2")
    assert form.num_shown() == 0
    app.settings.set("optimizer.beta1", 0.5)
    app.update()
    assert [path for path, field in form.fields.items() if field.is_shown] == ["optimizer.beta1"]
    app.set_show_all(True)
    app.update()
    assert form.num_shown() == 2


def test_a_dot_tells_what_differs_from_the_preset_and_a_ring_what_from_the_default(app, make_form):
    form = make_form("epochs", "model.weight_dtype")
    epochs, dtype = form.fields["epochs"], form.fields["model.weight_dtype"]
    assert epochs._dot.cget("text") == "○"
    assert dtype._dot is None
    app.settings.set("epochs", 3)
    app.settings.set("model.weight_dtype", "bfloat16")
    app.update()
    assert (epochs._dot.cget("text"), dtype._dot.cget("text")) == ("●", "●")
    app.settings.undo()
    app.update()
    assert not dtype._dot.winfo_ismapped()


def test_no_dot_is_left_when_the_settings_are_saved(app, make_form, tmp_path):
    epochs = make_form("epochs").fields["epochs"]
    app.settings.set("epochs", 3)
    app.update()
    assert epochs._dot.cget("text") == "●"
    app.settings.save(tmp_path / "mine.yaml")
    app.update()
    assert epochs._dot.cget("text") == "○"


def test_a_field_is_reset_to_its_default_and_to_the_preset(app, make_form, monkeypatch):
    form = make_form("epochs")
    menus = []
    monkeypatch.setattr(tkinter.Menu, "tk_popup", lambda menu, x, y: menus.append(menu))
    app.settings.set("epochs", 3)
    for entry, value in ((0, settings_by_path()["epochs"].default), (1, 100)):
        form.fields["epochs"].label._label.event_generate("<Button-3>")
        menus[-1].invoke(entry)
        assert app.settings.get("epochs") == value


def test_several_lines_can_be_typed_and_tab_leaves_the_field(app, make_form):
    app.settings.add("sampling.samples", {})
    number = len(app.settings.get("sampling.samples")) - 1
    form = make_form(f"sampling.samples.{number}.prompt", f"sampling.samples.{number}.steps")
    box = form.fields[f"sampling.samples.{number}.prompt"].editor
    box._textbox.focus_force()
    box.insert("1.0", "a fox\nin snow")
    box._textbox.event_generate("<KeyRelease>", keysym="w")
    assert app.settings.get(f"sampling.samples.{number}.prompt") == "a fox\nin snow"
    box._textbox.event_generate("<Tab>")
    app.update()
    assert app.focus_get() is not box._textbox
    assert app.settings.get(f"sampling.samples.{number}.prompt") == "a fox\nin snow"


def test_a_form_on_a_hidden_page_is_refreshed_before_the_page_is_shown_again(app, make_form):
    entry = make_form("epochs").fields["epochs"].entry
    app.views.suspend(app.content)
    app.settings.set("epochs", 3)
    assert entry.get() == "100"
    app.views.resume(app.content)
    assert entry.get() == "3"


def test_a_form_that_is_gone_listens_no_more(app, make_form):
    form = make_form("epochs")
    form.destroy()
    app.settings.set("epochs", 3)
    app.update()


def test_a_form_that_goes_while_it_is_built_leaves_nothing_behind(app):
    form = SettingsForm(app.content, app, list(settings_by_path())[:10])
    form.destroy()
    app.update()


@pytest.mark.parametrize(("columns", "width"), [(1, 400), (2, 2.5 * COLUMN_WIDTH), (3, 4 * COLUMN_WIDTH)])
def test_cards_stand_in_as_many_columns_as_there_is_room_for(app, wait_for, columns, width):
    specs = [CardSpec(f"Card {number}", ("epochs", "batch_size")) for number in range(4)]
    page = SettingsPage(app, app, specs)
    page.finish()
    page.place(x=0, y=0)
    page._parent_frame.configure(width=width, height=500)
    page._parent_frame.grid_propagate(False)
    wait_for(app, lambda: len({card.winfo_rootx() for card in page.cards.values()}) == columns)


@pytest.mark.parametrize("path", ["workspace_dir", "model.base"])
def test_a_path_has_the_width_of_its_card(app, settle, path):
    app.flash(path)
    settle(app)
    field = find_field(app.tabs[app.tab_bar.selected], path)
    card = field.parent.master
    assert field.entry.winfo_width() > 0.8 * card.winfo_width()
    assert field.editor.winfo_rooty() >= field.label.winfo_rooty() + field.label.winfo_height()


def test_no_filter_and_no_method_moves_a_card_to_another_column(app, settle):
    page = app.open_tab("training").page
    settle(app)
    columns = []
    for show_all, method in ((False, "lora"), (True, "lora"), (True, "full"), (False, "embedding")):
        app.set_show_all(show_all)
        app.settings.set("method", method)
        settle(app)
        columns.append({title: card.winfo_rootx() for title, card in page.cards.items() if card.winfo_ismapped()})
    assert len(set(columns[1].values())) == 3
    seen = {title: {one[title] for one in columns if title in one} for title in page.cards}
    assert {title: places for title, places in seen.items() if len(places) > 1} == {}


def test_a_card_without_anything_to_show_is_not_there(app):
    page = SettingsPage(app.content, app, [CardSpec("LoRA", ("lora.rank",)), CardSpec("Loop", ("epochs",))])
    page.finish()
    page.grid(row=0, column=0)
    app.update()
    app.settings.set("method", "full")
    app.update()
    assert not page.cards["LoRA"].winfo_ismapped()
    assert page.cards["Loop"].winfo_ismapped()
    app.settings.undo()
    app.update()
    assert page.cards["LoRA"].winfo_ismapped()


def test_embeddings_are_added_edited_and_removed(app):
    app.settings.set("method", "embedding")
    cards = PartList(app.content, app, "embeddings")
    cards.grid(row=0, column=0)
    app.update()
    assert "Embeddings is empty" in cards.problem.cget("text")
    cards._add.invoke()
    app.update()
    app.settings.set("embeddings.0.placeholder", "my-cat-1")
    assert app.problems.error("embeddings") is None
    assert len(cards._parts) == 1
    next(child for child in cards._parts[0].winfo_children() if isinstance(child, ctk.CTkButton)).invoke()
    app.update()
    assert app.settings.get("embeddings") == []
    assert cards._parts == []


def test_every_field_is_reached_with_tab_and_used_with_space(app, make_form):
    form = make_form("enable_multi_gpu", "method", "epochs", "model.base")
    form.fields["enable_multi_gpu"].focus()
    app.focus_force()
    form.fields["enable_multi_gpu"].editor._canvas.focus_force()
    app.update()
    app.focus_get().event_generate("<space>")
    app.update()
    assert app.settings.get("enable_multi_gpu") is False
    reached = set()
    widget = form.fields["enable_multi_gpu"].editor._canvas
    for _ in range(6):
        widget = widget.tk_focusNext()
        reached.add(widget)
    editors = {form.fields["method"].editor._canvas, form.fields["epochs"].entry._entry}
    path = form.fields["model.base"]
    buttons = {child._canvas for child in path.editor.winfo_children() if isinstance(child, ctk.CTkButton)}
    assert editors | {path.entry._entry} | buttons <= reached


def test_return_opens_a_choice_and_the_focus_is_seen(app, make_form, monkeypatch):
    form = make_form("method")
    opened = []
    monkeypatch.setattr(form.fields["method"].editor, "_open_dropdown_menu", lambda: opened.append(True))
    canvas = form.fields["method"].editor._canvas
    canvas.focus_force()
    app.update()
    assert canvas.find_withtag(keyboard.RING)
    canvas.event_generate("<Return>")
    assert opened
    app.focus_force()
    app.update()
    assert not canvas.find_withtag(keyboard.RING)


@pytest.mark.parametrize("path", ["output.name", "concepts.0.prompt"])
def test_what_is_pasted_with_the_middle_button_reaches_the_settings(app, make_form, path):
    app.settings.set("concepts.0.captions", "prompt")
    form = make_form(path, all_importances=True)
    field = form.fields[path]
    inner = field.focus_widget()
    field.write("pasted")
    inner.event_generate("<<PasteSelection>>", x=0, y=0)
    app.update()
    assert "pasted" in app.settings.get(path)


def test_a_text_that_is_too_long_for_its_field_is_whole_in_the_help(app, make_form):
    form = make_form("workspace_dir")
    field = form.fields["workspace_dir"]
    assert field.help_text().startswith(field.info.help)
    app.settings.set("workspace_dir", long := "workspace/" + "long/" * 40)
    app.update()
    assert field.help_text().startswith(f"{long}\n\n{field.info.help}")


def test_some_advanced_settings_can_be_shown_always(app, make_form):
    form = make_form("optimizer.beta1", "optimizer.beta2", always=("optimizer.beta1",))
    assert [path for path in form.paths if form.is_field_shown(path)] == ["optimizer.beta1"]


@pytest.mark.parametrize("path", ["workspace_dir", "model.base"])
def test_the_entry_of_a_path_has_the_menu_and_the_help_of_its_field(app, make_form, wait_for, monkeypatch, path):
    menus, shown = [], []
    monkeypatch.setattr(tkinter.Menu, "tk_popup", lambda menu, x, y: menus.append(menu))
    monkeypatch.setattr("modules.ui.widgets.Tooltip.Tooltip.show", lambda tooltip: shown.append(tooltip._text()))
    field = make_form(path).fields[path]
    field.entry._entry.event_generate("<Button-3>")
    assert len(menus) == 1
    field.entry._entry.event_generate("<Enter>")
    wait_for(app, lambda: shown)
    assert shown == [field.help_text()]


@pytest.mark.parametrize(
    ("value", "text"), [(16.0, "16"), (0.5, "0.5"), (1e-5, "1e-05"), ([2.0, 0.1], "2, 0.1"), (7, "7")]
)
def test_a_whole_number_is_shown_without_a_point(value, text):
    assert value_text(value) == text


def test_an_empty_size_of_a_sample_says_what_it_will_be(make_form):
    path = "sampling.samples.0.width"
    assert make_form(path).fields[path].entry.cget("placeholder_text") == "as trained (pixels)"
